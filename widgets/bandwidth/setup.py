"""A bandwidth test before it runs, on its screen: its settings as rows, and what would be run."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from probes.bandwidth.model.planned_test import PlannedTest, Series
from probes.bandwidth.tools.command import Refused
from probes.bandwidth.tools.tool import Purpose
from widgets.bandwidth.series import (
    command_lines,
    draw_affected,
    draw_for_peer,
    draw_left_out,
    draw_limits,
    draw_purpose,
)
from widgets.base.figures import minutes, plural
from widgets.base.lines import Line, Run, Tone, wrapped

_LABEL_WIDTH = 14
_MOST_COMMANDS = 24


@dataclass(frozen=True)
class SettingRow:
    """A row: its value, and a few dim words beside it."""

    name: str
    label: str
    value: str
    note: str = ""
    is_possible: bool = True
    is_typed: bool = False


def draw_settings(settings: Sequence[SettingRow], selected: str) -> list[Line]:
    """One line each; the selected one between the arrows that change it."""
    lines: list[Line] = []
    for one in settings:
        is_selected = one.name == selected
        left, right = (("[", "]") if one.is_typed else ("‹", "›")) if is_selected else (" ", " ")
        tone = Tone.CURSOR if is_selected else Tone.PLAIN if one.is_possible else Tone.DIM
        lines.append(
            (
                Run(f"{one.label:<{_LABEL_WIDTH}}", Tone.TITLE if is_selected else Tone.PLAIN, one.name),
                Run(f"{left} "),
                Run(one.value, tone),
                Run(f" {right}"),
                Run(f"  {one.note}" if one.note else "", Tone.DIM),
            )
        )
    return lines


def draw_planned(
    series: Series | Refused,
    width: int,
    node: str,
    affected_by: Sequence[str] = (),
    before: Sequence[Line] = (),
) -> list[Line]:
    """What it can reach at most and how long it takes, who would feel it, what it proves, every command.

    `node` is this node's name, as a peer would call it; `before` are lines on what was measured before.
    """
    if isinstance(series, Refused):
        return wrapped(f"This cannot run: {series.reason}.", width, Tone.WARNING)
    first = series.tests[0]
    count = f"{len(series.tests)} tests, " if len(series.tests) > 1 else ""
    lines = draw_limits(series.tests, width)
    if not lines:
        lines += wrapped("limit of the path unknown", width, Tone.DIM)
    lines.append((Run(f"takes {count}about {minutes(series.seconds)}"),))
    if affected_by:
        lines.extend(draw_affected(affected_by, width))
    # In a sweep only the names of the NICs differ: the first of each memory stands for all.
    of_memory: dict[str, Purpose] = {}
    for test in series.tests:
        of_memory.setdefault(test.memory, test.purpose)
    for purpose in of_memory.values():
        lines.extend(draw_purpose(purpose, width))
    for note in dict.fromkeys(note for test in series.tests for note in test.notes):
        lines.extend(wrapped(f"note: {note}", width))
    lines.extend([*before, *draw_for_peer(first, width, node)])
    lines.extend([(), (Run("COMMANDS" if len(series.tests) > 1 else first.title, Tone.TITLE),)])
    for test in series.tests[:_MOST_COMMANDS]:
        lines.extend(_commands(test, width, with_title=len(series.tests) > 1))
    if len(series.tests) > _MOST_COMMANDS:
        lines.append(
            (Run(f"and {plural(len(series.tests) - _MOST_COMMANDS, 'more test')} like these", Tone.DIM),)
        )
    return [*lines, *draw_left_out(series, width)]


def _commands(test: PlannedTest, width: int, with_title: bool) -> list[Line]:
    lines: list[Line] = [(Run(test.title, Tone.TITLE),)] if with_title else []
    for end in test.processes:
        where = f" at {end.host}" if end.host else ""
        lines.append((Run(f"{end.name}{where}:", Tone.DIM),))
        lines.extend(command_lines(shlex.join(end.command.argv), width, "  "))
    return lines
