"""GPUDirect RDMA: which path this node can use, and which it is using."""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass
from enum import Enum

from probes.gpus import Flavour, GpuFacts
from probes.host import Host
from probes.kernel import KernelFacts
from probes.modules import PEER_MEMORY_SYMBOL, ModuleFacts, ModuleState
from probes.rdma import RdmaFacts
from probes.text import printable
from probes.unknown import Maybe, Reason, Unknown


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
    lack: str = ""  # what to say where it is not met: "DMA-BUF needs the open kernel modules"


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
_FIRST_OPEN_DRIVER = (515, 43, 4)  # the first with nv-dmabuf.c
_FIRST_KERNEL = (5, 12)
_OLDEST_CAPABILITY = (7, 5)  # Turing: the open kernel modules serve nothing older
_PEER_MODULES = ("nvidia_peermem", "nv_peer_mem")
_IB_EXPORTERS = {"ib_core", "ib_uverbs", "ib_peer_mem"}
_PRESENT = (ModuleState.LIVE, ModuleState.BUILTIN)
_TOPOLOGY_CHECK = "GrdmaPciTopoCheckOverride"
_DENY = "2"  # NVreg_GrdmaPciTopoCheckOverride, nv-pci.c nv_grdma_pci_topology_supported


def parse_bufinfo(text: str) -> bool:
    """Whether bufinfo lists a buffer exported by nv_dmabuf with a device attached.

    drivers/dma-buf/dma-buf.c dma_buf_debug_show: a line "size flags mode count exporter ino name" for each
    buffer, its fences, "Attached Devices:", a device name a line, "Total N devices attached".
    """
    ours = devices = False
    for line in text.splitlines():
        words = line.split()
        if re.match(r"\d{8,20}\t", line):
            ours, devices = len(words) > 4 and words[4] == "nv_dmabuf", False
        elif words[:2] == ["Attached", "Devices:"]:
            devices = True
        elif words[:1] == ["Total"]:
            devices = False
        elif ours and devices and words:
            return True
    return False


def dmabuf_verdict(number: Maybe[int]) -> Maybe[bool]:
    """What the errno of the probe means (NCCL src/transport/net_ib/gdr.cc)."""
    if isinstance(number, Unknown):
        return number
    return number not in (errno.EOPNOTSUPP, errno.EPROTONOSUPPORT)


def parse_driver_version(text: str) -> tuple[int, int, int] | None:
    """The numbers of "515.43.04"; a version of two parts has 0 as its third."""
    match = re.match(r"(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?(?![\d.])", text)
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


def _all_met(requirements: tuple[Requirement, ...]) -> Maybe[bool]:
    """False as soon as one is not met, else the first reason why one is unknown, else True."""
    unsure: Unknown | None = None
    for one in requirements:
        if isinstance(one.met, Unknown):
            unsure = one.met if unsure is None else unsure
        elif not one.met:
            return False
    return True if unsure is None else unsure


def _state(modules: Maybe[ModuleFacts], name: str) -> Maybe[ModuleState]:
    if isinstance(modules, Unknown):
        return modules
    module = modules.modules.get(name)
    return Unknown(Reason.NOT_THERE, f"/sys/module/{name}") if module is None else module.state


def _word(state: Maybe[ModuleState]) -> str:
    return str(state) if isinstance(state, Unknown) else state.value


def _driver_requirements(modules: Maybe[ModuleFacts], gpus: Maybe[GpuFacts]) -> list[Requirement]:
    source = "/proc/driver/nvidia/version"
    version = gpus if isinstance(gpus, Unknown) else gpus.driver.version
    flavour = gpus if isinstance(gpus, Unknown) else gpus.driver.flavour
    state = _state(modules, "nvidia")
    requirements = []
    if not isinstance(state, Unknown) and state not in _PRESENT and isinstance(flavour, Unknown):
        lack = "the NVIDIA driver is not loaded"
        requirements.append(
            Requirement("the NVIDIA driver loaded", False, f"/proc/modules: nvidia is {state.value}", lack)
        )
    is_open = flavour if isinstance(flavour, Unknown) else flavour is Flavour.OPEN
    word = str(flavour) if isinstance(flavour, Unknown) else f"{flavour.value} kernel modules"
    said = f"{source}: {word}" if isinstance(version, Unknown) else f"{source}: {word}, {version}"
    lack = "DMA-BUF needs the open kernel modules"
    requirements.append(Requirement("open NVIDIA kernel modules", is_open, said, lack))
    numbers = version if isinstance(version, Unknown) else parse_driver_version(version)
    new: Maybe[bool]
    if isinstance(numbers, Unknown):
        new = numbers
    else:
        new = Unknown(Reason.MALFORMED, source) if numbers is None else numbers >= _FIRST_OPEN_DRIVER
    said, lack = f"{source}: {version}", "DMA-BUF needs driver 515.43.04 or newer"
    requirements.append(Requirement("driver 515.43.04 or newer", new, said, lack))
    if not isinstance(gpus, Unknown):
        requirements.extend(_gpu_requirements(gpus))
    return requirements


