"""GPUDirect RDMA: which path this node can use, and which it is using."""

from __future__ import annotations

import errno
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum

from probes.gpus import Flavour, GpuFacts
from probes.host import Host
from probes.kernel import KernelFacts
from probes.modules import ModuleFacts, ModuleState
from probes.rdma import RdmaFacts
from probes.text import printable
from probes.unknown import Maybe, Reason, Unknown, known


class GdrPath(Enum):
    """The two ways a NIC reaches GPU memory."""

    DMABUF = "DMA-BUF"
    PEERMEM = "nvidia-peermem"


@dataclass(frozen=True)
class Requirement:
    """One condition of a path: met, not met, or unknown; with the evidence."""

    name: str  # "open kernel modules"
    met: Maybe[bool]
    evidence: str  # "/proc/driver/nvidia/version: … Open Kernel Module … 570.124.06"


@dataclass(frozen=True)
class PathState:
    """One path: usable is False as soon as one requirement is not met, unknown if one is unknown."""

    path: GdrPath
    usable: Maybe[bool]
    requirements: tuple[Requirement, ...]


@dataclass(frozen=True)
class MemoryPeer:
    """One client below /sys/kernel/mm/memory_peers (absent on kernels ≥ 6.4)."""

    client: str  # "nv_mem", "nv_mem_nc"
    live_mrs: Maybe[int]  # num_alloc_mrs - num_dealloc_mrs
    live_bytes: Maybe[int]


@dataclass(frozen=True)
class GpuDirectFacts:
    """Both paths, the per-NIC DMA-BUF verdicts, and the signs of use."""

    dmabuf: PathState
    peermem: PathState
    preferred: GdrPath | None  # what NCCL would take: DMA-BUF before peermem; None: neither is usable
    nic_dmabuf: dict[str, Maybe[bool]]  # RDMA device name -> its ibv_reg_dmabuf_mr verdict
    dmabuf_in_use: Maybe[bool]  # root only: /sys/kernel/debug/dma_buf/bufinfo lists nv_dmabuf attachments


@dataclass(frozen=True)
class PeermemReading:
    """The live part, read every second."""

    refcnt: Maybe[int]
    peers: Maybe[tuple[MemoryPeer, ...]]


_PEERS = "/sys/kernel/mm/memory_peers"
_BUFINFO = "/sys/kernel/debug/dma_buf/bufinfo"
_BUFINFO_LIMIT = 4 << 20
_FIRST_OPEN_DRIVER = (515, 43)  # the first with nv-dmabuf.c
_FIRST_KERNEL = (5, 12)
_OLDEST_CAPABILITY = (7, 5)  # Turing: the open kernel modules serve nothing older
_PEER_MODULES = ("nvidia_peermem", "nv_peer_mem")
_IB_EXPORTERS = {"ib_core", "ib_uverbs", "ib_peer_mem"}


def _all_met(requirements: tuple[Requirement, ...]) -> Maybe[bool]:
    """False as soon as one is not met, else the first reason why one is unknown, else True."""
    unsure: Unknown | None = None
    for one in requirements:
        if isinstance(one.met, Unknown):
            unsure = one.met if unsure is None else unsure
        elif not one.met:
            return False
    return True if unsure is None else unsure


def parse_bufinfo(text: str) -> bool:
    """Whether bufinfo (dma-buf.c dma_buf_debug_show) lists a buffer of nv_dmabuf with a device attached."""
    ours = False
    for line in text.splitlines():
        words = line.split()
        if "nv_dmabuf" in words:
            ours = True
        elif line and not line[0].isspace() and re.match(r"[0-9a-f]{8}\b", line):
            ours = False
        elif ours and re.search(r"\b[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\b", line):
            return True
    return False


def dmabuf_verdict(number: Maybe[int]) -> Maybe[bool]:
    """What the errno of the probe means (NCCL src/transport/net_ib/gdr.cc)."""
    if isinstance(number, Unknown):
        return number
    return number not in (errno.EOPNOTSUPP, errno.EPROTONOSUPPORT)


