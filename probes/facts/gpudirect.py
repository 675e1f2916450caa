"""GPUDirect RDMA: which path this node can use, and which it is using."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.gpu.gpus import DriverFacts, Flavour, Gpu, GpuFacts, is_vgpu
from probes.facts.kernel.modules import PEER_MEMORY_SYMBOL, ModuleFacts, ModuleState
from probes.facts.kernel.release import KernelFacts
from probes.facts.rdma.devices import RdmaDevice, RdmaFacts
from probes.host.cuda import DMABUF_SUPPORTED, RDMA_SUPPORTED, CudaGpu
from probes.host.protocol import Host


class GdrPath(Enum):
    """How a NIC reaches GPU memory."""

    DMABUF = "DMA-BUF"
    PEERMEM = "nvidia-peermem"
    EFA = "efa_nv_peermem"  # AWS EFA's own peer-memory path, in which nvidia_peermem plays no part


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
class GpuSupport:
    """What one GPU supports, whatever modules and NICs can do."""

    dmabuf: Maybe[bool]
    peermem: Maybe[bool]
    reason: str = ""  # why not: "GeForce GPUs do not support GPUDirect RDMA"
    evidence: str = ""  # "cuDeviceGetAttribute(116) = 0"
    by_design: bool = False  # no setting and no software brings it


@dataclass(frozen=True)
class MemoryPeer:
    """One client below /sys/kernel/mm/memory_peers (absent on kernels ≥ 6.4)."""

    client: str  # "nv_mem", "nv_mem_nc"
    live_mrs: Maybe[int]  # num_alloc_mrs - num_dealloc_mrs
    live_bytes: Maybe[int]


@dataclass(frozen=True)
class GpuDirectFacts:
    """Both paths, what each NIC and each GPU can do, and the signs of use."""

    dmabuf: PathState
    peermem: PathState  # on a node whose NICs are all EFA: that of efa_nv_peermem
    preferred: GdrPath | None  # what NCCL would take: DMA-BUF before peermem; None: neither is usable
    nic_dmabuf: dict[str, Maybe[bool]]  # RDMA device name -> its ibv_reg_dmabuf_mr verdict
    dmabuf_in_use: Maybe[bool]  # root only: bufinfo lists a NIC that is attached to a buffer of nv_dmabuf
    nic_peermem: dict[str, Maybe[bool]] = field(default_factory=dict)  # RDMA device -> can use peer memory
    gpu_support: dict[str, GpuSupport] = field(default_factory=dict)  # by BDF
    cuda_failure: str = ""  # why no CUDA program starts, whatever the paths: "… cuInit(0) returned 802 …"

    @property
    def by_design(self) -> str:
        """Why no GPU of this node can ever use GPUDirect RDMA; "" where one can."""
        support = tuple(self.gpu_support.values())
        return support[0].reason if support and all(one.by_design for one in support) else ""


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
_FIRST_TOPOLOGY_CHECK = (580, 65, 6)  # the first driver that reads GrdmaPciTopoCheckOverride
# Only OFED's and Broadcom's drivers ask peer-memory clients for an address (ib_umem_get_peer).
_PEER_DRIVERS = ("mlx5_core", "mlx4_core", "bnxt_en")
_EFA_MODULE = "efa_nv_peermem"
_MELLANOX = "0x15b3"  # its DMA function (Data Direct) attaches in place of the NIC
_BY_DESIGN = (
    (re.compile(r"geforce", re.IGNORECASE), "GeForce GPUs do not support GPUDirect RDMA"),
    (re.compile(r"\bGB10\b"), "GB10 (DGX Spark) does not support GPUDirect RDMA"),
)
_CUDA_ERRORS = {
    "802": "the NVSwitch fabric is not set up; check Fabric Manager",
    "803": "the driver's kernel modules and libraries have different versions",
}
_PEER_MODULES = ("nvidia_peermem", "nv_peer_mem")
_IB_EXPORTERS = {"ib_core", "ib_uverbs", "ib_peer_mem"}
_PRESENT = (ModuleState.LIVE, ModuleState.BUILTIN)
_TOPOLOGY_CHECK = "GrdmaPciTopoCheckOverride"
_DENY = "2"  # NVreg_GrdmaPciTopoCheckOverride, nv-pci.c nv_grdma_pci_topology_supported


def parse_bufinfo(text: str) -> frozenset[str]:
    """Return the devices attached to buffers that nv_dmabuf exported, by their kernel names (PCI: BDF).

    drivers/dma-buf/dma-buf.c dma_buf_debug_show: a line "size flags mode count exporter ino name" for each
    buffer, its fences, "Attached Devices:", a device name a line, "Total N devices attached".
    """
    attached: set[str] = set()
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
            attached.add(words[0])
    return frozenset(attached)


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
    return [*requirements, *_topology_requirements(gpus, GdrPath.DMABUF)]


def _topology_requirements(gpus: Maybe[GpuFacts], path: GdrPath) -> list[Requirement]:
    """The option that refuses both paths (nv-dmabuf.c, osapi.c); GPUs on a CPU's C2C links are exempt."""
    if isinstance(gpus, Unknown) or isinstance(gpus.driver.parameters, Unknown):
        return []
    if gpus.driver.parameters.get(_TOPOLOGY_CHECK) != _DENY:
        return []
    numbers = parse_driver_version(known(gpus.driver.version, ""))
    if numbers is not None and numbers < _FIRST_TOPOLOGY_CHECK:
        return []
    if gpus.gpus and all(known(gpu.c2c_links, 0) for gpu in gpus.gpus):
        return []
    evidence = f"/proc/driver/nvidia/params: {_TOPOLOGY_CHECK}: {_DENY}"
    lack = f"NVreg_{_TOPOLOGY_CHECK}={_DENY} makes the driver refuse {path.value}"
    return [Requirement("a driver that lets NICs attach", False, evidence, lack)]


