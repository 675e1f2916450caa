"""GPUDirect RDMA: the facts about its paths, and the reading of peermem every second.

gpudirect_probe.py decides what each path requires, and reads whether this node meets it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from enum import Enum
from types import MappingProxyType

from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown, map_known
from probes.facts.rdma.devices import RdmaDevice, RdmaFacts
from probes.host.protocol import Host
from probes.host.values import read_integer

MEMORY_PEERS = "/sys/kernel/mm/memory_peers"


class GdrPath(Enum):
    """How a NIC reaches GPU memory."""

    DMABUF = "DMA-BUF"
    PEERMEM = "nvidia-peermem"
    EFA = "efa_nv_peermem"  # AWS EFA's own peer-memory path, which does not use nvidia_peermem
    CXI = "libfabric cxi"  # HPE Slingshot: no verbs; libfabric registers GPU memory with the cxi driver


@frozen
class Requirement:
    """One condition of a path, with its evidence."""

    name: str  # "open kernel modules"
    met: Maybe[bool]
    evidence: str  # "/proc/driver/nvidia/version: … Open Kernel Module … 570.124.06"
    lack: str = ""  # shown if it is not met: "DMA-BUF needs the open kernel modules"


@frozen
class PathState:
    """One path: not usable if one requirement is not met, unknown if one is unknown."""

    path: GdrPath
    usable: Maybe[bool]
    requirements: tuple[Requirement, ...]


@frozen
class GpuSupport:
    """What one GPU supports, regardless of modules and NICs."""

    dmabuf: Maybe[bool]
    peermem: Maybe[bool]
    reason: str = ""  # why not: "GeForce GPUs do not support GPUDirect RDMA"
    evidence: str = ""  # "cuDeviceGetAttribute(116) = 0"
    by_design: bool = False  # no setting and no software can change it


@frozen
class MemoryPeer:
    """One client below /sys/kernel/mm/memory_peers (absent on kernels ≥ 6.4)."""

    client: str  # "nv_mem", "nv_mem_nc"
    live_mrs: Maybe[int]  # num_alloc_mrs - num_dealloc_mrs
    live_bytes: Maybe[int]


@frozen
class GpuDirectFacts:
    """Both paths, what each NIC and each GPU can do, and the signs of use."""

    dmabuf: PathState
    peermem: PathState  # where all NICs are EFA: that of efa_nv_peermem; all Slingshot: that of libfabric
    preferred: GdrPath | None  # what NCCL would take: DMA-BUF before peermem; None: neither is usable
    nic_dmabuf: dict[str, Maybe[bool]]  # RDMA device -> supports DMA-BUF (ibv_reg_dmabuf_mr probe)
    dmabuf_in_use: Maybe[bool]  # root only: bufinfo lists a NIC that is attached to a buffer of nv_dmabuf
    nic_peermem: dict[str, Maybe[bool]] = field(default_factory=dict)  # RDMA device -> can use peer memory
    gpu_support: dict[str, GpuSupport] = field(default_factory=dict)  # by BDF
    cuda_failure: Maybe[str] = ""  # why CUDA programs fail to start: "… cuInit(0) returned 802 …"

    def never_supports(self, gpu: str) -> bool:
        """Return whether a GPU (BDF) cannot use GPUDirect RDMA by design."""
        return gpu in self.gpu_support and self.gpu_support[gpu].by_design

    @property
    def by_design(self) -> str:
        """Why no GPU of this node can ever use GPUDirect RDMA; "" if one can."""
        support = tuple(self.gpu_support.values())
        return support[0].reason if support and all(gpu.by_design for gpu in support) else ""


@frozen
class PeermemReading:
    """The use of nvidia_peermem, read every second."""

    refcnt: Maybe[int]
    peers: Maybe[tuple[MemoryPeer, ...]]


def parse_driver_version(text: str) -> tuple[int, int, int] | None:
    """Return the numbers of "515.43.04"; the third number of a version with two parts is 0."""
    match = re.match(r"(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?(?![\d.])", text)
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


def hardware_of(rdma: Maybe[RdmaFacts]) -> list[RdmaDevice]:
    """Return the RDMA devices on a PCI function, Slingshot's too. rxe and siw cannot reach GPU memory."""
    devices = () if isinstance(rdma, Unknown) else rdma.devices
    return [device for device in devices if not isinstance(device.bdf, Unknown)]


def _difference(host: Host, client: str, added: str, removed: str) -> Maybe[int]:
    total = read_integer(host, f"{MEMORY_PEERS}/{client}/{added}", signed=True)
    gone = read_integer(host, f"{MEMORY_PEERS}/{client}/{removed}", signed=True)
    return map_known(total, lambda count: map_known(gone, lambda less: count - less))


def _refcnt(host: Host, module: str, refcnts: Mapping[str, Maybe[int]]) -> Maybe[int]:
    read = refcnts.get(module)
    return read_integer(host, f"/sys/module/{module}/refcnt", signed=True) if read is None else read


def read_peermem(host: Host, refcnts: Mapping[str, Maybe[int]] = MappingProxyType({})) -> PeermemReading:
    """Read memory_peers and the refcount of nvidia_peermem, else nv_peer_mem; `refcnts`: read just now."""
    refcnt = _refcnt(host, "nvidia_peermem", refcnts)
    if isinstance(refcnt, Unknown) and refcnt.reason is Reason.NOT_THERE:
        older = _refcnt(host, "nv_peer_mem", refcnts)
        refcnt = refcnt if isinstance(older, Unknown) else older
    clients = host.names(MEMORY_PEERS)
    if isinstance(clients, Unknown):
        return PeermemReading(refcnt, clients)
    peers = (
        MemoryPeer(
            printable(client, 32),
            _difference(host, client, "num_alloc_mrs", "num_dealloc_mrs"),
            _difference(host, client, "num_reg_bytes", "num_dereg_bytes"),
        )
        for client in clients[:16]
    )
    return PeermemReading(refcnt, tuple(peers))
