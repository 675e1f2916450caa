"""NCCL's word for the path between any two endpoints: over PCIe, chip-to-chip links or NVLink.

A word is worked out when it is asked for: a node with 256 GPUs and 256 NICs has 130,000 pairs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.pci.functions import PciFunction
from probes.facts.rdma.devices import RdmaDevice
from probes.topology.endpoints import Endpoint, is_down, port_gbps
from probes.topology.graph import Parts, has_c2c, has_relay, nvlink_peers, nvlinks_between
from probes.topology.nccl_words import NEAR, ORDER, FileTree, Nccl, Seat, pci_path, seat_of


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