def _support_of(gpu: Gpu, driver: DriverFacts, answer: CudaGpu | None) -> GpuSupport:
    """What one GPU supports, by its kind and by libcuda; a libcuda that does not answer decides nothing."""
    if known(driver.confidential_computing, False):
        reason = "confidential computing keeps NICs out of GPU memory"
        return GpuSupport(False, False, reason, "NVML: confidential computing is on", True)
    not_asked = Unknown(Reason.NOT_THERE, "libcuda", "libcuda was not asked")
    rdma: Maybe[bool] = not_asked if answer is None else answer.rdma_supported
    dmabuf: Maybe[bool] = not_asked if answer is None else answer.dmabuf_supported
    denied = [
        f"cuDeviceGetAttribute({attribute}) = 0"
        for attribute, supported in ((RDMA_SUPPORTED, rdma), (DMABUF_SUPPORTED, dmabuf))
        if supported is False
    ]
    evidence = f"GPU{gpu.index}: {', '.join(denied) or gpu.name}"
    if rdma is not True:
        for name, reason in _BY_DESIGN:
            if name.search(gpu.name):
                return GpuSupport(False, False, reason, evidence, True)
    if rdma is not True and dmabuf is not True and is_vgpu(gpu) is True:
        reason = "this vGPU profile does not support GPUDirect RDMA"
        return GpuSupport(dmabuf, rdma, reason, evidence, len(denied) == 2)
    reason = f"GPU{gpu.index} does not support it" if denied else ""
    if known(gpu.compute_capability, _OLDEST_CAPABILITY) < _OLDEST_CAPABILITY:
        reason = reason or f"DMA-BUF needs compute capability 7.5 or newer; GPU{gpu.index} is older"
        dmabuf, evidence = False, evidence if denied else f"NVML: GPU{gpu.index} is {gpu.name}"
    return GpuSupport(known(dmabuf, True), known(rdma, True), reason, evidence)


def _support(gpus: Maybe[GpuFacts], cuda: Maybe[tuple[CudaGpu, ...]]) -> dict[str, GpuSupport]:
    answers = {} if isinstance(cuda, Unknown) else {answer.bdf: answer for answer in cuda}
    if isinstance(gpus, Unknown):
        return {}
    return {gpu.bdf: _support_of(gpu, gpus.driver, answers.get(gpu.bdf)) for gpu in gpus.gpus}


def _cuda_failure(cuda: Maybe[tuple[CudaGpu, ...]]) -> str:
    """The error of cuInit that every CUDA program gets; "" where it is none of the node's state."""
    match = re.search(r"cuInit\(0\) returned (\d{1,4})", cuda.detail) if isinstance(cuda, Unknown) else None
    if match is None or match[1] not in _CUDA_ERRORS:
        return ""
    return f"no CUDA program starts: cuInit(0) returned {match[1]} ({_CUDA_ERRORS[match[1]]})"