def _version_pair(text: str) -> tuple[int, int] | None:
    match = re.match(r"(\d{1,4})\.(\d{1,4})", text)
    return (int(match.group(1)), int(match.group(2))) if match else None


def _driver_requirements(gpus: GpuFacts) -> list[Requirement]:
    driver = gpus.driver
    source = "/proc/driver/nvidia/version"
    if isinstance(driver.flavour, Unknown):
        flavour: Maybe[bool] = driver.flavour
        said = f"{source}: {driver.flavour}"
    else:
        flavour = driver.flavour is Flavour.OPEN
        said = f"{source}: {driver.flavour.value} kernel modules, {known(driver.version, '?')}"
    requirements = [Requirement("open NVIDIA kernel modules", flavour, said)]
    if isinstance(driver.version, Unknown):
        requirements.append(
            Requirement("driver 515.43 or newer", driver.version, f"{source}: {driver.version}")
        )
    else:
        pair = _version_pair(driver.version)
        new: Maybe[bool] = Unknown(Reason.MALFORMED, source) if pair is None else pair >= _FIRST_OPEN_DRIVER
        requirements.append(Requirement("driver 515.43 or newer", new, f"{source}: {driver.version}"))
    old = [
        gpu
        for gpu in gpus.gpus
        if not isinstance(gpu.compute_capability, Unknown) and gpu.compute_capability < _OLDEST_CAPABILITY
    ]
    if old:
        named = ", ".join(f"GPU{gpu.index} {gpu.name}" for gpu in old)
        requirements.append(
            Requirement("GPUs of compute capability 7.5 or newer", False, f"NVML: older are {named}")
        )
    return requirements


def _kernel_requirements(kernel: KernelFacts, nics: dict[str, Maybe[bool]]) -> list[Requirement]:
    requirements = []
    if not isinstance(kernel.dma_shared_buffer, Unknown) and not kernel.dma_shared_buffer:
        said = f"kernel config of {known(kernel.release, '?')}: CONFIG_DMA_SHARED_BUFFER is not set"
        requirements.append(Requirement("kernel with DMA-BUF", False, said))
    # The release is a hint only: OFED brings dma-buf regions to older kernels. The probe below decides.
    proved = any(not isinstance(able, Unknown) and able for able in nics.values())
    said = f"/proc/sys/kernel/osrelease: {known(kernel.release, '?')}"
    if isinstance(kernel.version, Unknown):
        requirements.append(Requirement("kernel 5.12 or newer", True if proved else kernel.version, said))
    else:
        new: Maybe[bool] = kernel.version >= _FIRST_KERNEL or proved
        requirements.append(Requirement("kernel 5.12 or newer", new, said))
    return requirements


def _nic_requirement(nics: dict[str, Maybe[bool]]) -> Requirement:
    name = "a NIC driver that takes dma-buf regions"
    if not nics:
        nothing = Unknown(Reason.NOT_THERE, "/sys/class/infiniband", "no RDMA device to ask")
        return Requirement(name, nothing, "/sys/class/infiniband: no RDMA device")
    able = [nic for nic, answer in nics.items() if not isinstance(answer, Unknown) and answer]
    unable = [nic for nic, answer in nics.items() if not isinstance(answer, Unknown) and not answer]
    if able:
        return Requirement(name, True, f"ibv_reg_dmabuf_mr probe: yes on {', '.join(able)}")
    if len(unable) == len(nics):
        return Requirement(name, False, f"ibv_reg_dmabuf_mr probe: not supported on {', '.join(unable)}")
    reason = next(answer for answer in nics.values() if isinstance(answer, Unknown))
    return Requirement(name, reason, f"ibv_reg_dmabuf_mr probe: {reason}")