def _gpu_requirements(gpus: GpuFacts) -> list[Requirement]:
    requirements = []
    old = [
        f"GPU{gpu.index} {gpu.name}"
        for gpu in gpus.gpus
        if not isinstance(gpu.compute_capability, Unknown) and gpu.compute_capability < _OLDEST_CAPABILITY
    ]
    if old:
        said = f"NVML: older are {', '.join(old)}"
        lack = "DMA-BUF needs GPUs of compute capability 7.5 or newer"
        # Where others are new enough, the path is there for those.
        met = len(old) < len(gpus.gpus)
        requirements.append(Requirement("GPUs of compute capability 7.5 or newer", met, said, lack))
    parameters = gpus.driver.parameters
    if not isinstance(parameters, Unknown) and parameters.get(_TOPOLOGY_CHECK) == _DENY:
        said = f"/proc/driver/nvidia/params: {_TOPOLOGY_CHECK}: {_DENY}"
        lack = f"NVreg_{_TOPOLOGY_CHECK}={_DENY} makes the driver refuse DMA-BUF"
        requirements.append(Requirement("a driver that lets NICs attach", False, said, lack))
    return requirements


def _kernel_requirements(kernel: Maybe[KernelFacts], answers: dict[str, Maybe[bool]]) -> list[Requirement]:
    """Config and release are hints only: OFED brings dma-buf regions to older kernels. The probe decides."""
    source = "/proc/sys/kernel/osrelease"
    if isinstance(kernel, Unknown):
        release: Maybe[str] = kernel
        new: Maybe[bool] = kernel
        configured: Maybe[bool] = kernel
    else:
        release, configured = kernel.release, kernel.dma_shared_buffer
        new = kernel.version if isinstance(kernel.version, Unknown) else kernel.version >= _FIRST_KERNEL
    asked = [answer for answer in answers.values() if not isinstance(answer, Unknown)]
    said = f"{source}: {release}"
    if any(asked):
        return [Requirement("a kernel with DMA-BUF", True, f"{said}; the NIC probe says yes")]
    if not isinstance(configured, Unknown) and not configured:
        said = f"kernel config of {release}: CONFIG_DMA_SHARED_BUFFER is not set"
        lack = "DMA-BUF needs a kernel with CONFIG_DMA_SHARED_BUFFER"
        return [Requirement("a kernel with DMA-BUF", False, said, lack)]
    if not isinstance(new, Unknown) and not new and not asked:
        new = Unknown(Reason.NOT_THERE, source, f"older than 5.12, unless OFED brings it: {release}")
    lack = f"DMA-BUF needs kernel 5.12 or newer, or OFED's back-port; this is {release}"
    return [Requirement("a kernel with DMA-BUF (5.12 or newer)", new, said, lack)]


def _verbs_requirement(modules: Maybe[ModuleFacts], answers: dict[str, Maybe[bool]]) -> Requirement:
    state = _state(modules, "ib_uverbs")
    asked = any(not isinstance(answer, Unknown) for answer in answers.values())
    met: Maybe[bool] = state in _PRESENT if not isinstance(state, Unknown) else True if asked else state
    said = f"/proc/modules: ib_uverbs is {_word(state)}"
    return Requirement("ib_uverbs loaded", met, said, "ib_uverbs is not loaded")


def _nic_requirement(rdma: Maybe[RdmaFacts], answers: dict[str, Maybe[bool]]) -> Requirement:
    name, probe_name = "a NIC driver that takes dma-buf regions", "ibv_reg_dmabuf_mr probe"
    if isinstance(rdma, Unknown) and rdma.reason is not Reason.NOT_THERE:
        return Requirement(name, rdma, f"/sys/class/infiniband: {rdma}")
    if not answers:
        return Requirement(name, False, "/sys/class/infiniband: no RDMA device", "there is no RDMA device")
    able = [nic for nic, answer in answers.items() if not isinstance(answer, Unknown) and answer]
    unsure = [answer for answer in answers.values() if isinstance(answer, Unknown)]
    if able:
        return Requirement(name, True, f"{probe_name}: yes on {', '.join(able)}")
    if unsure:
        return Requirement(name, unsure[0], f"{probe_name}: {unsure[0]}")
    refused = ", ".join(answers)
    lack = f"kernel or driver of {refused} takes no dma-buf regions"
    return Requirement(name, False, f"{probe_name}: not supported on {refused}", lack)


