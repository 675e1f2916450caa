"""The line on top: the word, by which path, for how many, and the first reason."""

from __future__ import annotations

from probes.checks.verdict import State, Verdict
from probes.gpudirect import GdrPath
from probes.origin import Origin, Source
from widgets.lines import Line, Run, Tone

_MARKS = {
    State.ACTIVE: ("●", Tone.GOOD),
    State.READY: ("●", Tone.GOOD),
    State.DEGRADED: ("▲", Tone.WARNING),
    State.BROKEN: ("✗", Tone.BAD),
    State.UNKNOWN: ("?", Tone.WARNING),
    State.NOT_APPLICABLE: ("–", Tone.DIM),
}
_SOURCES = {Source.TREE: "TREE", Source.SIMULATED: "SIMULATED", Source.RECORDED: "RECORDED"}


def origin_run(origin: Origin) -> Run:
    """What is not this live machine says so."""
    word = _SOURCES.get(origin.source)
    return Run(f" {word} {origin.label} ", Tone.CURSOR) if word else Run("")


def draw(verdict: Verdict) -> Line:
    """As "● READY by DMA-BUF · 8/8 GPUs near a NIC"; the reason is the caller's to place."""
    mark, tone = _MARKS[verdict.state]
    runs = [Run(f"{mark} {verdict.state.value}", tone)]
    if verdict.path is not None:
        runs.append(Run(f" by {'DMA-BUF' if verdict.path is GdrPath.DMABUF else 'peermem'}"))
    if verdict.gpus and verdict.state is not State.NOT_APPLICABLE:
        runs.append(Run(f" · {verdict.gpus_served}/{verdict.gpus} GPUs near a NIC"))
    return tuple(runs)
