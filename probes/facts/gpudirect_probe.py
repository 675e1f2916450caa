"""GPUDirect RDMA: what each path requires, which one this node can use, and which it is using."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterable

from probes.base.frozen import frozen
from probes.base.text import join_limited, printable
from probes.base.unknown import (
    Maybe,
    Reason,
    Unknown,
    all_of,
    any_of,
    first_unread,
    is_there,
    known,
    map_known,
    parse_known,
)
from probes.facts.gpu.generations import TURING, is_before, without_gdr
from probes.facts.gpu.gpus import DriverFacts, Flavor, Gpu, GpuFacts, is_vgpu
from probes.facts.gpudirect import (
    MEMORY_PEERS,
    GdrPath,
    GpuDirectFacts,
    GpuSupport,
    PathState,
    Requirement,
    hardware_of,
    parse_driver_version,
)
from probes.facts.kernel.module_files import PEER_MEMORY_SYMBOL
from probes.facts.kernel.modules import EFA_PEERMEM, PRESENT, ModuleFacts, ModuleState, has_ofed_peer_memory
from probes.facts.kernel.release import KernelFacts
from probes.facts.pci.nic_families import PEER_DRIVERS, SLINGSHOT
from probes.facts.rdma.cxi import has_verbs
from probes.facts.rdma.data_direct import DataDirectFacts, functions_of_nics
from probes.facts.rdma.devices import RdmaDevice, RdmaFacts
from probes.host.protocol import DMABUF_SUPPORTED, RDMA_SUPPORTED, CudaGpu, Host

# cass_nvidia_gpu.c: exists only in a driver that was built with NVIDIA's headers.
CXI_GPU_PARAMETER = "/sys/module/cxi_ss1/parameters/nv_p2p_persistent"
FIRST_OPEN_ONLY = (620, 0, 0)  # from here on there are no proprietary kernel modules
FIRST_DMABUF_DRIVER = (515, 43, 4)  # the first with nv-dmabuf.c
FIRST_DMABUF_KERNEL = (5, 12)
PEER_MODULES = ("nvidia_peermem", "nv_peer_mem")
IB_EXPORTERS = frozenset({"ib_core", "ib_uverbs", "ib_peer_mem"})
TOPOLOGY_CHECK = "GrdmaPciTopoCheckOverride"
_DENY = "2"
_FIRST_DENIAL = (580, 65, 6)  # 570.86.16 to 575.64.05 have the option, too: any value but 0 allows


def path_state(path: GdrPath, requirements: Iterable[Requirement]) -> PathState:
    """Return the state of a path: usable if all requirements are met."""
    conditions = tuple(requirements)
    return PathState(path, all_of(condition.met for condition in conditions), conditions)


def _state(modules: Maybe[ModuleFacts], name: str) -> Maybe[ModuleState]:
    if isinstance(modules, Unknown):
        return modules
    module = modules.modules.get(name)
    return Unknown(Reason.NOT_THERE, f"/sys/module/{name}") if module is None else module.state


def _word(state: Maybe[ModuleState]) -> str:
    return str(state) if isinstance(state, Unknown) else state.value


# The driver and the GPUs


def driver_requirements(modules: Maybe[ModuleFacts], gpus: Maybe[GpuFacts]) -> list[Requirement]:
    """Return what DMA-BUF requires of the NVIDIA driver."""
    source = "/proc/driver/nvidia/version"
    version = map_known(gpus, lambda facts: facts.driver.version)
    flavor = map_known(gpus, lambda facts: facts.driver.flavor)
    state = _state(modules, "nvidia")
    requirements = []
    if not isinstance(state, Unknown) and state not in PRESENT and isinstance(flavor, Unknown):
        evidence, lack = f"/proc/modules: nvidia is {state.value}", "the NVIDIA driver is not loaded"
        requirements.append(Requirement("the NVIDIA driver loaded", False, evidence, lack))
    is_open = flavor if isinstance(flavor, Unknown) else flavor is Flavor.OPEN
    word = str(flavor) if isinstance(flavor, Unknown) else f"{flavor.value} kernel modules"
    evidence = f"{source}: {word}" if isinstance(version, Unknown) else f"{source}: {word}, {version}"
    lack = "DMA-BUF needs the open kernel modules"
    requirements.append(Requirement("open NVIDIA kernel modules", is_open, evidence, lack))
    numbers = parse_known(version, parse_driver_version, source)
    new = map_known(numbers, lambda found: found >= FIRST_DMABUF_DRIVER)
    lack = "DMA-BUF needs driver 515.43.04 or newer"
    requirements.append(Requirement("driver 515.43.04 or newer", new, f"{source}: {version}", lack))
    return [*requirements, *topology_requirements(gpus, GdrPath.DMABUF)]


def topology_requirements(gpus: Maybe[GpuFacts], path: GdrPath) -> list[Requirement]:
    """Return the driver option that refuses both paths (nv-dmabuf.c, osapi.c), if it is set."""
    if isinstance(gpus, Unknown) or known(why_topology_allowed(gpus), "?"):
        return []
    evidence = f"/proc/driver/nvidia/params: {TOPOLOGY_CHECK}: {_DENY}"
    lack = f"NVreg_{TOPOLOGY_CHECK}={_DENY} makes the driver refuse {path.value}"
    return [Requirement("a driver that lets NICs attach", False, evidence, lack)]


def why_topology_allowed(gpus: GpuFacts) -> Maybe[str]:
    """Return why the driver's option denies no NIC access to GPU memory; "": it denies it to all.

    Sources: nv-reg.h; nv-pci.c, nv_grdma_pci_topology_supported, which allows
    coherent platforms before it looks at the option.
    """
    value = map_known(gpus.driver.parameters, lambda found: found.get(TOPOLOGY_CHECK, "not listed"))
    if isinstance(value, Unknown) or value != _DENY:
        return map_known(value, lambda value: f"{TOPOLOGY_CHECK}: {value}")
    if gpus.gpus and all(known(gpu.c2c_links, 0) for gpu in gpus.gpus):
        return "GPUs coherent with their CPU: the option has no effect"
    version = map_known(gpus.driver.version, parse_driver_version)
    if not isinstance(version, Unknown) and version is not None and version < _FIRST_DENIAL:
        return f"driver {gpus.driver.version}: {_DENY} denies only from 580.65.06 on"
    return ""


def gpu_support(gpus: Maybe[GpuFacts], cuda: Maybe[tuple[CudaGpu, ...]]) -> dict[str, GpuSupport]:
    """Return what each GPU supports, by BDF."""
    answers = {} if isinstance(cuda, Unknown) else {answer.bdf: answer for answer in cuda}
    if isinstance(gpus, Unknown):
        return {}
    return {gpu.bdf: _support_of(gpu, gpus.driver, answers.get(gpu.bdf)) for gpu in gpus.gpus}


def _support_of(gpu: Gpu, driver: DriverFacts, answer: CudaGpu | None) -> GpuSupport:
    """Return what a GPU supports, by its model and by libcuda; without libcuda's answer, by its model."""
    if known(driver.confidential_computing, False):
        reason = "confidential computing keeps NICs out of GPU memory"
        return GpuSupport(False, False, reason, "NVML: confidential computing is on", True)
    not_asked = Unknown(Reason.NOT_THERE, "libcuda", "libcuda was not queried")
    rdma: Maybe[bool] = not_asked if answer is None else answer.rdma_supported
    dmabuf: Maybe[bool] = not_asked if answer is None else answer.dmabuf_supported
    denied = [
        f"cuDeviceGetAttribute({attribute}) = 0"
        for attribute, supported in ((RDMA_SUPPORTED, rdma), (DMABUF_SUPPORTED, dmabuf))
        if supported is False
    ]
    evidence = f"GPU{gpu.index}: {', '.join(denied) or gpu.name}"
    if rdma is not True and (by_design := without_gdr(gpu.name)):
        return GpuSupport(False, False, by_design, evidence, True)
    if rdma is not True and dmabuf is not True and is_vgpu(gpu) is True:
        reason = "this vGPU profile does not support GPUDirect RDMA"
        return GpuSupport(dmabuf, rdma, reason, evidence, len(denied) == 2)
    feature = "GPUDirect RDMA" if rdma is False else "DMA-BUF"
    reason = f"GPU{gpu.index} does not support {feature}" if denied else ""
    if is_before(gpu.compute_capability, TURING):
        reason = reason or f"DMA-BUF needs compute capability 7.5 or newer; GPU{gpu.index} is older"
        dmabuf, evidence = False, evidence if denied else f"NVML: GPU{gpu.index} is {gpu.name}"
    return GpuSupport(known(dmabuf, True), known(rdma, True), reason, evidence)


