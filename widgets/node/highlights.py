"""What stands out in the drawings of a node: the selection, marks, detours, what a filter leaves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from functools import cached_property

from probes.base.frozen import frozen
from probes.base.grouping import grouped
from probes.base.text import join_limited
from probes.queries.usable_here import UsableHere
from probes.snapshot.nic_roles import NicRole
from probes.topology.paths import Topology
from widgets.base.lines import Line, Run, Tone, wrapped

NOTHING_LIMITED = UsableHere()
NOT_USABLE_MARK = "⊘"  # by this session: its container, control group, namespace or user
DETOUR_MARK = "▲"  # behind the word of a path through the root complex
UNPROVEN_MARK = "?"  # behind the word of a path on which data may be wrong
_MOST_NAMES = 16


@frozen
class Highlights:
    """What is selected and what stands out."""

    selected: str = ""
    partners: frozenset[str] = frozenset()
    on_path: frozenset[str] = frozenset()  # BDFs on the path to the partner
    marks: Mapping[str, Run] = field(default_factory=dict)  # of findings, by endpoint
    measured: Mapping[str, Run] = field(default_factory=dict)  # by GPU: bandwidth to its best NIC
    detours: frozenset[tuple[str, str]] = frozenset()  # (GPU, NIC) below one switch, through the root complex
    roles: Mapping[str, NicRole] = field(default_factory=dict)  # by NIC
    usable: UsableHere = NOTHING_LIMITED
    only: frozenset[str] | None = None  # endpoints that match the filter; None: no filter
    words: Mapping[str, str] = field(default_factory=dict)  # what is wrong, "slow", by endpoint
    unproven: Mapping[tuple[str, str], str] = field(default_factory=dict)  # why data may be wrong

    def tone(self, id: str, otherwise: Tone) -> Tone:  # noqa: A002 - an Endpoint's own word
        """Return the tone of an endpoint or a switch under this selection."""
        if id == self.selected:
            return Tone.CURSOR
        if id in self.partners or id in self.on_path:
            return Tone.LIT
        return Tone.DIM if id in self.not_usable else otherwise

    def path_mark(self, row: str, column: str) -> str:
        """Return the mark behind the word of a path, "" for none; wrong data is worse than a detour."""
        if (row, column) in self.unproven:
            return UNPROVEN_MARK
        return DETOUR_MARK if (row, column) in self.detours else ""

    def mark(self, id: str) -> Run | None:  # noqa: A002 - an Endpoint's own word
        """Return the mark of an endpoint; None for none."""
        found = self.marks.get(id)
        if found is None and id in self.not_usable:
            return Run(NOT_USABLE_MARK, Tone.WARNING)
        return found

    def word(self, id: str) -> Run:  # noqa: A002 - an Endpoint's own word
        """Return what is wrong with an endpoint, " slow"; an empty run for nothing."""
        word = self.words.get(id, "")
        mark = self.mark(id)
        return Run(f" {word}" if word else "", mark.tone if mark is not None else Tone.WARNING)

    @cached_property
    def not_usable(self) -> dict[str, str]:
        """The endpoints that this session may not use, with the reason."""
        return self.usable.not_usable


def not_usable_legend(topology: Topology, width: int, highlights: Highlights) -> list[Line]:
    """Name the GPUs, NICs and NUMA nodes that this session may not use, a line for each reason."""
    why_not, numa = highlights.not_usable, highlights.usable.other_numa_nodes
    ends = [end for end in (*topology.gpus, *topology.nics) if end.id in why_not]
    names_of = [*((why_not[end.id], end.label) for end in ends), *((numa[at], f"NUMA {at}") for at in numa)]
    who = "This container" if highlights.usable.is_container else "This session"
    lines: list[Line] = []
    for why, names in grouped(names_of).items():
        text = f"{NOT_USABLE_MARK} {who} may not use {join_limited(names, _MOST_NAMES)}: {why}"
        lines.extend(wrapped(text, width, Tone.WARNING))
    return lines
