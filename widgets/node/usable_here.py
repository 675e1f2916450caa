"""The mark of what this session may not use, and the lines that explain it."""

from __future__ import annotations

from probes.queries.evidence_list import join_limited
from probes.topology.paths import Topology
from widgets.base.lines import Line, Run, Tone, wrapped
from widgets.node.highlights import Highlights
from widgets.node.matrix import NOT_USABLE_MARK as MARK

_MOST_NAMES = 16


def legend(topology: Topology, width: int, highlights: Highlights) -> list[Line]:
    """Name the GPUs, NICs and NUMA nodes that this session may not use, a line for each reason."""
    reasons: dict[str, list[str]] = {}
    for end in (*topology.gpus, *topology.nics):
        if end.id in highlights.not_usable:
            reasons.setdefault(highlights.not_usable[end.id], []).append(end.label)
    for number, why in highlights.usable.other_numa_nodes.items():
        reasons.setdefault(why, []).append(f"NUMA {number}")
    who = "This container" if highlights.usable.is_container else "This session"
    lines: list[Line] = []
    for why, names in reasons.items():
        text = f"{MARK} {who} may not use {join_limited(names, _MOST_NAMES)}: {why}"
        lines.extend(wrapped(text, width, Tone.WARNING))
    return lines


def mark_of(highlights: Highlights, end: str) -> Run | None:
    """Return the mark of an endpoint that this session may not use."""
    return Run(MARK, Tone.WARNING) if end in highlights.not_usable else None