def support_requirements(support: dict[str, GpuSupport], path: GdrPath) -> list[Requirement]:
    """Return what a path requires of the GPUs: at least one GPU must support it."""
    by_dmabuf = path is GdrPath.DMABUF
    answers = [(gpu.dmabuf if by_dmabuf else gpu.peermem, gpu) for gpu in support.values()]
    name = f"GPUs that support {path.value}"
    unable = [gpu for answer, gpu in answers if answer is False]
    unknown = [answer for answer, _ in answers if isinstance(answer, Unknown)]
    if unable:
        met: Maybe[bool] = len(unable) < len(answers)
        if unknown and len(unable) + len(unknown) == len(answers):
            met = unknown[0]
        first = unable[0]
        lack = f"by design: {first.reason}" if first.by_design else first.reason
        return [Requirement(name, met, first.evidence, lack)]
    if answers and len(unknown) == len(answers):
        return [Requirement(name, unknown[0], "libcuda", "few vGPU profiles support GPUDirect RDMA")]
    return []


# DMA-BUF: the kernel and the NICs. `answers`: the result of the DMA-BUF probe by NIC


def kernel_requirements(kernel: Maybe[KernelFacts], answers: dict[str, Maybe[bool]]) -> list[Requirement]:
    """Return what DMA-BUF requires of the kernel; the NIC probe decides, because OFED backports it."""
    source = "/proc/sys/kernel/osrelease"
    release = map_known(kernel, lambda facts: facts.release)
    configured = map_known(kernel, lambda facts: facts.dma_shared_buffer)
    version = map_known(kernel, lambda facts: facts.version)
    new = map_known(version, lambda numbers: numbers >= FIRST_DMABUF_KERNEL)
    probed = [answer for answer in answers.values() if not isinstance(answer, Unknown)]
    evidence = f"{source}: {release}"
    if any(probed):
        return [Requirement("a kernel with DMA-BUF", True, f"{evidence}; confirmed by the NIC probe")]
    if not isinstance(configured, Unknown) and not configured:
        evidence = f"kernel config of {release}: CONFIG_DMA_SHARED_BUFFER is not set"
        lack = "DMA-BUF needs a kernel with CONFIG_DMA_SHARED_BUFFER"
        return [Requirement("a kernel with DMA-BUF", False, evidence, lack)]
    if not isinstance(new, Unknown) and not new and not probed:
        new = Unknown(Reason.NOT_THERE, source, f"{release} is older than 5.12; OFED may add DMA-BUF")
    lack = f"DMA-BUF needs kernel 5.12 or newer, or OFED's backport (this is {release})"
    return [Requirement("a kernel with DMA-BUF (5.12 or newer)", new, evidence, lack)]