def _peermem(modules: ModuleFacts) -> PathState:
    loaded = next((name for name in _PEER_MODULES if modules.modules[name].state is ModuleState.LIVE), None)
    if loaded is not None:
        # A live module has registered with the IB core: it has no other way to load (nvidia-peermem.c init).
        said = f"/sys/module/{loaded}/initstate: live"
        return PathState(GdrPath.PEERMEM, True, (Requirement(f"{loaded} loaded", True, said),))
    module = modules.modules["nvidia_peermem"]
    requirements = []
    on_disk = module.on_disk
    if isinstance(on_disk, Unknown):
        there: Maybe[bool] = False if on_disk.reason is Reason.NOT_THERE else on_disk
        requirements.append(
            Requirement("nvidia_peermem built for this kernel", there, f"modules.dep: {on_disk}")
        )
    else:
        requirements.append(Requirement("nvidia_peermem built for this kernel", True, on_disk))
        if not isinstance(module.depends, Unknown):
            built = bool(_IB_EXPORTERS.intersection(module.depends))
            said = f"modules.dep: depends on {', '.join(module.depends) or 'nothing'}"
            requirements.append(Requirement("built with peer-memory symbols", built, said))
    state = module.state
    live: Maybe[bool] = state if isinstance(state, Unknown) else False
    word = str(state) if isinstance(state, Unknown) else state.value
    requirements.append(Requirement("nvidia_peermem loaded", live, f"/proc/modules: {word}"))
    return PathState(GdrPath.PEERMEM, _all_met(tuple(requirements)), tuple(requirements))


def probe(
    host: Host, kernel: KernelFacts, modules: ModuleFacts, gpus: GpuFacts, rdma: Maybe[RdmaFacts]
) -> GpuDirectFacts:
    """Decides as NCCL does (src/init.cc dmaBufSupported, net_ib/gdr.cc) and says from which evidence."""
    devices = [device.name for device in rdma.devices] if isinstance(rdma, RdmaFacts) else []
    with ThreadPoolExecutor(max_workers=8) as pool:
        nics = dict(zip(devices, map(dmabuf_verdict, pool.map(host.dmabuf_errno, devices)), strict=True))
    requirements = (*_driver_requirements(gpus), *_kernel_requirements(kernel, nics), _nic_requirement(nics))
    dmabuf = PathState(GdrPath.DMABUF, _all_met(requirements), requirements)
    peermem = _peermem(modules)
    preferred = None
    for state in (dmabuf, peermem):
        if preferred is None and not isinstance(state.usable, Unknown) and state.usable:
            preferred = state.path
    bufinfo = host.read(_BUFINFO, _BUFINFO_LIMIT)
    return GpuDirectFacts(
        dmabuf=dmabuf,
        peermem=peermem,
        preferred=preferred,
        nic_dmabuf=nics,
        dmabuf_in_use=bufinfo if isinstance(bufinfo, Unknown) else parse_bufinfo(bufinfo),
    )


def _number(host: Host, path: str) -> Maybe[int]:
    text = host.read(path, 4096)
    if isinstance(text, Unknown):
        return text
    return (
        int(text)
        if re.fullmatch(r"-?\d{1,19}", text)
        else Unknown(Reason.MALFORMED, path, printable(text, 40))
    )


def _difference(host: Host, client: str, more: str, less: str) -> Maybe[int]:
    up, down = _number(host, f"{client}/{more}"), _number(host, f"{client}/{less}")
    if isinstance(up, Unknown):
        return up
    return down if isinstance(down, Unknown) else up - down


def read_peermem(host: Host) -> PeermemReading:
    """One reading of the refcount of nvidia_peermem (else nv_peer_mem) and of memory_peers."""
    refcnt = _number(host, "/sys/module/nvidia_peermem/refcnt")
    if isinstance(refcnt, Unknown) and refcnt.reason is Reason.NOT_THERE:
        older = _number(host, "/sys/module/nv_peer_mem/refcnt")
        refcnt = refcnt if isinstance(older, Unknown) else older
    clients = host.names(_PEERS)
    if isinstance(clients, Unknown):
        return PeermemReading(refcnt, clients)
    peers = []
    for client in clients[:16]:
        path = f"{_PEERS}/{client}"
        peers.append(
            MemoryPeer(
                printable(client, 32),
                _difference(host, path, "num_alloc_mrs", "num_dealloc_mrs"),
                _difference(host, path, "num_reg_bytes", "num_dereg_bytes"),
            )
        )
    return PeermemReading(refcnt, tuple(peers))
