"""NCCL's word for the path between any two endpoints: over PCIe, chip-to-chip links or NVLink.

A word is worked out when it is asked for: a node with 256 GPUs and 256 NICs has 130,000 pairs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from probes.base.frozen import frozen
from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.pci.functions import PciFunction
from probes.facts.rdma.devices import RdmaDevice
from probes.topology.endpoints import Endpoint, is_down, port_gbps
from probes.topology.graph import (
    Parts,
    chain_of,
    has_c2c,
    has_relay,
    merged_bdf,
    nvlink_peers,
    nvlinks_between,
)

# NCCL's words for what lies between GPUs and NICs, by its rules (2.30: src/graph/xml.cc, paths.cc).
#
# A topology file gives NCCL a PCI tree in place of the one in sysfs.

UNKNOWN_NUMA = -1  # to NCCL the kernel's -1 is a NUMA node of its own
Functions = Mapping[str, Mapping[str, Any]]  # the nodes of Parts
_BROADCOM = 0x1000
_BDF_LENGTH = len("0000:00:00.0")
_PEX_GEN4, _PEX_GEN5 = 0xC010, 0xC030


class Nccl(Enum):
    """NCCL's words (src/graph/topo.cc topoPathTypeStr), nearest first; there is no NODE."""

    NVL = "NVL"
    NVB = "NVB"
    C2C = "C2C"
    PIX = "PIX"
    PXB = "PXB"
    P2C = "P2C"
    PXN = "PXN"
    PHB = "PHB"
    SYS = "SYS"


ORDER = {word: rank for rank, word in enumerate(Nccl)}
# NCCL uses GPUDirect RDMA by default up to these levels; P2C exists only for GPUs with C2C links
# (src/graph/paths.cc ncclTopoCheckGdr: the level is P2C, before 2.29 PXB).
NEAR = (Nccl.PIX, Nccl.PXB, Nccl.P2C)


@frozen
class Seat:
    """Where NCCL sees a function in its tree."""

    bus_id: str  # of a NIC: that of function 0 of device 0 of its bus
    switches: tuple[str, ...]  # upstream ports above it, nearest first
    cpu: int  # the NUMA node above those


def seat_of(parts: Parts, function: PciFunction) -> Seat:
    """Return the switches above a function and the NUMA node above those.

    NCCL puts a NIC below an unknown NUMA node if sysfs does not have the function that it asks for.
    """
    bus_id = merged_bdf(function)
    functions = parts.nodes
    if "sysfs_path" not in functions.get(bus_id, {}):
        return Seat(bus_id, (), UNKNOWN_NUMA)
    above = flattened(upstream_ports(chain_of(parts, bus_id)), functions)
    # The NUMA node is that of the last PCI device before the root (xml.cc ncclTopoGetXmlFromSys).
    top = above[-1] if above and "sysfs_path" in functions[above[-1]] else bus_id
    return Seat(bus_id, above, known(functions[top]["numa_node"], UNKNOWN_NUMA))


def upstream_ports(chain: Sequence[str]) -> tuple[str, ...]:
    """Return the switches that NCCL sees above the end of a chain, nearest first, by their upstream ports.

    NCCL walks up in steps of two path elements, so it sees the upstream port of each switch only; where no
    element is left it has reached the CPU. A name with more than four digits of domain ends the walk.
    """
    above: list[str] = []
    place = len(chain) - 1
    while place > 1 and all(len(bdf) == _BDF_LENGTH for bdf in chain[place - 2 : place]):
        place -= 2
        above.append(chain[place])
    return tuple(above)


def flattened(above: Sequence[str], functions: Functions) -> tuple[str, ...]:
    """Merge a Broadcom sub-switch with the switch above it: together they carry full bandwidth.

    From the top down, and a switch takes in one level only (topo.cc ncclTopoFlattenBcmSwitches).
    """
    kept: list[str] = []
    open_to_sub: int | None = None
    for bdf in reversed(above):
        switch = functions[bdf]
        if open_to_sub is not None and _broadcom_generation(switch, 1) == open_to_sub:
            open_to_sub = None
            continue
        kept.append(bdf)
        open_to_sub = _broadcom_generation(switch, 0)
    return tuple(reversed(kept))


