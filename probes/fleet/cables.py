"""The cables of nodes that are judged: what each node says of its own, and which of them end elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from probes.base.frozen import frozen
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


@frozen
class NodeCableFault:
    """A cable fault with the names of NICs on their nodes."""

    fault: CableFault
    nics: tuple[str, ...]  # of each place


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
                known_end, why = (
                    (None, end.detail or end.reason.value) if isinstance(end, Unknown) else (end, "")
                )
                found.append(Cable(f"{place}{suffix}", f"{device.name}{suffix}{member}", known_end, why))
    return tuple(found)


def faults_of_type(
    cables: Mapping[str, Sequence[Cable]], moved: Sequence[Mapping[str, str]]
) -> list[NodeCableFault]:
    """Return the faults of nodes of one type; `moved`: slots under which those of each node are compared."""
    keyed: dict[str, dict[tuple[str, int], Cable]] = {}
    for (node, own), slots in zip(cables.items(), moved, strict=True):
        counts: dict[str, int] = {}
        for cable in own:
            slot = slots.get(cable.slot, cable.slot)
            counts[slot] = counts.get(slot, 0) + 1
            keyed.setdefault(node, {})[slot, counts[slot]] = cable
    places = sorted({place for at in keyed.values() for place in at})
    leaves: dict[str, dict[int, Maybe[CableEnd]]] = {node: {} for node in keyed}
    for node, at in keyed.items():
        for number, place in enumerate(places):
            if place in at and (end := at[place].end) is not None:
                leaves[node][number] = end
    return [
        NodeCableFault(fault, tuple(keyed[node][places[number]].nic for node, number in fault.places))
        for fault in cable_faults(check_rails(leaves))
    ]
