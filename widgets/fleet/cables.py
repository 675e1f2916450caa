"""Where the cables of many nodes end: what is wrong, and the table for a spreadsheet."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from probes.fleet.cables import Cable
from probes.fleet.compare import Fleet
from probes.fleet.rails import CableFault, CableFaultKind
from widgets.base.columns import Column, cells_of, draw_columns
from widgets.base.lines import Line, Run, Tone, section, wrapped

COLUMNS = ("NODE", "NIC", "SWITCH", "PORT", "DESCRIPTION", "UNKNOWN")
_TWO = (CableFaultKind.SWAPPED, CableFaultKind.SAME_PORT)
_NONE = "-"


def fault_words(fault: CableFault, nics: Sequence[str]) -> str:
    """Return "gpu08: mlx5_0 and mlx5_1 have swapped cables, …"; `nics`: what is at each place."""
    nodes = [node for node, _ in fault.places]
    switches = [end.label for end in fault.ends]
    if fault.kind is CableFaultKind.SWAPPED:
        return (
            f"{nodes[0]}: {nics[0]} and {nics[1]} have swapped cables, which end at {switches[0]} and"
            f" {switches[1]}"
        )
    if fault.kind is CableFaultKind.SAME_PORT:
        places = " and ".join(f"{node} {nic}" for node, nic in zip(nodes, nics, strict=True))
        return f"{places} report the same switch port, {fault.ends[0]}"
    return f"{nodes[0]} {nics[0]} ends at switch {switches[0]}, most other nodes at {fault.usual[0].label}"


def draw_cable_faults(fleet: Fleet, width: int) -> list[Line]:
    """Draw a line a cable that ends elsewhere than those of equal nodes; nothing if none does."""
    lines: list[Line] = []
    for found in fleet.cable_faults:
        lines += wrapped(fault_words(found.fault, found.nics), width, Tone.WARNING, "  ", "  ")
    return section("Cables", lines)


def cable_rows(fleet: Fleet) -> Iterator[tuple[str, ...]]:
    """Yield a row a cable, with the titles in COLUMNS."""
    for summary in fleet.summaries:
        for cable in summary.cables:
            yield (summary.name, cable.nic, *_cells(cable))


def _cells(cable: Cable) -> tuple[str, str, str, str]:
    end = cable.end
    return ("", "", "", cable.why_unknown) if end is None else (end.label, end.port, end.port_description, "")


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