def _broadcom_generation(switch: Mapping[str, Any], level: int) -> int | None:
    """Return 4 or 5 for PEX switches that show two levels (topo.cc getBcmGen); level 0 is the upper one."""
    subsystem = switch.get("subsystem_device_id")
    if not isinstance(subsystem, int) or switch["vendor_id"] != _BROADCOM:
        return None
    if switch["subsystem_vendor_id"] != _BROADCOM:
        return None
    page = subsystem >> 12
    if switch["device_id"] == _PEX_GEN4 and page == 0xA:
        return 4
    return 5 if switch["device_id"] == _PEX_GEN5 and page == level else None


def pci_path(a: Seat, b: Seat) -> Nccl:
    """Return PIX below one switch, PXB below one root, PHB by one NUMA node, SYS by two (paths.cc:84-94)."""
    if a.bus_id == b.bus_id:
        return Nccl.PIX
    for below, switch in enumerate(a.switches):
        if switch in b.switches:
            return Nccl.PIX if below + b.switches.index(switch) == 0 else Nccl.PXB
    return Nccl.PHB if a.cpu == b.cpu else Nccl.SYS


@frozen
class FileTree:
    """The places of PCI functions by a topology file."""

    path: str  # of the file
    seats: Mapping[str, Seat]  # by bus ID in lower case; GPUs, NICs and switches

    def seat(self, found: Seat) -> Seat:
        """Return where NCCL sees a function with this file; `found` is its place by sysfs.

        NCCL keeps the parents that the file gives an element. It asks sysfs about a function that the file
        does not name, and joins the file's tree at the first switch that the file names (src/graph/xml.cc
        ncclTopoGetXmlFromSys).
        """
        if found.bus_id in self.seats:
            return self.seats[found.bus_id]
        for place, switch in enumerate(found.switches):
            if switch in self.seats:
                above = self.seats[switch]
                return Seat(found.bus_id, (*found.switches[: place + 1], *above.switches), above.cpu)
        return found


