"""Tests before they run: what they prove, their commands, what is left out, how long it takes."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from probes.bandwidth.choice import Setup
from probes.bandwidth.planned import PlannedTest, Series
from probes.unknown import Unknown
from widgets.figures import minutes
from widgets.lines import Line, Run, Tone, line, wrapped


def draw_series(series: Series, width: int, node: str = "") -> list[Line]:
    """All of it; `node` is this node's name, as a peer would call it."""
    told = f"{series.title} · about {minutes(series.seconds)}"
    lines: list[Line] = wrapped(told, width, Tone.TITLE)
    proved = None
    for test in series.tests:
        if len(series.tests) > 1:
            lines += [(), *wrapped(test.title, width, Tone.TITLE)]
        if test.purpose != proved:
            lines += wrapped(f"proves: {test.purpose.proves}", width, Tone.DIM, "  ")
            lines += wrapped(f"but {test.purpose.not_proven}", width, Tone.DIM, "  ")
        proved = test.purpose
        lines += draw_commands(test, width, node)
        lines += _limit(test, width)
        for note in test.notes:
            lines += wrapped(note, width, Tone.WARNING, "  ")
    return [*lines, *draw_left_out(series, width)]


def draw_left_out(series: Series, width: int) -> list[Line]:
    """What this node cannot run, and why."""
    lines: list[Line] = []
    for one in series.left_out:
        lines += [(), *wrapped(f"left out: {one.title}: {one.reason}", width, Tone.WARNING)]
    return lines


def draw_commands(test: PlannedTest, width: int, node: str = "") -> list[Line]:
    """Each end's command in one line however long it is, so that it can be copied; then the peer's."""
    del width
    lines: list[Line] = []
    for end in test.ends:
        lines.append(line(Run(f"  {end.name}: ", Tone.DIM), Run(shlex.join(end.command.argv), Tone.GOOD)))
    if test.for_peer:
        lines.append(line(Run("  at the peer: ", Tone.DIM), Run(peer_command(test, node), Tone.GOOD)))
        told = (
            "to be started there when the server here waits"
            if test.setup is Setup.SERVER
            else "has to wait there before this is run"
        )
        lines.append(line(Run(f"  {told}; -d names the peer's own RDMA device", Tone.DIM)))
    return lines


def peer_command(test: PlannedTest, node: str) -> str:
    """What somebody at the peer has to start, as a shell takes it; "" where nobody has to."""
    if not test.for_peer:
        return ""
    # A client names its server: this node.
    named = (*test.for_peer, node or "THIS-NODE") if test.setup is Setup.SERVER else test.for_peer
    return shlex.join(named)


def draw_felt(felt: Sequence[str], width: int) -> list[Line]:
    """Who would feel the tests."""
    lines: list[Line] = [line(Run("Somebody would feel it:", Tone.WARNING))]
    for one in felt:
        lines += wrapped(one, width, Tone.WARNING, "  ")
    return lines


def _limit(test: PlannedTest, width: int) -> list[Line]:
    least = test.limit.least
    if least is None or isinstance(least.nominal_gbps, Unknown):
        return []
    return wrapped(f"at most {least.nominal_gbps:.0f} Gb/s: {least.name}, {least.why}", width, Tone.DIM, "  ")