def verbs_requirement(modules: Maybe[ModuleFacts], answers: dict[str, Maybe[bool]]) -> Requirement:
    """Return whether programs can use verbs."""
    state = _state(modules, "ib_uverbs")
    probed = any(not isinstance(answer, Unknown) for answer in answers.values())
    met: Maybe[bool] = state in PRESENT if not isinstance(state, Unknown) else True if probed else state
    evidence = f"/proc/modules: ib_uverbs is {_word(state)}"
    ladder = () if isinstance(modules, Unknown) else modules.ladder
    is_unused = any(rung.module == "ib_core" and not rung.core for rung in ladder)
    lack = "the NICs here do not use verbs" if is_unused else "ib_uverbs is not loaded"
    return Requirement("ib_uverbs loaded", met, evidence, lack)


def nic_requirement(rdma: Maybe[RdmaFacts], answers: dict[str, Maybe[bool]]) -> Requirement:
    """Return whether a NIC's driver supports DMA-BUF."""
    name, probe_name = "a NIC driver that supports DMA-BUF", "ibv_reg_dmabuf_mr probe"
    if isinstance(rdma, Unknown) and rdma.reason is not Reason.NOT_THERE:
        return Requirement(name, rdma, f"/sys/class/infiniband: {rdma}")
    elsewhere = () if isinstance(rdma, Unknown) else rdma.devices_elsewhere
    if not answers and not elsewhere and not isinstance(rdma, Unknown) and rdma.devices:
        lack = "Slingshot NICs have no verbs; libfabric uses DMA-BUF itself"
        if not all(map(has_verbs, rdma.devices)):
            return Requirement(name, False, f"{rdma.devices[0].sysfs_path}: no verbs", lack)
    if not answers and not elsewhere:
        return Requirement(name, False, "/sys/class/infiniband: no RDMA device", "there is no RDMA device")
    able = [nic for nic, answer in answers.items() if answer is True]
    unknown = [answer for answer in answers.values() if isinstance(answer, Unknown)]
    if able:
        return Requirement(name, True, f"{probe_name}: yes on {', '.join(able)}")
    if unknown:
        return Requirement(name, unknown[0], f"{probe_name}: {unknown[0]}")
    if elsewhere:
        unseen = Unknown(Reason.NOT_THERE, "/sys/class/infiniband", "in another network namespace")
        evidence = f"/sys/bus/auxiliary/devices: RDMA devices of {', '.join(elsewhere)}"
        return Requirement(name, unseen, evidence)
    unable = join_limited(answers)
    lack = f"the kernel or the NIC driver does not support DMA-BUF on {unable}"
    return Requirement(name, False, f"{probe_name}: not supported on {unable}", lack)