def _support_requirements(support: dict[str, GpuSupport], path: GdrPath) -> list[Requirement]:
    """Where some GPUs support a path, the path is there for those."""
    by_dmabuf = path is GdrPath.DMABUF
    answers = [(one.dmabuf if by_dmabuf else one.peermem, one) for one in support.values()]
    name = f"GPUs that support {path.value}"
    refused = [one for answer, one in answers if answer is False]
    unsure = [answer for answer, _ in answers if isinstance(answer, Unknown)]
    if refused:
        met: Maybe[bool] = len(refused) < len(answers)
        if unsure and len(refused) + len(unsure) == len(answers):
            met = unsure[0]
        first = refused[0]
        lack = f"by design: {first.reason}" if first.by_design else first.reason
        return [Requirement(name, met, first.evidence, lack)]
    if answers and len(unsure) == len(answers):
        return [Requirement(name, unsure[0], "libcuda", "few vGPU profiles support GPUDirect RDMA")]
    return []


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
        new = Unknown(Reason.NOT_THERE, source, f"{release} is older than 5.12; OFED may bring DMA-BUF")
    lack = f"DMA-BUF needs kernel 5.12 or newer, or OFED's back-port; this is {release}"
    return [Requirement("a kernel with DMA-BUF (5.12 or newer)", new, said, lack)]


def _verbs_requirement(modules: Maybe[ModuleFacts], answers: dict[str, Maybe[bool]]) -> Requirement:
    state = _state(modules, "ib_uverbs")
    asked = any(not isinstance(answer, Unknown) for answer in answers.values())
    met: Maybe[bool] = state in _PRESENT if not isinstance(state, Unknown) else True if asked else state
    said = f"/proc/modules: ib_uverbs is {_word(state)}"
    return Requirement("ib_uverbs loaded", met, said, "ib_uverbs is not loaded")


def _nic_requirement(rdma: Maybe[RdmaFacts], answers: dict[str, Maybe[bool]]) -> Requirement:
    name, probe_name = "a NIC driver that supports DMA-BUF", "ibv_reg_dmabuf_mr probe"
    if isinstance(rdma, Unknown) and rdma.reason is not Reason.NOT_THERE:
        return Requirement(name, rdma, f"/sys/class/infiniband: {rdma}")
    elsewhere = () if isinstance(rdma, Unknown) else rdma.devices_elsewhere
    if not answers and not elsewhere:
        return Requirement(name, False, "/sys/class/infiniband: no RDMA device", "there is no RDMA device")
    able = [nic for nic, answer in answers.items() if not isinstance(answer, Unknown) and answer]
    unsure = [answer for answer in answers.values() if isinstance(answer, Unknown)]
    if able:
        return Requirement(name, True, f"{probe_name}: yes on {', '.join(able)}")
    if unsure:
        return Requirement(name, unsure[0], f"{probe_name}: {unsure[0]}")
    if elsewhere:
        unseen = Unknown(Reason.NOT_THERE, "/sys/class/infiniband", "in another network namespace")
        return Requirement(
            name, unseen, f"/sys/bus/auxiliary/devices: RDMA devices of {', '.join(elsewhere)}"
        )
    refused = ", ".join(answers)
    lack = f"the kernel or the NIC driver does not support DMA-BUF on {refused}"
    return Requirement(name, False, f"{probe_name}: not supported on {refused}", lack)


def _peermem(modules: Maybe[ModuleFacts], of_gpus: list[Requirement]) -> PathState:
    for name in _PEER_MODULES:
        if _state(modules, name) is ModuleState.LIVE:
            # It fails to load unless it registers with the IB core (nvidia-peermem.c nv_mem_client_init).
            evidence = f"/proc/modules: {name} is live, and so registered with the IB core"
            met = (Requirement(f"{name} loaded", True, evidence), *of_gpus)
            return PathState(GdrPath.PEERMEM, _all_met(met), met)
    state = _state(modules, "nvidia_peermem")
    requirements = [] if isinstance(modules, Unknown) else _loadable(modules)
    live = state if isinstance(state, Unknown) else False
    said, lack = f"/proc/modules: nvidia_peermem is {_word(state)}", "nvidia_peermem is not loaded"
    requirements.append(Requirement("nvidia_peermem loaded", live, said, lack))
    requirements.extend(of_gpus)
    return PathState(GdrPath.PEERMEM, _all_met(tuple(requirements)), tuple(requirements))


def _is_live(host: Host, module: str) -> Maybe[bool]:
    state = host.read(f"/sys/module/{module}/initstate", 64)
    if isinstance(state, Unknown):
        return False if state.reason is Reason.NOT_THERE else state
    return state == "live"


