"""Which way NCCL takes between GPUs of one node, what it says of it, and what that way carries.

NCCL src/transport/{p2p,shm,net}.cc and src/graph/paths.cc: P2P by NVLink or below one CPU, else shared
memory; with both switched off the NICs, and those read and write GPU memory themselves (GDRDMA) where a way
to it is usable and the NIC is as near as PXB.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from probes.base.unknown import Unknown
from probes.facts.gpudirect import GpuDirectFacts
from probes.facts.rdma.devices import RdmaFacts, RdmaPort
from probes.simulation.bandwidth import speeds as figures
from probes.simulation.bandwidth.nvlink import gpu_to_gpu_gbps, nvlink_gbps
from probes.simulation.bandwidth.speeds import Place
from probes.simulation.node.tree import Tree
from probes.snapshot.examination import Examination
from probes.topology.endpoints import is_down
from probes.topology.nccl_words import Nccl

_NEAR = (Nccl.PIX, Nccl.PXB)
_NVLINK_SHARE, _NVLS_SHARE = 0.8, 1.04  # of a GPU's NVLinks; with reductions inside the switch
_PCIE_SHARE, _SHARED_MEMORY_SHARE = 0.78, 0.55
_NETWORK_SHARE, _BY_HOST_SHARE, _SOCKET_GBPS = 0.94, 0.5, 18.0
_CHANNELS = 2


@dataclass(frozen=True)
class Ways:
    """The ring of all ranks."""

    routes: tuple[str, ...]  # "P2P/CUMEM", from each rank to the next
    bus_gbps: float
    latency_us: float
    found: tuple[str, ...] = ()  # what NCCL says of its NICs
    nics: dict[str, int] = field(default_factory=dict)  # RDMA device → how many ranks send over it
    broken: bool = False  # transfers to GPU memory fail
    is_lost: bool = False  # the network that was wanted by name is not there

    def lines(self, begin: str) -> list[str]:
        """What NCCL tells with NCCL_DEBUG=INFO."""
        told = [f"{begin} [0] NCCL INFO {text}" for text in self.found]
        for channel in range(_CHANNELS):
            for rank, route in enumerate(self.routes):
                after = (rank + 1) % len(self.routes)
                send = " [send]" if route.startswith("NET/") else ""
                told.append(
                    f"{begin} [{rank}] NCCL INFO Channel {channel:02d}/0 : {rank}[{rank}] -> {after}[{after}]"
                    f"{send} via {route}"
                )
        return [*told, f"{begin} [0] NCCL INFO Init COMPLETE"]


def ways_between(
    examination: Examination, tree: Tree, environment: Mapping[str, str], gpus: list[str]
) -> Ways:
    """The ways of these GPUs (BDFs), in the order of their ranks."""
    nics = _nics(examination, environment)
    found = _found(examination, nics)
    if not nics and environment.get("NCCL_NET") == "IB":
        return Ways((), 0.0, 0.0, found[:1], is_lost=True)
    if len(gpus) < 2:
        return Ways((), 16_000.0, 4.0, found)
    without_p2p = environment.get("NCCL_P2P_DISABLE") == "1"
    if without_p2p and environment.get("NCCL_SHM_DISABLE") == "1":
        return _by_network(examination, gpus, nics, found)
    pairs = list(zip(gpus, gpus[1:] + gpus[:1], strict=True))
    routes = tuple("SHM/direct/direct" if without_p2p else _route(examination, a, b) for a, b in pairs)
    if not without_p2p and all(examination.topology.paths[a, b].nvlinks for a, b in pairs):
        share = _NVLS_SHARE if len(gpus) > 4 and tree.description.gpu.capability >= (9, 0) else _NVLINK_SHARE
        return Ways(routes, min(nvlink_gbps(examination, gpu) for gpu in gpus) * share, 14.0, found)
    carried = [
        gpu_to_gpu_gbps(examination, a, b) * _PCIE_SHARE
        if route.startswith("P2P")
        else min(figures.to_gpu_gbps(examination, one) for one in (a, b)) * _SHARED_MEMORY_SHARE
        for (a, b), route in zip(pairs, routes, strict=True)
    ]
    # All ranks share the CPU's buffers and its links.
    return Ways(routes, min(*carried, 400.0), 22.0, found)


def _route(examination: Examination, a: str, b: str) -> str:
    path = examination.topology.paths[a, b]
    near = bool(path.nvlinks) or path.nccl in (Nccl.C2C, Nccl.NVB) or path.nccl_pcie in (*_NEAR, Nccl.PHB)
    return "P2P/CUMEM" if near else "SHM/direct/direct"


def _nics(examination: Examination, environment: Mapping[str, str]) -> list[str]:
    """Active devices, those that NCCL_IB_HCA names: exactly those behind a "=", else all that begin so."""
    rdma = examination.node.rdma
    devices = [one for one in rdma.devices if not is_down(one)] if isinstance(rdma, RdmaFacts) else []
    wanted = environment.get("NCCL_IB_HCA", "")
    if wanted:
        names = wanted.lstrip("=").split(",")
        exact = wanted.startswith("=")
        return [
            one.name
            for one in devices
            if any(one.name == name or (not exact and one.name.startswith(name)) for name in names)
        ]
    return [one.name for one in devices]


def _found(examination: Examination, nics: list[str]) -> tuple[str, ...]:
    if not nics:
        return "NET/IB : No device found.", "Using network Socket"
    using = "".join(
        f" [{number}]{name}:1/{'IB' if _is_infiniband(examination, name) else 'RoCE'}"
        for number, name in enumerate(nics)
    )
    return f"NET/IB : Using{using} [RO]; OOB eth0:10.0.0.1<0>", "Using network IB"


def _is_infiniband(examination: Examination, name: str) -> bool:
    device = figures.device_of(examination, name)
    return device is not None and any(port.link_layer == "InfiniBand" for port in device.ports)


def _by_network(examination: Examination, gpus: list[str], nics: list[str], found: tuple[str, ...]) -> Ways:
    if not nics:
        return Ways(tuple("NET/Socket/0" for _ in gpus), _SOCKET_GBPS, 90.0, found)
    chosen = [next(nic for nic in _by_distance(examination, gpu) if nic in nics) for gpu in gpus]
    direct = [_is_direct(examination, gpu, nic) for gpu, nic in zip(gpus, chosen, strict=True)]
    ranks = {nic: chosen.count(nic) for nic in chosen}
    carried = []
    for gpu, nic, gdr in zip(gpus, chosen, direct, strict=True):
        port = next((one.number for one in _ports(examination, nic)), 1)
        place = Place(examination, nic, port, gpu if gdr else None)
        # One port is both ends of the ring's two neighbours.
        gbps = min(figures.sustained(place, reads, True) for reads in (True, False))
        carried.append(gbps * (_NETWORK_SHARE if gdr else _BY_HOST_SHARE) / ranks[nic])
    broken = any(
        gdr and figures.is_unreachable(examination, gpu, nic)
        for gpu, nic, gdr in zip(gpus, chosen, direct, strict=True)
    )
    routes = tuple(
        f"NET/IB/{nics.index(nic)}{'/GDRDMA' if gdr else ''}" for nic, gdr in zip(chosen, direct, strict=True)
    )
    return Ways(routes, min(carried), 38.0, found, ranks, broken)


def _by_distance(examination: Examination, gpu: str) -> list[str]:
    rdma = examination.node.rdma
    names = [one.name for one in rdma.devices] if isinstance(rdma, RdmaFacts) else []
    best = examination.topology.best_nics.get(gpu, ())
    return [*best, *(name for name in names if name not in best)]


def _ports(examination: Examination, nic: str) -> list[RdmaPort]:
    device = figures.device_of(examination, nic)
    return [] if device is None else [one for one in device.ports if one.state == "ACTIVE"]


def _is_direct(examination: Examination, gpu: str, nic: str) -> bool:
    """Whether NCCL lets this NIC at this GPU's memory."""
    facts = examination.node.gpudirect
    if not isinstance(facts, GpuDirectFacts):
        return False
    by_dmabuf = facts.dmabuf.usable is True and facts.nic_dmabuf.get(nic) is not False
    path = examination.topology.paths.get((gpu, nic))
    if path is None or isinstance(path.nccl, Unknown) or not (by_dmabuf or facts.peermem.usable is True):
        return False
    return path.nccl_pcie in _NEAR or path.nccl is Nccl.P2C