# Peer memory


def peermem_state(modules: Maybe[ModuleFacts], of_gpus: list[Requirement]) -> PathState:
    """Return the state of nvidia_peermem's path."""
    for name in PEER_MODULES:
        if _state(modules, name) is ModuleState.LIVE:
            # It fails to load unless it registers with the IB core (nvidia-peermem.c nv_mem_client_init).
            evidence = f"/proc/modules: {name} is live, so it is registered with the IB core"
            return path_state(GdrPath.PEERMEM, (Requirement(f"{name} loaded", True, evidence), *of_gpus))
    state = _state(modules, "nvidia_peermem")
    requirements = [] if isinstance(modules, Unknown) else _loadable(modules)
    live = state if isinstance(state, Unknown) else False
    evidence, lack = f"/proc/modules: nvidia_peermem is {_word(state)}", "nvidia_peermem is not loaded"
    loaded = Requirement("nvidia_peermem loaded", live, evidence, lack)
    return path_state(GdrPath.PEERMEM, (*requirements, loaded, *of_gpus))


def _loadable(modules: ModuleFacts) -> list[Requirement]:
    """Return what nvidia_peermem needs before it can be loaded (nvidia-peermem.c; conftest.sh)."""
    module = modules.modules.get("nvidia_peermem")
    if module is None:
        return []
    requirements = []
    name, lack = "nvidia_peermem built for this kernel", "nvidia_peermem is not installed for this kernel"
    depends: Maybe[tuple[str, ...]] = module.depends
    if isinstance(module.on_disk, Unknown):
        there = is_there(module.on_disk)
        requirements.append(Requirement(name, there, f"modules.dep: {module.on_disk}", lack))
    else:
        requirements.append(Requirement(name, True, module.on_disk))
        built = depends if isinstance(depends, Unknown) else bool(IB_EXPORTERS.intersection(depends))
        listed = str(depends) if isinstance(depends, Unknown) else ", ".join(depends) or "nothing"
        evidence = f"modules.dep: depends on {listed}"
        lack = "nvidia_peermem was built without peer-memory symbols"
        requirements.append(Requirement("built with peer-memory symbols", built, evidence, lack))
    return [*requirements, _exported(modules)]


