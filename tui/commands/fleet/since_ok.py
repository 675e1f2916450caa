"""`gdrtop diff --since-ok`: what has changed on this node since it was last READY or ACTIVE."""

from __future__ import annotations

import argparse
from typing import TextIO

from probes.base.origin import Source
from probes.base.unknown import Unknown
from probes.checks.judgment import judge
from probes.fleet.compare import changes_between, compare_moments
from probes.fleet.summary import summarize
from probes.host.protocol import Host
from tui.command_line.arguments import TableOptions, UsageError, parsed
from tui.commands.check import examine_host
from tui.commands.fleet.output import fleet_document
from tui.files.since_ok import hostname_of, last_ok
from tui.runtime.json_values import write_document
from tui.runtime.open_host import NoSuchHost, open_host
from tui.runtime.printing import print_lines, text_width
from widgets.fleet.differences import draw_changes

_NEVER = (
    "this node has not been READY or ACTIVE since gdrtop first checked it as this user;"
    " gdrtop check saves its facts when it is"
)


def run_since_ok(options: argparse.Namespace, out: TextIO) -> int:
    """Compare this node with its last good check; return 1 if a fact has changed, else 0."""
    if options.sides:
        raise UsageError("--since-ok compares this node with itself; use it without A and B")
    if options.format == "wide" or options.no_header:
        raise UsageError("--since-ok prints no table; use it without --rows")
    host = open_host(options)
    if host.origin.source is not Source.LIVE:
        raise UsageError("--since-ok needs this node; use it without --demo, --root, --replay and --host")
    return write_since_ok(host, out, parsed(TableOptions, options))


def write_since_ok(host: Host, out: TextIO, options: TableOptions) -> int:
    """Print what has changed on a node since it last worked.

    Raises:
        NoSuchHost: it never did, or what was saved cannot be read.
    """
    examination = examine_host(host)
    before = last_ok(hostname_of(examination))
    if before is None:
        raise NoSuchHost(_NEVER)
    if isinstance(before, Unknown):
        raise NoSuchHost(before.detail)
    now = summarize(examination, judge(examination))
    since = changes_between(before, now)
    status = int(bool(since.changes))
    if options.format in ("json", "yaml"):
        write_document(fleet_document(compare_moments(before, now), status, host.origin), out, options.format)
    else:
        print_lines(draw_changes(since, text_width(out)), out, options.ascii)
    return status