def _efa(host: Host, device: RdmaDevice) -> Requirement:
    """EFA's own peer memory: its module, or what the driver says of itself (amzn-drivers efa_sysfs.c)."""
    base = f"{device.sysfs_path}/device"
    provider, built = known(host.read(f"{base}/p2p", 64), ""), known(host.read(f"{base}/gdr", 64), "")
    live = _is_live(host, _EFA_MODULE)
    word = str(live) if isinstance(live, Unknown) else "live" if live else "not loaded"
    evidence = f"/sys/module/{_EFA_MODULE}: {word}"
    if provider.startswith("NVIDIA"):
        live, evidence = True, f"{base}/p2p: {printable(provider, 40)}"
    elif built == "1":
        live, evidence = True, f"{base}/gdr: 1"
    return Requirement("EFA's peer memory", live, evidence, f"{_EFA_MODULE} is not loaded")


def _nics_by_peer_memory(host: Host, devices: list[RdmaDevice], peermem: PathState) -> dict[str, Maybe[bool]]:
    """Whether each NIC can use peer memory now; a driver that is not known is taken for one that can."""
    answers: dict[str, Maybe[bool]] = {}
    for device in devices:
        driver = known(device.driver, "")
        if driver == "efa":
            answers[device.name] = _efa(host, device).met
        elif driver == "bnxt_en":
            answers[device.name] = _is_live(host, "ib_peer_mem") if peermem.usable is True else peermem.usable
        else:
            answers[device.name] = peermem.usable if not driver or driver in _PEER_DRIVERS else False
    return answers


def _attached(host: Host, text: Maybe[str], devices: list[RdmaDevice]) -> Maybe[bool]:
    """Whether a NIC is among the devices attached to the GPU driver's buffers."""
    if isinstance(text, Unknown):
        return text
    nics = {known(device.bdf, "") for device in devices}
    return any(
        name in nics or host.read(f"/sys/bus/pci/devices/{name}/vendor", 64) == _MELLANOX
        for name in parse_bufinfo(text)
        if re.fullmatch(r"[0-9a-f:.]{7,16}", name)
    )


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


def hardware_of(rdma: Maybe[RdmaFacts]) -> list[RdmaDevice]:
    """The RDMA devices on a PCI function; rxe and siw reach no GPU memory."""
    devices = () if isinstance(rdma, Unknown) else rdma.devices
    return [device for device in devices if not isinstance(device.bdf, Unknown)]


def _ask_nics(host: Host, hardware: list[RdmaDevice]) -> dict[str, Maybe[bool]]:
    """The probe on every RDMA device that is hardware, by name."""
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
    ask_cuda: Callable[[], Maybe[tuple[CudaGpu, ...]]] | None = None,
) -> GpuDirectFacts:
    """Decide as NCCL does (src/init.cc dmaBufSupported, net_ib/gdr.cc) and say from which evidence.

    `ask_cuda`: where libcuda is asked already, how to get its answer.
    """
    hardware = hardware_of(rdma)
    answers = _ask_nics(host, hardware)
    cuda = (ask_cuda or host.cuda_gpus)()
    support = _support(gpus, cuda)
    requirements = (
        *_driver_requirements(modules, gpus),
        *_kernel_requirements(kernel, answers),
        _verbs_requirement(modules, answers),
        _nic_requirement(rdma, answers),
        *_support_requirements(support, GdrPath.DMABUF),
    )
    dmabuf = PathState(GdrPath.DMABUF, _all_met(requirements), requirements)
    of_gpus = _support_requirements(support, GdrPath.PEERMEM)
    peermem = _peermem(modules, [*_topology_requirements(gpus, GdrPath.PEERMEM), *of_gpus])
    if hardware and all(known(device.driver, "") == "efa" for device in hardware):
        needed = (_efa(host, hardware[0]), *of_gpus)
        peermem = PathState(GdrPath.EFA, _all_met(needed), needed)
    preferred = None
    for state in (dmabuf, peermem):
        if preferred is None and not isinstance(state.usable, Unknown) and state.usable:
            preferred = state.path
    return GpuDirectFacts(
        dmabuf=dmabuf,
        peermem=peermem,
        preferred=preferred,
        nic_dmabuf=answers,
        dmabuf_in_use=_attached(host, host.read(_BUFINFO, _BUFINFO_LIMIT), hardware),
        nic_peermem=_nics_by_peer_memory(host, hardware, peermem),
        gpu_support=support,
        cuda_failure=_cuda_failure(cuda),
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
