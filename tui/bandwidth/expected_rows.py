"""The tables of expected figures that apply on a host."""

from __future__ import annotations

from probes.bandwidth.model.expected import ExpectedPair
from probes.bandwidth.planning.expected_pairs import rows_of
from probes.base.origin import Source
from probes.host.protocol import Host
from tui.files.expected_file import read_table, site_table


def expected_rows(host: Host, given: str | None = None) -> tuple[tuple[ExpectedPair, ...], str]:
    """Return what machines reach, and why the site's table is not used, else "".

    A simulated node has no site. Raise TableError for a `given` file that cannot be used.
    """
    if given is not None:
        return rows_of(read_table(given)), ""
    if host.origin.source is not Source.LIVE:
        return rows_of(None), ""
    table, trouble = site_table()
    return rows_of(table), trouble
