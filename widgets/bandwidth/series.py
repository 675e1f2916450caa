"""Tests before they run: what they prove and can reach, their commands, and who would feel them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from rich.cells import cell_len

from probes.bandwidth.model.planned_test import PlannedTest, Series
from probes.bandwidth.model.request import Mode
from probes.bandwidth.planning.inventory import Available
from probes.bandwidth.tools.command import is_host
from probes.bandwidth.tools.tool import Purpose
from probes.base.unknown import Unknown
from widgets.base.figures import gbps, minutes
from widgets.base.lines import Line, Run, Tone, folded, line, wrapped

_THIS_NODE = "THIS-NODE"
_MOST_NOT_BEGUN = 8


def draw_series(series: Series, width: int, node: str = "") -> list[Line]:
    """All of it, one test after another; `node` is this node's name, as a peer would call it."""
    told = f"{series.title} · about {minutes(series.seconds)}"
    lines: list[Line] = wrapped(told, width, Tone.TITLE)
    proved = None
    for test in series.tests:
        if len(series.tests) > 1:
            lines += [(), *wrapped(test.title, width, Tone.TITLE)]
        if test.purpose != proved:
            lines += draw_purpose(test.purpose, width, "  ")
        proved = test.purpose
        lines += draw_commands(test, width, node)
        lines += draw_limits([test], width, Tone.DIM, "  ")
        for note in test.notes:
            lines += wrapped(note, width, Tone.WARNING, "  ")
    return [*lines, *draw_left_out(series, width)]


def draw_purpose(purpose: Purpose, width: int, indent: str = "") -> list[Line]:
    """What a test shows, and what it does not."""
    shown = wrapped(f"shows: {purpose.proves}", width, Tone.DIM, indent)
    return [*shown, *wrapped(f"does not show: {purpose.not_proven}", width, Tone.DIM, indent)]


def draw_limits(
    tests: Sequence[PlannedTest], width: int, tone: Tone = Tone.TITLE, indent: str = ""
) -> list[Line]:
    """What they can reach at most, the lowest first; nothing where that is not known."""
    limits: dict[float, list[str]] = {}
    for test in tests:
        least = test.limit.least
        if least is not None and not isinstance(least.nominal_gbps, Unknown):
            limits.setdefault(least.nominal_gbps, []).append(f"{least.name} ({least.why})")
    lines: list[Line] = []
    for number, (nominal, names) in enumerate(sorted(limits.items())):
        several = f", in {len(names)} tests" if len(limits) > 1 else ""
        alike = f"; {len(set(names)) - 1} others are alike" if len(set(names)) > 1 else ""
        told = f"{'' if number else 'at most '}{gbps(nominal)}{several}: {names[0]}{alike}"
        lines += wrapped(told, width, tone, indent)
    return lines


def draw_left_out(series: Series, width: int) -> list[Line]:
    """What this node cannot run, and why."""
    lines: list[Line] = [(), (Run("Left out:", Tone.TITLE),)] if series.left_out else []
    for one in series.left_out:
        lines += wrapped(f"{one.title}: {one.reason}", width, Tone.WARNING, "  ")
    return lines


def draw_not_started(tests: Sequence[PlannedTest], width: int) -> list[Line]:
    """The tests that a series has not come to; of many, the first."""
    listed = ", ".join(test.title for test in tests[:_MOST_NOT_BEGUN])
    more = f" and {len(tests) - _MOST_NOT_BEGUN} more" if len(tests) > _MOST_NOT_BEGUN else ""
    return [(), *wrapped(f"Not started: {listed}{more}", width, Tone.WARNING)] if tests else []


def draw_affected(felt: Sequence[str], width: int) -> list[Line]:
    """Who would feel the tests."""
    lines: list[Line] = [line(Run("This would affect running jobs:", Tone.WARNING))]
    for one in felt:
        lines += wrapped(f"▲ {one}", width, Tone.WARNING, "  ")
    return lines


# Commands