def _exported(modules: ModuleFacts) -> Requirement:
    name, lack = "peer-memory symbols in the IB core", "the IB core exports no peer-memory symbols"
    if not isinstance(modules.memory_peers, Unknown):
        return Requirement(name, True, f"{MEMORY_PEERS} exists")
    symbol = next((symbol for symbol in modules.symbols if symbol.symbol == PEER_MEMORY_SYMBOL), None)
    if symbol is None:
        return Requirement(name, modules.memory_peers, f"{MEMORY_PEERS}: {modules.memory_peers}")
    provider = symbol.provider
    if not isinstance(provider, Unknown):
        return Requirement(name, True, f"modules.symbols: {symbol.symbol} is in {provider}")
    core = _state(modules, "ib_core")
    # modules.symbols lists modules only. It does not cover an IB core that is built into the kernel.
    absent = provider.reason is Reason.NOT_THERE and core is not ModuleState.BUILTIN
    return Requirement(name, False if absent else provider, f"modules.symbols: {provider}", lack)


# EFA and Slingshot


def is_live(host: Host, module: str) -> Maybe[bool]:
    """Return whether a module is loaded now."""
    state = host.read(f"/sys/module/{module}/initstate", 64)
    return is_there(state) if isinstance(state, Unknown) else state == "live"


def efa_requirement(host: Host, device: RdmaDevice) -> Requirement:
    """Return whether EFA's own peer memory works.

    The driver says so in `p2p`, older ones in `gdr`, the oldest not at all (amzn-drivers, efa_sysfs.c). `p2p`
    names the provider, "NVIDIA"; it is empty, and `gdr` is 0, if the driver finds no NVIDIA symbols.
    """
    name, base = "EFA's peer memory", f"{device.sysfs_path}/device"
    provider, built = host.read(f"{base}/p2p", 64), host.read(f"{base}/gdr", 64)
    lack = f"{device.name} finds no NVIDIA peer memory ({EFA_PEERMEM})"
    if not isinstance(provider, Unknown):
        evidence = f"{base}/p2p: {printable(provider, 40) or 'empty'}"
        return Requirement(name, provider.startswith("NVIDIA"), evidence, lack)
    if not isinstance(built, Unknown) and built in ("0", "1"):
        return Requirement(name, built == "1", f"{base}/gdr: {built}", lack)
    return _live_module(host, EFA_PEERMEM, name, f"{EFA_PEERMEM} is not loaded")


def cxi_requirements(
    host: Host, gpus: Maybe[GpuFacts], support: dict[str, GpuSupport]
) -> tuple[Requirement, ...]:
    """Return what GPUDirect RDMA requires on Slingshot: the driver's modules, and a way to GPU memory.

    libfabric's cxi provider hands DMA-BUF files to the driver, which else asks NVIDIA's P2P interface itself
    (shs-cxi-driver, cass_dma_buf.c and cass_nvidia_gpu.c). The first needs NVIDIA's open kernel modules, the
    second a driver that was built with NVIDIA's headers.
    """
    rows = [_live_module(host, name, f"{name} loaded", f"{name} is not loaded") for name in SLINGSHOT.modules]
    nvidia = _live_module(host, "nvidia", "the NVIDIA driver loaded", "the NVIDIA driver is not loaded")
    return (*rows, nvidia, _gpu_memory(host, gpus), *_of_gpus(support))


def _live_module(host: Host, module: str, name: str, lack: str) -> Requirement:
    live = is_live(host, module)
    word = str(live) if isinstance(live, Unknown) else "live" if live else "not loaded"
    return Requirement(name, live, f"/sys/module/{module}: {word}", lack)


def _gpu_memory(host: Host, gpus: Maybe[GpuFacts]) -> Requirement:
    """Return whether the driver can reach GPU memory by P2P or by DMA-BUF."""
    name = "a cxi driver with P2P, or open NVIDIA kernel modules"
    parameter = host.read(CXI_GPU_PARAMETER, 64)
    flavor = gpus if isinstance(gpus, Unknown) else gpus.driver.flavor
    is_open: Maybe[bool] = flavor if isinstance(flavor, Unknown) else flavor is Flavor.OPEN
    has_p2p = is_there(parameter)
    if has_p2p is True:
        return Requirement(name, True, f"{CXI_GPU_PARAMETER}: {printable(known(parameter, ''), 8)}")
    evidence = f"{CXI_GPU_PARAMETER}: {parameter}"
    if is_open is True:
        evidence = "/proc/driver/nvidia/version: open kernel modules, for DMA-BUF"
    lack = "cxi_ss1 was built without NVIDIA's P2P interface, and DMA-BUF needs the open kernel modules"
    return Requirement(name, any_of((has_p2p, is_open)), evidence, lack)


