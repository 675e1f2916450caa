"""What only the tables of checks, keys, themes and columns can refuse in a configuration."""

from __future__ import annotations

from collections.abc import Iterator

from probes.base.text import did_you_mean, printable
from tui.settings.configuration import Configuration


def more_errors(found: Configuration) -> Iterator[str]:
    """Yield what is wrong with silences, keys, theme and columns. Other commands do not load those tables."""
    if found.silences:
        from probes.checks.registry import CHECKS

        ids = {check.id for check in CHECKS}
        for silence in found.silences:
            if silence.id not in ids:
                hint = did_you_mean(silence.id, ids) or "; gdrtop check --all lists them"
                yield f"{silence.origin}: unknown check {printable(silence.id, 80)!r}{hint}"
    if found.is_about_screens:
        from tui.screens.own_settings import wrong_settings

        yield from wrong_settings(found)
