"""The setup screen of bandwidth tests: the settings as rows, and the planned tests."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from probes.bandwidth.model.command import Refused
from probes.bandwidth.model.planned_series import PlannedTest, Purpose, Series
from probes.base.frozen import frozen
from probes.base.text import plural
from widgets.bandwidth.series import (
    command_lines,
    draw_affected,
    draw_expected,
    draw_for_peer,
    draw_left_out,
    draw_limits,
    draw_purpose,
)
from widgets.base.figures import minutes
from widgets.base.lines import Line, Run, Tone, wrapped

_LABEL_WIDTH = 14
_MOST_COMMANDS = 24


@frozen
class SettingRow:
    """A setting: its value, and a short note beside it."""

    name: str
    label: str
    value: str
    note: str = ""
    is_possible: bool = True
    is_typed: bool = False


def draw_settings(settings: Sequence[SettingRow], selected: str) -> list[Line]:
    """Return one line per setting; the selected value is between arrows."""
    lines: list[Line] = []
    for row in settings:
        is_selected = row.name == selected
        left, right = (("[", "]") if row.is_typed else ("‹", "›")) if is_selected else (" ", " ")
        tone = Tone.CURSOR if is_selected else Tone.PLAIN if row.is_possible else Tone.DIM
        label = Run(f"{row.label:<{_LABEL_WIDTH}}", Tone.TITLE if is_selected else Tone.PLAIN, row.name)
        note = Run(f"  {row.note}" if row.note else "", Tone.DIM)
        lines.append((label, Run(f"{left} "), Run(row.value, tone), Run(f" {right}"), note))
    return lines


def draw_planned(
    series: Series | Refused,
    width: int,
    node: str,
    affected: Sequence[str] = (),
    earlier: Sequence[Line] = (),
) -> list[Line]:
    """Return limit and duration of a series, the affected jobs, what it shows, and every command.

    `node` is the name of this node, as a peer calls it; `earlier` are lines about earlier results.
    """
    if isinstance(series, Refused):
        return wrapped(f"This cannot run: {series.reason}.", width, Tone.WARNING)
    first = series.tests[0]
    count = f"{len(series.tests)} tests, " if len(series.tests) > 1 else ""
    lines = draw_limits(series.tests, width)
    if not lines:
        lines += wrapped("path limit unknown", width, Tone.DIM)
    lines += draw_expected(series.tests, width)
    lines.append((Run(f"takes {count}about {minutes(series.seconds)}"),))
    if affected:
        lines.extend(draw_affected(affected, width))
    # In a sweep only the names of the NICs differ, so the first purpose of each memory stands for all.
    purposes: dict[str, Purpose] = {}
    for test in series.tests:
        purposes.setdefault(test.memory, test.purpose)
    for purpose in purposes.values():
        lines.extend(draw_purpose(purpose, width))
    for note in dict.fromkeys(note for test in series.tests for note in test.notes):
        lines.extend(wrapped(f"note: {note}", width))
    lines.extend([*earlier, *draw_for_peer(first, width, node)])
    lines.extend([(), (Run("COMMANDS" if len(series.tests) > 1 else first.title, Tone.TITLE),)])
    for test in series.tests[:_MOST_COMMANDS]:
        lines.extend(_commands(test, width, with_title=len(series.tests) > 1))
    if len(series.tests) > _MOST_COMMANDS:
        more = plural(len(series.tests) - _MOST_COMMANDS, "more test")
        lines.append((Run(f"and {more} like these", Tone.DIM),))
    return [*lines, *draw_left_out(series, width)]


def _commands(test: PlannedTest, width: int, with_title: bool) -> list[Line]:
    lines: list[Line] = [(Run(test.title, Tone.TITLE),)] if with_title else []
    for process in test.processes:
        where = f" on {process.host}" if process.host else ""
        lines.append((Run(f"{process.name}{where}:", Tone.DIM),))
        lines.extend(command_lines(shlex.join(process.command.argv), width, "  "))
    return lines
