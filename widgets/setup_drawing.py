"""A bandwidth test before it runs: its settings as rows, and what would be run, with what it is good for."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from probes.bandwidth.commands import Refused
from probes.bandwidth.planned import PlannedTest, Series
from probes.unknown import Unknown
from widgets.figures import gbps, minutes
from widgets.lines import Line, Run, Tone, folded, wrapped

_LABEL_WIDTH = 14
_MOST_COMMANDS = 24


@dataclass(frozen=True)
class Setting:
    """A row: its value, and a few dim words beside it."""

    name: str
    label: str
    value: str
    note: str = ""
    is_possible: bool = True
    is_typed: bool = False


def draw_settings(settings: Sequence[Setting], selected: str) -> list[Line]:
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


def draw_series(series: Series | Refused, width: int, felt_by: Sequence[str] = ()) -> list[Line]:
    """What it can reach at most and how long it takes, who would feel it, what it proves, every command."""
    if isinstance(series, Refused):
        return wrapped(f"It cannot be run: {series.reason}.", width, Tone.WARNING)
    first = series.tests[0]
    count = f"{len(series.tests)} tests, " if len(series.tests) > 1 else ""
    lines = [*_limits(series, width), (Run(f"Takes {count}about {minutes(series.seconds)}"),)]
    if felt_by:
        lines.extend(draw_felt(felt_by, width))
    lines.extend(_told("Proves", first.purpose.proves, width, Tone.GOOD))
    lines.extend(_told("But", first.purpose.not_proven, width, Tone.WARNING))
    for note in dict.fromkeys(note for test in series.tests for note in test.notes):
        lines.extend(wrapped(f"Note: {note}", width))
    if first.for_peer:
        lines.extend(_for_peer(first, width))
    lines.extend([(), (Run("COMMANDS" if len(series.tests) > 1 else first.title, Tone.TITLE),)])
    for test in series.tests[:_MOST_COMMANDS]:
        lines.extend(_commands(test, width, with_title=len(series.tests) > 1))
    if len(series.tests) > _MOST_COMMANDS:
        lines.append((Run(f"and {len(series.tests) - _MOST_COMMANDS} more tests like these", Tone.DIM),))
    if series.left_out:
        lines.extend([(), (Run("LEFT OUT", Tone.TITLE),)])
        for left in series.left_out:
            lines.extend(wrapped(f"{left.title}: {left.reason}", width, Tone.DIM))
    return lines


def draw_felt(felt_by: Sequence[str], width: int) -> list[Line]:
    """Who would feel it."""
    lines: list[Line] = [(Run("SOMEBODY WOULD FEEL IT", Tone.TITLE),)]
    for told in felt_by:
        lines.extend(wrapped(f"▲ {told}", width, Tone.WARNING, "  "))
    return lines


def for_peer_text(test: PlannedTest, here: str) -> str:
    """The command that somebody at the peer has to start; "" where none is needed.

    A client needs this node's name behind it, `here`.
    """
    if not test.for_peer:
        return ""
    is_client = test.setup.value == "server"
    return shlex.join((*test.for_peer, here) if is_client else test.for_peer)


def _limits(series: Series, width: int) -> list[Line]:
    """The lowest limit of the tests, and how many have which other one."""
    limits: dict[float, list[str]] = {}
    for test in series.tests:
        least = test.limit.least
        if least is not None and not isinstance(least.nominal_gbps, Unknown):
            limits.setdefault(least.nominal_gbps, []).append(f"{least.name} ({least.why})")
    if not limits:
        return wrapped("At most: what the way can carry is not known.", width, Tone.DIM)
    lines: list[Line] = []
    for number, (nominal, names) in enumerate(sorted(limits.items())):
        several = f", in {len(names)} tests" if len(limits) > 1 else ""
        alike = f"; {len(set(names)) - 1} others alike" if len(set(names)) > 1 else ""
        told = f"{'' if number else 'At most '}{gbps(nominal)}{several}: {names[0]}{alike}"
        lines.extend(wrapped(told, width, Tone.TITLE))
    return lines


def _told(label: str, text: str, width: int, tone: Tone) -> list[Line]:
    head, *rest = wrapped(f"{label}: {text}", width, Tone.PLAIN)
    shown = head[0].text
    return [(Run(shown[: len(label) + 1], tone), Run(shown[len(label) + 1 :])), *rest]


def _for_peer(test: PlannedTest, width: int) -> list[Line]:
    told = "START THIS AT THE PEER FIRST" if test.setup.value == "client" else "THEN START THIS AT THE PEER"
    lines: list[Line] = [(), (Run(told, Tone.TITLE), Run("  c copies it", Tone.DIM))]
    lines.extend(command_lines(for_peer_text(test, "THIS-NODE"), width))
    if test.setup.value == "server":
        lines.extend(
            wrapped("THIS-NODE: a name or address of this node that the peer reaches", width, Tone.DIM)
        )
    lines.extend(
        wrapped(
            "for a peer of this node's kind: its devices may have other names and numbers", width, Tone.DIM
        )
    )
    return lines


def _commands(test: PlannedTest, width: int, with_title: bool) -> list[Line]:
    lines: list[Line] = [(Run(test.title, Tone.TITLE),)] if with_title else []
    for end in test.ends:
        where = f" at {end.host}" if end.host else ""
        lines.append((Run(f"{end.name}{where}:", Tone.DIM),))
        lines.extend(command_lines(shlex.join(end.command.argv), width, "  "))
    return lines


def command_lines(command: str, width: int, indent: str = "") -> list[Line]:
    """A command broken between its words, as a shell takes it back."""
    pieces = [indent]
    for word in command.split(" "):
        if pieces[-1].strip() and cell_len(pieces[-1]) + cell_len(word) + 3 > width:
            pieces[-1] += " \\"
            pieces.append(f"{indent}  ")
        pieces[-1] += f" {word}" if pieces[-1].strip() else word
    return [piece for text in pieces for piece in folded((Run(text),), width)]