def _of_gpus(support: dict[str, GpuSupport]) -> list[Requirement]:
    """Return whether a GPU supports either interface; nothing if all do."""
    answers = {bdf: any_of((gpu.peermem, gpu.dmabuf)) for bdf, gpu in support.items()}
    if not answers or all(answer is True for answer in answers.values()):
        return []
    first = next(support[bdf] for bdf, answer in answers.items() if answer is not True)
    met = any_of(answers.values())
    return [Requirement(f"GPUs that support {GdrPath.CXI.value}", met, first.evidence, first.reason)]


BUFINFO = "/sys/kernel/debug/dma_buf/bufinfo"
_BUFINFO_LIMIT = 4 << 20
_NO_DATA_DIRECT = DataDirectFacts(())
CUDA_START_ERRORS = {
    "3": "the driver cannot use the GPUs on this kernel",
    "802": "the NVSwitch fabric is not set up; check Fabric Manager",
    "803": "the driver's kernel modules and libraries have different versions",
}


@frozen
class AttachedDevices:
    """The devices that are attached to DMA-BUFs, by their kernel names (PCI: BDF)."""

    gpu_memory: frozenset[str] = frozenset()  # to buffers that nv_dmabuf exported
    other: frozenset[str] = frozenset()
    is_whole: bool = True  # the list has its beginning and its end

    @property
    def are_none(self) -> bool:
        """Whether no device uses any DMA-BUF."""
        return self.is_whole and not (self.gpu_memory or self.other)


def parse_bufinfo(text: str) -> AttachedDevices:
    """Return the devices that are attached to DMA-BUFs.

    drivers/dma-buf/dma-buf.c dma_buf_debug_show: "Dma-buf Objects:", a line "size flags mode count exporter
    ino name" for each buffer, its fences, "Attached Devices:", one device name per line, "Total N devices
    attached", and at the end "Total N objects, N bytes".
    """
    attached: set[str] = set()
    others: set[str] = set()
    ours = devices = begins = ends = False
    for line in text.splitlines():
        words = line.split()
        if re.match(r"\d{8,20}\t", line):
            ours, devices = len(words) > 4 and words[4] == "nv_dmabuf", False
        elif words[:2] == ["Attached", "Devices:"]:
            devices = True
        elif words[:1] == ["Total"]:
            devices, ends = False, ends or words[2:3] == ["objects,"]
        elif words[:2] == ["Dma-buf", "Objects:"]:
            begins = True
        elif devices and words:
            (attached if ours else others).add(words[0])
    return AttachedDevices(frozenset(attached), frozenset(others), begins and ends)


def read_attached(host: Host) -> Maybe[AttachedDevices]:
    """Return the devices that are attached to DMA-BUFs now; only root can read them."""
    return map_known(host.read(BUFINFO, _BUFINFO_LIMIT), parse_bufinfo)


def dmabuf_verdict(number: Maybe[int]) -> Maybe[bool]:
    """Return whether an errno of the probe means support (NCCL src/transport/net_ib/gdr.cc)."""
    return map_known(number, lambda found: found not in (errno.EOPNOTSUPP, errno.EPROTONOSUPPORT))


def _cuda_failure(cuda: Maybe[tuple[CudaGpu, ...]]) -> Maybe[str]:
    """Return the error of cuInit that every CUDA program gets; "" if it is not caused by the node's state."""
    match = re.search(r"cuInit\(0\) returned (\d{1,4})", cuda.detail) if isinstance(cuda, Unknown) else None
    if match is None and isinstance(cuda, Unknown) and cuda.reason is not Reason.NOT_THERE:
        return cuda
    if match is None or match[1] not in CUDA_START_ERRORS:
        return ""
    return f"CUDA programs fail to start: cuInit(0) returned {match[1]} ({CUDA_START_ERRORS[match[1]]})"


