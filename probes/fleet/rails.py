"""Rails: the NICs that stand in the same place of every node, and the GPU of each.

Rail k of all nodes is meant to end at the same leaf switch, so that traffic between equal places never
crosses the spine. A rail is counted from 0 in the order of the nearest GPU, then of the PCI address. Names of
RDMA devices do not decide: if a NIC is missing, all names after it change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from probes.base.frozen import frozen
from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.node import Node
from probes.facts.rdma.cxi import has_verbs
from probes.facts.rdma.devices import RdmaDevice, RdmaFacts, is_software
from probes.host.values import RDMA_CLASS
from probes.topology.nccl_words import ORDER
from probes.topology.paths import Topology


@frozen
class Rail:
    """One NIC of a node in its place."""

    number: int  # from 0
    nic: str  # RDMA device
    port: int
    gpu: str | None  # BDF of its nearest GPU; None: the node has none
    gpu_label: str  # "GPU3"; "" without a GPU
    bdf: str
    link_layer: str  # "InfiniBand" or "Ethernet"
    netdev: Maybe[str]
    is_active: bool  # the port is ACTIVE, or its state unknown


Rails = Maybe[tuple[Rail, ...]]  # of a node


@frozen
class _Nic:
    """A NIC that may be a rail, with what decides its place."""

    device: RdmaDevice
    bdf: str
    kind: tuple[str, str]  # link layer and hardware type
    distance: int  # of the nearest GPU, in NCCL's order of words
    gpu: int | None  # its index


def rails_of(node: Node, topology: Topology) -> Rails:
    """Return a node's rails: its NICs of the most frequent kind, among those nearest to its GPUs.

    A NIC without an active port keeps its number; `with_equal_numbers` compares the nodes.
    """
    rdma = node.rdma
    if isinstance(rdma, Unknown):
        return rdma
    nics = _nics(topology, rdma)
    if topology.gpus and nics:
        nearest = min(nic.distance for nic in nics)
        nics = [nic for nic in nics if nic.distance == nearest]
    if not nics:
        return Unknown(Reason.NOT_THERE, RDMA_CLASS, "no NIC that verbs can use")
    kinds = Counter(nic.kind for nic in nics)
    kind = max(kinds, key=lambda each: (kinds[each], each))
    chosen = [nic for nic in nics if nic.kind == kind]
    chosen.sort(key=lambda nic: (nic.gpu is None, nic.gpu or 0, nic.bdf))
    return tuple(_rail(topology, number, nic) for number, nic in enumerate(chosen))


def with_equal_numbers(nodes: Mapping[str, Rails]) -> dict[str, Rails]:
    """Renumber the rails of several nodes: a node with a missing NIC gets the numbers of the others.

    The PCI addresses that most nodes have are the reference. A node whose addresses are all among them takes
    their numbers; another one, such as another type of node, keeps its own.
    """
    places = Counter(
        tuple(rail.bdf for rail in own) for own in nodes.values() if not isinstance(own, Unknown)
    )
    if not places:
        return dict(nodes)
    reference = max(places, key=lambda bdfs: (places[bdfs], len(bdfs), bdfs))
    return {name: _renumbered(own, reference) for name, own in nodes.items()}


def _renumbered(rails: Rails, reference: tuple[str, ...]) -> Rails:
    if isinstance(rails, Unknown) or not {rail.bdf for rail in rails} < set(reference):
        return rails
    numbered = (replace(rail, number=reference.index(rail.bdf)) for rail in rails)
    return tuple(sorted(numbered, key=lambda rail: rail.number))


def _nics(topology: Topology, rdma: RdmaFacts) -> list[_Nic]:
    indexes = {gpu.id: place for place, gpu in enumerate(topology.gpus)}
    found = []
    for device in rdma.devices:
        if is_software(device) or not has_verbs(device) or not device.ports:
            continue
        words = {gpu: topology.paths.get((gpu, device.name)) for gpu in indexes}
        distances = [
            (ORDER[path.nccl_pcie], indexes[gpu])
            for gpu, path in words.items()
            if path is not None and not isinstance(path.nccl_pcie, Unknown)
        ]
        distance, nearest = min(distances, default=(len(ORDER), None))
        kind = (known(_port(device)[1], "?"), known(device.hca_type, "?"))
        found.append(_Nic(device, known(device.bdf, ""), kind, distance, nearest))
    return found


def _port(device: RdmaDevice) -> tuple[int, Maybe[str]]:
    """Return number and link layer of the port that counts: the first ACTIVE one, else the first."""
    active = next((port for port in device.ports if port.is_active), device.ports[0])
    return active.number, active.link_layer


def _rail(topology: Topology, number: int, nic: _Nic) -> Rail:
    port = next(port for port in nic.device.ports if port.number == _port(nic.device)[0])
    # A GPU that has this NIC as its best one; of two equally near ones the first.
    gpus = [gpu for gpu in topology.gpus if topology.best_nics.get(gpu.id, ())[:1] == (nic.device.name,)]
    if not gpus and nic.gpu is not None:
        gpus = [topology.gpus[nic.gpu]]
    return Rail(
        number=number,
        nic=nic.device.name,
        port=port.number,
        gpu=gpus[0].id if gpus else None,
        gpu_label=gpus[0].label if gpus else "",
        bdf=nic.bdf,
        link_layer=known(port.link_layer, ""),
        netdev=port.netdev,
        is_active=not port.is_down,
    )
