"""Rails: the NICs that stand in the same place of every node, and the GPU of each.

Rail k of all nodes is meant to end at the same leaf switch, so that traffic between equal places never
crosses the spine. A rail is counted from 0 in the order of the nearest GPU, then of the PCI address. Names of
RDMA devices do not decide: if a NIC is missing, all names after it change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from functools import partial
from itertools import combinations

from probes.base.frozen import frozen
from probes.base.grouping import grouped
from probes.base.unknown import Maybe, Reason, Unknown, known, map_known
from probes.facts.node import Node
from probes.facts.rdma.cable_ends import CableEnd, Neighbors, heard_on, infiniband_end, read_neighbors
from probes.facts.rdma.cxi import has_verbs
from probes.facts.rdma.devices import RdmaDevice, RdmaFacts, RdmaPort, is_software
from probes.facts.rdma.roce import netdevs_of
from probes.host.protocol import Host
from probes.host.values import RDMA_CLASS
from probes.topology.nccl_paths import ORDER
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
    netdev: Maybe[str]  # of a bond that of its first port
    is_active: bool  # the port is ACTIVE, or its state unknown


Rails = Maybe[tuple[Rail, ...]]  # of a node


@frozen
class _Nic:
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
    found = dict(nodes)
    for name, own in nodes.items():
        if not isinstance(own, Unknown) and {rail.bdf for rail in own} < set(reference):
            numbered = (replace(rail, number=reference.index(rail.bdf)) for rail in own)
            found[name] = tuple(sorted(numbered, key=lambda rail: rail.number))
    return found


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
        kind = (known(_port(device).link_layer, "?"), known(device.hca_type, "?"))
        found.append(_Nic(device, known(device.bdf, ""), kind, distance, nearest))
    return found


def _port(device: RdmaDevice) -> RdmaPort:
    """Return the port that counts: the first ACTIVE one, else the first."""
    return next((port for port in device.ports if port.is_active), device.ports[0])


def _rail(topology: Topology, number: int, nic: _Nic) -> Rail:
    port = _port(nic.device)
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
        netdev=next(iter(netdevs_of(port)), port.netdev),
        is_active=not port.is_down,
    )


# Where the cables of rails end.

_ENOUGH = 2  # nodes with a known leaf


@frozen
class RailLeaves:
    """Where one rail of all nodes ends."""

    rail: int
    leaves: Mapping[str, Maybe[CableEnd]]  # by node

    @property
    def known(self) -> dict[str, CableEnd]:
        """The ends that are known and called the same on all nodes."""
        ends = ((node, end) for node, end in self.leaves.items() if not isinstance(end, Unknown))
        return {node: end for node, end in ends if end.is_comparable}

    @property
    def _counts(self) -> Counter[str]:
        return Counter(end.switch_id for end in self.known.values())

    @property
    def usual(self) -> CableEnd | None:
        """An end at the leaf of most nodes; None: fewer than two are known, or no leaf has more than half."""
        found = self._counts
        switch, count = found.most_common(1)[0] if found else ("", 0)
        if sum(found.values()) < _ENOUGH or 2 * count <= sum(found.values()):
            return None
        return next(end for end in self.known.values() if end.switch_id == switch)

    @property
    def elsewhere(self) -> dict[str, CableEnd]:
        """Nodes whose rail ends at another leaf than that of most nodes, and with few other nodes.

        A leaf with more than a tenth of the nodes belongs to another group of nodes, not to a wrong cable.
        """
        counts, usual = self._counts, self.usual
        most = max(1, sum(counts.values()) // 10)
        return {
            node: end
            for node, end in self.known.items()
            if usual is not None and end.switch_id != usual.switch_id and counts[end.switch_id] <= most
        }

    @property
    def count(self) -> int:
        """The number of different leaves that are known."""
        return len(self._counts)

    @property
    def unknown(self) -> dict[str, Unknown]:
        """Nodes whose leaf is unknown."""
        return {node: leaf for node, leaf in self.leaves.items() if isinstance(leaf, Unknown)}


def read_leaves(host: Host, rails: Iterable[Rail]) -> dict[int, Maybe[CableEnd]]:
    """Ask a node for the leaf of each rail: one command for all Ethernet ports, one for each other port."""
    neighbors: Maybe[Neighbors] | None = None
    found: dict[int, Maybe[CableEnd]] = {}
    for rail in rails:
        if rail.link_layer == "InfiniBand":
            found[rail.number] = infiniband_end(host, rail.nic, rail.port)
        elif rail.link_layer == "Ethernet":
            if neighbors is None:
                neighbors = read_neighbors(host)
            found[rail.number] = map_known(rail.netdev, partial(heard_on, neighbors))
        else:
            found[rail.number] = Unknown(Reason.NOT_THERE, rail.nic, "this fabric does not show its switches")
    return found


def check_rails(leaves: Mapping[str, Mapping[int, Maybe[CableEnd]]]) -> tuple[RailLeaves, ...]:
    """Return where each rail ends, by what each node has answered."""
    numbers = sorted({number for of_node in leaves.values() for number in of_node})
    return tuple(
        RailLeaves(number, {node: each[number] for node, each in leaves.items() if number in each})
        for number in numbers
    )


class CableFaultKind(Enum):
    """What is wrong with a cable."""

    SWAPPED = "swapped"  # two NICs of a node end where the other one should
    WRONG_SWITCH = "wrong switch"
    SAME_PORT = "same switch port"  # which one cable alone can reach


@frozen
class CableFault:
    """A cable that does not end where those of equal nodes end: two if swapped, several at one port."""

    kind: CableFaultKind
    nodes: tuple[str, ...]
    nics: tuple[str, ...]  # of each node; a node is named once for each of its NICs
    ends: tuple[CableEnd, ...]
    usual: tuple[CableEnd, ...] = ()  # where the cables of equal nodes end


def cable_faults(rails: Iterable[RailLeaves], nic: Callable[[str, int], str]) -> tuple[CableFault, ...]:
    """Return the cables that end elsewhere than those of other nodes at the same leaves.

    `nic`: the name of a node's NIC on a rail.
    """
    nodes: dict[str, dict[int, CableEnd]] = {}
    for rail in rails:
        for node, end in rail.known.items():
            nodes.setdefault(node, {})[rail.rail] = end

    def fault(kind: CableFaultKind, places: Sequence[tuple[str, int]], *usual: CableEnd) -> CableFault:
        of_nodes, numbers = zip(*places, strict=True)
        ends = tuple(nodes[node][number] for node, number in places)
        return CableFault(kind, of_nodes, tuple(map(nic, of_nodes, numbers)), ends, usual)

    found: list[CableFault] = []
    for group in _groups(nodes):
        of_group = check_rails({node: nodes[node] for node in group})
        usual = {rail.rail: leaf for rail in of_group if (leaf := rail.usual) is not None}
        wrong = grouped((node, rail.rail) for rail in of_group for node in rail.elsewhere)
        for node, numbers in wrong.items():
            for kind, own in _kinds(nodes[node], usual, numbers):
                found.append(fault(kind, [(node, number) for number in own], *(usual[each] for each in own)))
    ports = grouped(
        ((end.switch_id, end.port_id, end.port_description), (node, number))
        for node, ends in nodes.items()
        for number, end in ends.items()
        if end.port_id
    )
    found += [fault(CableFaultKind.SAME_PORT, places) for places in ports.values() if len(places) > 1]
    return tuple(found)


def _kinds(
    ends: Mapping[int, CableEnd], usual: Mapping[int, CableEnd], numbers: Sequence[int]
) -> Iterator[tuple[CableFaultKind, tuple[int, ...]]]:
    """Yield what is wrong with the rails of these numbers, of which all end elsewhere."""
    left = set(numbers)
    for pair in combinations(numbers, 2):
        crossed = [usual[number].switch_id for number in reversed(pair)]
        if [ends[number].switch_id for number in pair] == crossed and left.issuperset(pair):
            left.difference_update(pair)
            yield CableFaultKind.SWAPPED, pair
    yield from ((CableFaultKind.WRONG_SWITCH, (number,)) for number in sorted(left))


def _groups(nodes: Mapping[str, Mapping[int, CableEnd]]) -> list[list[str]]:
    """Return the nodes at the same leaves, such as those of a scalable unit; swapped cables change none.

    A node with leaves of its own belongs to the group with which it shares the most. If it shares none, its
    only rail may be at a wrong leaf; several rails are those of another group.
    """
    leaves = {node: frozenset(end.switch_id for end in ends.values()) for node, ends in nodes.items()}
    by_leaves = grouped((own, node) for node, own in leaves.items())
    groups = {own: members for own, members in by_leaves.items() if len(members) >= _ENOUGH}
    for own, members in by_leaves.items():
        if own in groups or not groups:
            continue
        nearest = max(groups, key=lambda each: (len(each & own), len(by_leaves[each])))
        if nearest & own or len(nodes[members[0]]) == 1:
            groups[nearest] = [*groups[nearest], *members]
    return list(groups.values())
