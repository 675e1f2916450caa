"""A line a rack with its NVLink domain, and in what its nodes differ."""

from __future__ import annotations

from collections.abc import Iterator

from probes.base.evidence import Severity
from probes.base.text import plural
from probes.fleet.compare import Fleet, Kind
from probes.fleet.node_set import fold_nodes
from probes.fleet.racks import Rack, racks_of
from widgets.base.health import SEVERITY_MARKS
from widgets.base.lines import Line, Run, behind, line, section, width_of, wrapped
from widgets.fleet.differences import label_of

_SHOWN = 8  # characters of a cluster UUID


def short_domain(domain: str) -> str:
    """Return the begin of a cluster UUID."""
    return domain[:_SHOWN]


def draw_racks(fleet: Fleet, width: int) -> list[Line]:
    """Draw the racks; nothing where NVLink ends at the nodes."""
    lines: list[Line] = []
    for rack in racks_of(fleet):
        lines += wrapped(_rack_line(rack), width, indent="  ", hanging="  ")
        for mark, text in _faults(rack):
            head = line("    ", mark, " ")
            lines += behind(head, wrapped(text, width - width_of(head)))
    return section("Racks", lines)


def _rack_line(rack: Rack) -> str:
    """Return "NVLink domain 51a01a7e: 17 of 18 nodes, 68 GPUs, clique 1, IMEX active: gpu[01-17]"."""
    seen, expected = len(rack.nodes), rack.expected_nodes
    of_all = (
        plural(seen, "node") if expected in (None, seen) else f"{seen} of {plural(expected or 0, 'node')}"
    )
    parts = [of_all, plural(rack.gpus, "GPU")]
    parts += [f"clique {_values(rack.cliques)}"] if rack.cliques else []
    parts += [f"IMEX {_values(rack.imex)}"] if rack.imex else []
    name = f"NVLink domain {short_domain(rack.domain)}" if rack.domain else "NVLink domain unknown"
    return f"{name}: {', '.join(parts)}: {fold_nodes(rack.nodes)}"


def _values(kinds: tuple[Kind, ...]) -> str:
    return (
        kinds[0].value
        if len(kinds) == 1
        else " / ".join(f"{kind.value} ({len(kind.nodes)})" for kind in kinds)
    )


def _faults(rack: Rack) -> Iterator[tuple[Run, str]]:
    for difference in rack.differences:
        label = label_of(
            difference.fact, [slot for slot in difference.slots if not slot.startswith("domain ")]
        )
        odd = fold_nodes([node for kind in difference.others for node in kind.nodes])
        where = f" on {odd}" if difference.rest else ""
        meaning = rack.meaning_of(difference)
        mark = SEVERITY_MARKS[Severity.WARNING if meaning else Severity.NOTE]
        yield mark, f"{label} differs{where}{meaning and f': {meaning}'}"