class NcclPaths:
    """The words for a node's endpoints."""

    def __init__(
        self,
        parts: Parts,
        gpus: Sequence[Endpoint],
        nics: Sequence[Endpoint],
        functions: Mapping[str, PciFunction],
        devices: Mapping[str, RdmaDevice],
        file: FileTree | None,
        unread_c2c: Mapping[str, Unknown],
    ) -> None:
        self._parts, self._gpus, self._nics, self._devices = parts, gpus, nics, devices
        self._unread_c2c = unread_c2c  # GPU -> why its chip-to-chip links are unknown
        ends = ((end, functions.get(known(end.to_gpus, ""))) for end in (*gpus, *nics))
        self._seats = {end.id: _seat(parts, end, function, file) for end, function in ends}
        self._places = self._numbered_places()
        self._over_pcie: dict[tuple[int, int], Nccl] = {}  # by place
        self._by_cpu_link: dict[str, frozenset[str]] = {}  # GPU -> NICs
        self._near: dict[str, frozenset[str]] = {}  # NIC -> GPUs
        self._peers: dict[str, frozenset[str]] = {}  # GPU -> GPUs

    def seat(self, end: str) -> Maybe[Seat]:
        """Return an endpoint's seat in NCCL's tree."""
        return self._seats[end]

    def over_pcie(self, a: str, b: str) -> Maybe[Nccl]:
        """Return the word for PCIe alone."""
        places = self._places[a], self._places[b]
        word = self._over_pcie.get(places)
        if word is not None:
            return word
        of_a, of_b = self._seats[a], self._seats[b]
        if isinstance(of_a, Unknown):
            return of_a
        if isinstance(of_b, Unknown):
            return of_b
        word = self._over_pcie[places] = pci_path(of_a, of_b)
        return word

    def _numbered_places(self) -> dict[str, int]:
        """Return a number for each endpoint; those with equal ones are at one place and have equal words.

        Endpoints that NCCL takes for one device have numbers of their own.
        """
        buses = Counter(seat.bus_id for seat in self._seats.values() if not isinstance(seat, Unknown))
        numbers: dict[object, int] = {}
        places: dict[str, int] = {}
        for end, seat in self._seats.items():
            key: object = end
            if not isinstance(seat, Unknown) and buses[seat.bus_id] == 1:
                key = seat.switches, seat.cpu
            places[end] = numbers.setdefault(key, len(numbers))
        return places

    def between_gpus(self, a: str, b: str) -> tuple[Maybe[Nccl], int]:
        """Return the word and the NVLinks: NVLink, a relaying GPU (NVB), or C2C links of both to one CPU."""
        links = nvlinks_between(self._parts, a, b)
        if links:
            return Nccl.NVL, links
        if has_relay(self._parts, a, b):
            return Nccl.NVB, 0
        word = self.over_pcie(a, b)
        if word is Nccl.PHB and has_c2c(self._parts, a) and has_c2c(self._parts, b):
            return Nccl.C2C, 0
        return word, 0

    def to_nic(self, gpu: str, nic: str) -> Maybe[Nccl]:
        """Return the word for a GPU and a NIC.

        PXN: a GPU far from a NIC uses NVLink to a GPU that is near it (paths.cc:812-843).
        """
        word = self.without_peers(gpu, nic)
        if word not in (Nccl.PHB, Nccl.SYS):
            return word
        return word if self.peers(gpu).isdisjoint(self.gpus_near(nic)) else Nccl.PXN

    def peers(self, gpu: str) -> frozenset[str]:
        """Return the GPUs to which a GPU has NVLinks."""
        if gpu not in self._peers:
            self._peers[gpu] = nvlink_peers(self._parts, gpu)
        return self._peers[gpu]

    def gpus_near(self, nic: str) -> frozenset[str]:
        """Return the GPUs that a NIC is near."""
        if nic not in self._near:
            near = (gpu.id for gpu in self._gpus if self.without_peers(gpu.id, nic) in NEAR)
            self._near[nic] = frozenset(near)
        return self._near[nic]

    def without_peers(self, gpu: str, nic: str) -> Maybe[Nccl]:
        """Return the word over PCIe and the GPU's own chip-to-chip links."""
        if nic in self.by_cpu_link(gpu):
            return Nccl.P2C
        word = self.over_pcie(gpu, nic)
        return self._unread_c2c.get(gpu, word) if word in (Nccl.PHB, Nccl.SYS) else word

    def by_cpu_link(self, gpu: str) -> frozenset[str]:
        """Return the NICs with P2C."""
        if gpu not in self._by_cpu_link:
            self._by_cpu_link[gpu] = self._nics_by_cpu_link(gpu)
        return self._by_cpu_link[gpu]

    def _nics_by_cpu_link(self, gpu: str) -> frozenset[str]:
        """Return the NICs with P2C: the nearest ones of a CPU to which the GPU has chip-to-chip links.

        paths.cc:794-810. Nearest are the fastest, of those the ones with the best type (ncclTopoGetLocal).
        """
        if not has_c2c(self._parts, gpu):
            return frozenset()
        devices = {nic.id: self._devices.get(nic.id) for nic in self._nics}
        rates = {nic: port_gbps(device) for nic, device in devices.items() if not is_down(device)}
        fastest = {nic for nic, rate in rates.items() if rate == max(rates.values())}
        words = {nic.id: self.over_pcie(gpu, nic.id) for nic in self._nics}
        ranks = [ORDER[word] for nic in fastest if not isinstance(word := words[nic], Unknown)]
        if ranks and min(ranks) < ORDER[Nccl.PHB]:
            return frozenset()
        # The rate of a NIC that is down means nothing: it is shown as it will be.
        same_cpu = (nic for nic, word in words.items() if word is Nccl.PHB)
        return frozenset(nic for nic in same_cpu if nic in fastest or nic not in rates)


def _seat(parts: Parts, end: Endpoint, function: PciFunction | None, file: FileTree | None) -> Maybe[Seat]:
    if function is None:
        return Unknown(Reason.NOT_THERE, "/sys/bus/pci/devices", f"no PCI function for {end.label}")
    if not function.root:
        return Unknown(Reason.MALFORMED, function.sysfs_path, f"no host bridge in the path of {function.bdf}")
    seat = seat_of(parts, function)
    return seat if file is None else file.seat(seat)
