"""Where the cables of many nodes end: what is wrong, and the table for a spreadsheet."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from probes.base.text import join_limited
from probes.facts.rdma.cable_ends import CableEnd
from probes.fleet.compare import Fleet
from probes.fleet.rails import CableFault, CableFaultKind
from widgets.base.columns import Column, cells_of, draw_columns
from widgets.base.lines import Line, Run, Tone, section, wrapped

COLUMNS = ("NODE", "NIC", "SWITCH", "PORT", "DESCRIPTION", "UNKNOWN")
_NONE = "-"


def fault_words(fault: CableFault) -> str:
    """Return "gpu08: mlx5_0 and mlx5_1 have swapped cables, which end at leaf1 and leaf0"."""
    places = [f"{node} {nic}" for node, nic in zip(fault.nodes, fault.nics, strict=True)]
    switches = " and ".join(end.label for end in fault.ends)
    match fault.kind:
        case CableFaultKind.SWAPPED:
            nics = " and ".join(fault.nics)
            return f"{fault.nodes[0]}: {nics} have swapped cables, which end at {switches}"
        case CableFaultKind.SAME_PORT:
            return f"{join_limited(places)} report the same switch port, {fault.ends[0]}"
    return f"{places[0]} ends at switch {switches}, most other nodes at {fault.usual[0].label}"


def draw_cable_faults(fleet: Fleet, width: int) -> list[Line]:
    """Draw a line a cable that ends elsewhere than those of equal nodes; nothing if none does."""
    lines: list[Line] = []
    for fault in fleet.cable_faults:
        lines += wrapped(fault_words(fault), width, Tone.WARNING, "  ", "  ")
    return section("Cables", lines)


def cable_rows(fleet: Fleet) -> Iterator[tuple[str, ...]]:
    """Yield a row a cable, with the titles in COLUMNS."""
    for summary in fleet.summaries:
        for cable in summary.cables:
            end = cable.end or CableEnd("")
            yield (*(summary.name, cable.nic, end.label, end.port, end.port_description, cable.why_unknown),)


def draw_cables(fleet: Fleet) -> list[Line]:
    """Draw a heading and a row a cable; without one, say so."""
    rows = list(cable_rows(fleet))
    if not rows:
        return [
            (Run("no Ethernet port: for InfiniBand, gdrtop topo --ports and fleet bench ask the switches"),)
        ]
    columns = [
        Column(title, cells_of([row[number] or _NONE for row in rows], Run), 1)
        for number, title in enumerate(COLUMNS)
    ]
    return list(draw_columns(columns, [""] * len(rows), sys.maxsize))
