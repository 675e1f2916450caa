"""The cables of nodes that are judged: what each node says of its own, and which of them end elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from probes.base.frozen import frozen
from probes.base.grouping import grouped
from probes.base.unknown import Maybe, Unknown, known
from probes.facts.rdma.cable_ends import CableEnd, ends_of_port
from probes.fleet.rails import CableFault, cable_faults, check_rails
from probes.fleet.traits import nics_of, place_of
from probes.queries.pcie_paths import functions_of
from probes.snapshot.examination import Examination


@frozen
class Cable:
    """A cable of an Ethernet port of a NIC."""

    slot: str  # place of the NIC in the PCI tree, as in Trait
    nic: str  # "mlx5_0"; of a bond with the netdev, "mlx5_bond_0 ens1f0np0"
    end: CableEnd | None
    why_unknown: str = ""  # with no end: "lldpd is not installed"


def cables_of(examination: Examination) -> tuple[Cable, ...]:
    """Return the cables of a node's Ethernet ports, without those of virtual functions."""
    ends, nics = examination.cable_ends, nics_of(examination)
    if isinstance(ends, Unknown) or isinstance(nics, Unknown):
        return ()
    functions = functions_of(examination)
    found = []
    for device in nics:
        bdf = known(device.bdf, "")
        place = place_of(functions.get(bdf), bdf)
        for port in device.ports:
            suffix = f"/{port.number}" if len(device.ports) > 1 else ""
            of_port = ends_of_port(ends, port)
            for netdev, end in of_port.items():
                member = f" {netdev}" if len(of_port) > 1 else ""
                why = end.detail or end.reason.value if isinstance(end, Unknown) else ""
                nic = f"{device.name}{suffix}{member}"
                found.append(Cable(f"{place}{suffix}", nic, known(end, None), why))
    return tuple(found)


def faults_of_type(
    cables: Mapping[str, Sequence[Cable]], moved: Sequence[Mapping[str, str]]
) -> tuple[CableFault, ...]:
    """Return the faults of nodes of one type; `moved`: slots under which those of each node are compared."""
    placed: dict[str, dict[tuple[str, int], Cable]] = {}
    for (node, own), slots in zip(cables.items(), moved, strict=True):
        of_slots = grouped((slots.get(cable.slot, cable.slot), cable) for cable in own)
        placed[node] = {
            (slot, number): cable
            for slot, of_slot in of_slots.items()
            for number, cable in enumerate(of_slot)
        }
    places = sorted({place for own in placed.values() for place in own})
    leaves: dict[str, dict[int, Maybe[CableEnd]]] = {
        node: {places.index(place): end for place, cable in own.items() if (end := cable.end) is not None}
        for node, own in placed.items()
    }
    return cable_faults(check_rails(leaves), lambda node, number: placed[node][places[number]].nic)
