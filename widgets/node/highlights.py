"""What stands out in the drawings of a node: the selection, marks, detours, what a filter leaves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from functools import cached_property

from probes.base.frozen import frozen
from probes.queries.usable_here import UsableHere
from probes.snapshot.nic_roles import NicRole
from widgets.base.lines import Run, Tone

NOTHING_LIMITED = UsableHere()


@frozen
class Highlights:
    """What is selected and what stands out."""

    selected: str = ""
    partners: frozenset[str] = frozenset()
    on_path: frozenset[str] = frozenset()  # BDFs on the path to the partner
    marks: Mapping[str, Run] = field(default_factory=dict)  # of findings, by endpoint or BDF
    measured: Mapping[str, Run] = field(default_factory=dict)  # by GPU: bandwidth to its best NIC
    detours: frozenset[tuple[str, str]] = frozenset()  # (GPU, NIC) below one switch, through the root complex
    roles: Mapping[str, NicRole] = field(default_factory=dict)  # by NIC
    usable: UsableHere = NOTHING_LIMITED
    only: frozenset[str] | None = None  # endpoints that match the filter; None: no filter

    def tone(self, id: str, otherwise: Tone) -> Tone:  # noqa: A002 - an Endpoint's own word
        """Return the tone of an endpoint or a switch under this selection."""
        if id == self.selected:
            return Tone.CURSOR
        if id in self.partners or id in self.on_path:
            return Tone.LIT
        return Tone.DIM if id in self.not_usable else otherwise

    @cached_property
    def not_usable(self) -> dict[str, str]:
        """The endpoints that this session may not use, with the reason."""
        return self.usable.not_usable