def _nics_by_peer_memory(
    host: Host, devices: list[RdmaDevice], peermem: PathState, modules: Maybe[ModuleFacts]
) -> dict[str, Maybe[bool]]:
    """Return whether each NIC can use peer memory now; an unknown driver counts as able to."""
    answers: dict[str, Maybe[bool]] = {}
    for device in devices:
        driver = known(device.driver, "")
        if driver == "efa":
            answers[device.name] = efa_requirement(host, device).met
        elif not has_verbs(device):
            answers[device.name] = peermem.usable if peermem.path is GdrPath.CXI else False
        elif driver == "bnxt_en" and peermem.usable is True:
            answers[device.name] = is_live(host, "ib_peer_mem")
        elif driver == "erdma" and peermem.usable is True:
            answers[device.name] = modules if isinstance(modules, Unknown) else has_ofed_peer_memory(modules)
        else:
            answers[device.name] = peermem.usable if not driver or driver in PEER_DRIVERS else False
    return answers


def _is_attached(host: Host, rdma: Maybe[RdmaFacts], data_direct: Maybe[DataDirectFacts]) -> Maybe[bool]:
    """Return whether a NIC is attached to a buffer of the GPU driver; so may be other devices."""
    attached = map_known(read_attached(host), lambda found: found.gpu_memory)
    if isinstance(attached, Unknown) or not attached:
        return attached if isinstance(attached, Unknown) else False
    if not attached.isdisjoint(functions_of_nics(rdma, data_direct)):
        return True
    unread = first_unread((rdma, data_direct))
    return False if unread is None else unread


def _ask_nics(host: Host, hardware: list[RdmaDevice]) -> dict[str, Maybe[bool]]:
    """Run the DMA-BUF probe on every RDMA device that is hardware; return the answers by name."""
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
    data_direct: Maybe[DataDirectFacts] = _NO_DATA_DIRECT,
) -> GpuDirectFacts:
    """Decide as NCCL does (src/init.cc dmaBufSupported, net_ib/gdr.cc), with the evidence.

    `ask_cuda`: returns the answer of libcuda, if libcuda is being asked already.
    """
    hardware = hardware_of(rdma)
    answers = _ask_nics(host, [device for device in hardware if has_verbs(device)])
    cuda = (ask_cuda or host.cuda_gpus)()
    support = gpu_support(gpus, cuda)
    dmabuf = path_state(
        GdrPath.DMABUF,
        (
            *driver_requirements(modules, gpus),
            *kernel_requirements(kernel, answers),
            verbs_requirement(modules, answers),
            nic_requirement(rdma, answers),
            *support_requirements(support, GdrPath.DMABUF),
        ),
    )
    of_gpus = support_requirements(support, GdrPath.PEERMEM)
    of_topology = topology_requirements(gpus, GdrPath.PEERMEM)
    peermem = peermem_state(modules, [*of_topology, *of_gpus])
    if hardware and all(known(device.driver, "") == "efa" for device in hardware):
        rows = [efa_requirement(host, device) for device in hardware]
        first = next((row for row in rows if row.met is True), rows[0])
        peermem = path_state(GdrPath.EFA, (first, *of_gpus))
    elif hardware and not any(map(has_verbs, hardware)):
        peermem = path_state(GdrPath.CXI, cxi_requirements(host, gpus, support))
    if isinstance(rdma, Unknown) and rdma.reason is not Reason.NOT_THERE:
        unread = Requirement("NICs whose kind is known", rdma, f"/sys/class/infiniband: {rdma}")
        dmabuf = path_state(GdrPath.DMABUF, (*driver_requirements(modules, gpus), unread))
        peermem = path_state(GdrPath.PEERMEM, (unread, *of_gpus))
    return GpuDirectFacts(
        dmabuf=dmabuf,
        peermem=peermem,
        preferred=next((state.path for state in (dmabuf, peermem) if state.usable is True), None),
        nic_dmabuf=answers,
        dmabuf_in_use=_is_attached(host, rdma, data_direct),
        nic_peermem=_nics_by_peer_memory(host, hardware, peermem, modules),
        gpu_support=support,
        cuda_failure=_cuda_failure(cuda),
    )