def _peermem(modules: Maybe[ModuleFacts]) -> PathState:
    for name in _PEER_MODULES:
        if _state(modules, name) is ModuleState.LIVE:
            # It fails to load unless it registers with the IB core (nvidia-peermem.c nv_mem_client_init).
            evidence = f"/proc/modules: {name} is live, and so registered with the IB core"
            return PathState(GdrPath.PEERMEM, True, (Requirement(f"{name} loaded", True, evidence),))
    state = _state(modules, "nvidia_peermem")
    requirements = [] if isinstance(modules, Unknown) else _loadable(modules)
    live = state if isinstance(state, Unknown) else False
    said, lack = f"/proc/modules: nvidia_peermem is {_word(state)}", "nvidia_peermem is not loaded"
    requirements.append(Requirement("nvidia_peermem loaded", live, said, lack))
    return PathState(GdrPath.PEERMEM, _all_met(tuple(requirements)), tuple(requirements))


def _loadable(modules: ModuleFacts) -> list[Requirement]:
    """What nvidia_peermem needs before it can be loaded (nvidia-peermem.c; conftest.sh)."""
    module = modules.modules.get("nvidia_peermem")
    if module is None:
        return []
    requirements = []
    name, lack = "nvidia_peermem built for this kernel", "there is no nvidia_peermem for this kernel"
    depends: Maybe[tuple[str, ...]] = module.depends
    if isinstance(module.on_disk, Unknown):
        there: Maybe[bool] = False if module.on_disk.reason is Reason.NOT_THERE else module.on_disk
        requirements.append(Requirement(name, there, f"modules.dep: {module.on_disk}", lack))
    else:
        requirements.append(Requirement(name, True, module.on_disk))
        built = depends if isinstance(depends, Unknown) else bool(_IB_EXPORTERS.intersection(depends))
        listed = str(depends) if isinstance(depends, Unknown) else ", ".join(depends) or "nothing"
        said = f"modules.dep: depends on {listed}"
        lack = "nvidia_peermem was built without peer-memory symbols"
        requirements.append(Requirement("built with peer-memory symbols", built, said, lack))
    requirements.append(_exported(modules))
    return requirements


def _exported(modules: ModuleFacts) -> Requirement:
    name, lack = "peer-memory symbols in the IB core", "the IB core exports no peer-memory symbols"
    if not isinstance(modules.memory_peers, Unknown):
        return Requirement(name, True, f"{_PEERS} is there")
    symbol = next((one for one in modules.symbols if one.symbol == PEER_MEMORY_SYMBOL), None)
    if symbol is None:
        return Requirement(name, modules.memory_peers, f"{_PEERS}: {modules.memory_peers}")
    provider = symbol.provider
    if not isinstance(provider, Unknown):
        return Requirement(name, True, f"modules.symbols: {symbol.symbol} is in {provider}")
    core = _state(modules, "ib_core")
    # modules.symbols lists modules only: an IB core built into the kernel is not in it.
    absent = provider.reason is Reason.NOT_THERE and core is not ModuleState.BUILTIN
    return Requirement(name, False if absent else provider, f"modules.symbols: {provider}", lack)


def _ask_nics(host: Host, rdma: Maybe[RdmaFacts]) -> dict[str, Maybe[bool]]:
    """The probe on every RDMA device that is hardware, by name."""
    devices = [] if isinstance(rdma, Unknown) else rdma.devices
    hardware = [device for device in devices if not isinstance(device.bdf, Unknown)]
    if not hardware:
        return {}
    kernel_names = {device.name: device.sysfs_path.rpartition("/")[2] for device in hardware}
    numbers = host.dmabuf_errnos(tuple(kernel_names.values()))
    return {name: dmabuf_verdict(numbers[kernel_name]) for name, kernel_name in kernel_names.items()}


def probe(
    host: Host,
    kernel: Maybe[KernelFacts],
    modules: Maybe[ModuleFacts],
    gpus: Maybe[GpuFacts],
    rdma: Maybe[RdmaFacts],
) -> GpuDirectFacts:
    """Decides as NCCL does (src/init.cc dmaBufSupported, net_ib/gdr.cc) and says from which evidence."""
    answers = _ask_nics(host, rdma)
    requirements = (
        *_driver_requirements(modules, gpus),
        *_kernel_requirements(kernel, answers),
        _verbs_requirement(modules, answers),
        _nic_requirement(rdma, answers),
    )
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
        nic_dmabuf=answers,
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
