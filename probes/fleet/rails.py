"""Rails: the NICs that stand in the same place of every node, and the GPU of each.

Rail k of all nodes is meant to end at the same leaf switch, so that traffic between equal places never
crosses the spine. A rail is counted from 0 in the order of the nearest GPU, then of the PCI address. Names of
RDMA devices do not decide: if a NIC is missing, all names after it change.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from probes.base.frozen import frozen
from probes.base.text import parse_json, printable
from probes.base.unknown import Maybe, Reason, Unknown, known, map_known
from probes.facts.node import Node
from probes.facts.rdma.cxi import has_verbs
from probes.facts.rdma.devices import RdmaDevice, RdmaFacts, RdmaPort, is_software
from probes.facts.rdma.switch_ports import query_failure
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
    netdev: Maybe[str]
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
        netdev=port.netdev,
        is_active=not port.is_down,
    )


# The switch of a rail. Ethernet: what lldpd has heard (`lldpctl -f json`; lldpd's src/client/json_writer.c).
# InfiniBand: the node at the other end of the cable, by a directed route (`smpquery -D nodeinfo 0,PORT`;
# infiniband-diags).

LLDP = ("lldpctl", "-f", "json")
_SECONDS = 5.0
_MOST_NEIGHBORS = 1000
_FIELD = re.compile(r"^(NodeType|SystemGuid):\.{1,40}(.{1,40})$", re.M)
_ENOUGH = 2  # nodes with a known leaf
_T = TypeVar("_T")


@frozen
class Leaf:
    """A switch, by what identifies it, and its name if it has one."""

    id: str  # "0c:42:a1:00:00:01", or a system image GUID
    name: str = ""

    @property
    def label(self) -> str:
        """Its name, or what identifies it."""
        return self.name or self.id


@frozen
class RailLeaves:
    """Where one rail of all nodes ends."""

    rail: int
    leaves: Mapping[str, Maybe[Leaf]]  # by node

    @property
    def usual(self) -> Leaf | None:
        """The leaf of most nodes; None if fewer than two are known, or no leaf has more than half of them."""
        found = Counter(leaf for leaf in self.leaves.values() if not isinstance(leaf, Unknown))
        leaf, count = found.most_common(1)[0] if found else (None, 0)
        return leaf if sum(found.values()) >= _ENOUGH and 2 * count > sum(found.values()) else None

    @property
    def elsewhere(self) -> dict[str, Leaf]:
        """Nodes whose rail ends at another leaf than that of most nodes, and with few other nodes.

        A leaf with more than a tenth of the nodes belongs to another group of nodes, not to a wrong cable.
        """
        found = {node: leaf for node, leaf in self.leaves.items() if not isinstance(leaf, Unknown)}
        counts, most = Counter(found.values()), max(1, len(found) // 10)
        usual = self.usual
        return {
            node: leaf for node, leaf in found.items() if usual not in (None, leaf) and counts[leaf] <= most
        }

    @property
    def count(self) -> int:
        """The number of different leaves that are known."""
        return len({leaf for leaf in self.leaves.values() if not isinstance(leaf, Unknown)})

    @property
    def unknown(self) -> dict[str, Unknown]:
        """Nodes whose leaf is unknown."""
        return {node: leaf for node, leaf in self.leaves.items() if isinstance(leaf, Unknown)}


def read_leaves(host: Host, rails: Iterable[Rail]) -> dict[int, Maybe[Leaf]]:
    """Ask a node for the leaf of each rail: one command for all Ethernet ports, one for each other port."""
    neighbors: Maybe[dict[str, Leaf]] | None = None
    found: dict[int, Maybe[Leaf]] = {}
    for rail in rails:
        if rail.link_layer == "InfiniBand":
            port = str(rail.port)
            argv = ("smpquery", "-C", rail.nic, "-P", port, "-D", "nodeinfo", f"0,{port}")
            found[rail.number] = _answer(host, "smpquery", argv, parse_node_info)
        elif rail.link_layer == "Ethernet":
            if neighbors is None:
                neighbors = _answer(host, " ".join(LLDP), LLDP, parse_lldp)
            found[rail.number] = _heard(neighbors, rail)
        else:
            found[rail.number] = Unknown(Reason.NOT_THERE, rail.nic, "this fabric does not show its switches")
    return found


def check_rails(leaves: Mapping[str, Mapping[int, Maybe[Leaf]]]) -> tuple[RailLeaves, ...]:
    """Return where each rail ends, by what each node has answered."""
    numbers = sorted({number for of_node in leaves.values() for number in of_node})
    return tuple(
        RailLeaves(number, {node: each[number] for node, each in leaves.items() if number in each})
        for number in numbers
    )


def _answer(host: Host, name: str, argv: tuple[str, ...], parse: Callable[[str], Maybe[_T]]) -> Maybe[_T]:
    output = host.run(argv, _SECONDS)
    if isinstance(output, Unknown):
        return output
    if output.exit_status != 0:
        return query_failure(host, name, output.stderr or output.stdout)
    return parse(output.stdout)


# Ethernet


def _heard(neighbors: Maybe[dict[str, Leaf]], rail: Rail) -> Maybe[Leaf]:
    nothing = Unknown(Reason.NOT_THERE, "lldpctl", f"lldpd has heard no switch on {rail.netdev}")
    return map_known(neighbors, lambda found: map_known(rail.netdev, lambda name: found.get(name, nothing)))


def parse_lldp(text: str) -> Maybe[dict[str, Leaf]]:
    """Parse lldpctl's JSON; return the switch that each network interface has heard, the first one."""
    content = parse_json(text)
    if content is None:
        return Unknown(Reason.MALFORMED, "lldpctl", "its output is not valid JSON")
    found: dict[str, Leaf] = {}
    interfaces = _item(_item(content, "lldp"), "interface")
    # A list with several neighbors, and an object with one.
    for listed in (interfaces if isinstance(interfaces, list) else [interfaces])[:_MOST_NEIGHBORS]:
        for interface, facts in _items(listed):
            for leaf in _chassis(_item(facts, "chassis")):
                found.setdefault(printable(interface, 64), leaf)
    return found


def _chassis(chassis: object) -> Iterator[Leaf]:
    """Yield a neighbor: `{NAME: {"id": {"value": …}}}`, or without a name `{"id": {"value": …}}`."""
    named = [("", chassis)] if "id" in dict(_items(chassis)) else _items(chassis)
    for name, facts in named:
        value = _item(_item(facts, "id"), "value")
        if isinstance(value, str) and value:
            yield Leaf(printable(value, 80), printable(name, 80))


def _item(value: object, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _items(value: object) -> list[tuple[str, Any]]:
    return list(value.items())[:_MOST_NEIGHBORS] if isinstance(value, dict) else []


# InfiniBand


def parse_node_info(text: str) -> Maybe[Leaf]:
    """Parse smpquery's description of a node; anything but a switch is no leaf."""
    fields = {match[1]: match[2].strip() for match in _FIELD.finditer(text)}
    kind, guid = fields.get("NodeType"), fields.get("SystemGuid")
    if kind is None or guid is None:
        return Unknown(Reason.MALFORMED, "smpquery", "its output has no node type or GUID")
    if kind != "Switch":
        return Unknown(Reason.NOT_THERE, "smpquery", f"the cable leads to a {printable(kind, 40)}")
    return Leaf(printable(guid, 40))