def draw_commands(test: PlannedTest, width: int, node: str = "") -> list[Line]:
    """Each end's command in one line however long it is, so that it can be copied; then the peer's."""
    del width
    lines: list[Line] = []
    for end in test.processes:
        lines.append(line(Run(f"  {end.name}: ", Tone.DIM), Run(shlex.join(end.command.argv), Tone.GOOD)))
    if test.for_peer:
        lines.append(line(Run("  on the peer: ", Tone.DIM), Run(peer_command(test, node), Tone.GOOD)))
        lines.extend((Run(f"  {told}", Tone.DIM),) for told in _peer_notes(test, node))
    return lines


def draw_for_peer(test: PlannedTest, width: int, node: str) -> list[Line]:
    """The peer's command in a pane, where a key copies it; nothing where nobody has to start one."""
    if not test.for_peer:
        return []
    told = "THEN START THIS ON THE PEER" if test.setup is Mode.SERVER else "START THIS ON THE PEER FIRST"
    lines: list[Line] = [(), (Run(told, Tone.TITLE), Run("  c: copy", Tone.DIM))]
    lines += command_lines(peer_command(test, node), width)
    for note in _peer_notes(test, node)[1:]:  # when it is to be started says the heading
        lines += wrapped(note, width, Tone.DIM)
    return lines


def peer_command(test: PlannedTest, node: str) -> str:
    """What somebody at the peer has to start, as a shell takes it; "" where nobody has to.

    A client names its server: `node`, where that is a host's name and no option or words for an unknown one.
    """
    if not test.for_peer:
        return ""
    return shlex.join((*test.for_peer, _name_of(node)) if test.setup is Mode.SERVER else test.for_peer)


def _name_of(node: str) -> str:
    return node if is_host(node) else _THIS_NODE


def _peer_notes(test: PlannedTest, node: str) -> list[str]:
    notes = [
        "start it there when the server here waits"
        if test.setup is Mode.SERVER
        else "start it there before you run this",
        "written for a peer like this node: the RDMA device (-d) and the GPU may have other names there",
    ]
    if test.setup is Mode.SERVER:
        name = _name_of(node)
        other = "a" if name == _THIS_NODE else "or another"
        notes.append(f"{name}: {other} name or address of this node that the peer can reach")
    return notes


def command_lines(command: str, width: int, indent: str = "") -> list[Line]:
    """A command broken between its words, as a shell takes it back."""
    pieces = [indent]
    for word in command.split(" "):
        if pieces[-1].strip() and cell_len(pieces[-1]) + cell_len(word) + 3 > width:
            pieces[-1] += " \\"
            pieces.append(f"{indent}  ")
        pieces[-1] += f" {word}" if pieces[-1].strip() else word
    return [piece for text in pieces for piece in folded((Run(text),), width)]


# The inventory


def draw_inventory(available: Sequence[Available], width: int) -> list[Line]:
    """Each tool with version and path, what it proves and what not; the same words once for a family."""
    lines: list[Line] = []
    cells = max((len(one.tool) for one in available), default=0)
    for number, one in enumerate(available):
        lines += _tool(one, cells, width)
        following = available[number + 1] if number + 1 < len(available) else None
        # What is true of several tools in a row is said behind the last of them.
        if one.way_to_get and (following is None or following.way_to_get != one.way_to_get):
            lines += wrapped(f"to get it: {one.way_to_get}", width, Tone.DIM, "    ")
        if following is None or following.purpose.proves != one.purpose.proves:
            lines += draw_purpose(one.purpose, width, "    ")
    return lines


def _tool(one: Available, cells: int, width: int) -> list[Line]:
    mark = Run("✓", Tone.GOOD) if one.can_run and not one.lacks else Run("–", Tone.DIM)
    if one.can_run and one.lacks:
        mark = Run("▲", Tone.WARNING)
    told = [one.lacks] if one.lacks else []
    if one.can_run:
        assert not isinstance(one.path, Unknown)
        version = "version unknown" if isinstance(one.version, Unknown) else f"version {one.version}"
        gpu = ["GPU memory by DMA-BUF or nvidia-peermem"] if one.dmabuf is True else []
        told = [one.path, version, *gpu, *told]
    text = wrapped(" · ".join(told), width - cells - 3, Tone.PLAIN if one.can_run else Tone.DIM)
    lines: list[Line] = [(mark, Run(" "), Run(f"{one.tool:<{cells}}", Tone.TITLE), Run(" "), *text[0])]
    return [*lines, *((Run(" " * (cells + 3)), *more) for more in text[1:])]
