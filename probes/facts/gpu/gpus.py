"""GPUs: from sysfs, which needs no driver, from the driver's /proc files, and from NVML if it answers.

And what they and the node need for the NVLink fabric.
"""

from __future__ import annotations

import re
import zlib
from enum import Enum

from probes.base.frozen import frozen
from probes.base.text import plural, printable
from probes.base.unknown import Maybe, Reason, Unknown, is_there, known, map_known, parse_known
from probes.facts.pci.functions import PciFacts, PciFunction
from probes.facts.system.numa import NumaFacts
from probes.host.nvml import FABRIC_STATES, NvmlFacts, NvmlGpu
from probes.host.protocol import Host

# A GPU's registration with the NVLink fabric, as NVML reports it, and what the fabric needs on this node.
#
# Before a GPU behind NVSwitches is registered, every CUDA program fails with error 802 (NVIDIA Fabric Manager
# user guide). GPUs of one cluster and clique reach each other over NVLink, also between the nodes of a rack
# (nvmlDeviceGetGpuFabricInfoV).
#
# On boards with fourth-generation NVSwitches (HGX B200, B300) Fabric Manager's unit starts NVLSM, the NVLink
# subnet manager, and does not start without ib_umad (its user guide; spectrocloud/CanvOS pull request 700).
# Jobs that reach GPUs of other nodes over NVLink need an IMEX channel (NVIDIA IMEX guide, "IMEX Channels").

NOT_SUPPORTED, COMPLETED = FABRIC_STATES[0], FABRIC_STATES[-1]
UNFINISHED = ("not started", "in progress", "failed")
"""States in which CUDA programs fail with error 802."""
NVLSM = "/opt/nvidia/nvlsm/sbin/nvlsm"
NODES_CONFIG = "/etc/nvidia-imex/nodes_config.cfg"
CHANNELS = "/dev/nvidia-caps-imex-channels"
UMAD_MODULE = "/sys/module/ib_umad"
_CHANNEL = re.compile(r"channel\d{1,5}")
_MAX_PROCESSES = 32768
_NO_SWITCHES = Unknown(Reason.NOT_THERE, NVLSM, "no NVSwitch here is managed through a ConnectX")

_NOT_REPORTED = Unknown(Reason.NOT_THERE, "NVML", "not reported by this driver")
_NO_CLUSTER = Unknown(Reason.NOT_THERE, "NVML", "not part of a rack's NVLink domain")
# Offset of a two-bit field (0: not supported, 1: true, 2: false) and what its bad value means (nvml.h,
# NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_…).
_FLAGS = (
    (0, 1, "reduced NVLink bandwidth"),
    (2, 1, "route recovery in progress"),
    (4, 1, "a route is unhealthy"),
    (6, 1, "recovery after an access timeout"),
    (12, 2, "no partition is assigned"),
    (14, 2, "the rack's fabric manager is disconnected"),
)
# NVML_GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_…, four bits at offset 8; 1: none.
_CONFIGURATION = {
    2: "wrong system GUID",
    3: "wrong chassis serial number",
    4: "no partition",
    5: "too few NVLinks",
    6: "incompatible GPU firmware",
    7: "wrong location",
    8: "invalid GPU state",
}


@frozen
class GpuFabric:
    """State and place of a GPU in the NVLink fabric."""

    state: Maybe[str]  # one of FABRIC_STATES, "failed", or "unknown" for a state that NVML adds later
    clique: Maybe[int]  # known once registered
    cluster: Maybe[str]  # UUID; NOT_THERE on a board that is not part of a rack
    problems: Maybe[tuple[str, ...]]  # (): healthy


def fabric_of(nvml: Maybe[NvmlGpu]) -> GpuFabric:
    """Return what NVML reports about a GPU's place in the fabric."""
    if isinstance(nvml, Unknown):
        return GpuFabric(nvml, nvml, nvml, nvml)
    cluster = nvml.fabric_cluster
    if not isinstance(cluster, Unknown) and not cluster.strip("0-"):
        cluster = _NO_CLUSTER
    health = nvml.fabric_health
    if health == 0:  # every field is "not supported"
        health = _NOT_REPORTED
    return GpuFabric(nvml.fabric, nvml.fabric_clique, cluster, map_known(health, problems_of))


def problems_of(mask: int) -> tuple[str, ...]:
    """Return what a health mask reports as wrong."""
    found = [text for shift, bad, text in _FLAGS if mask >> shift & 0x3 == bad]
    reason = mask >> 8 & 0xF
    if reason > 1:
        found.append(f"incorrect configuration: {_CONFIGURATION.get(reason, f'reason {reason}')}")
    return tuple(found)


@frozen
class FabricServiceFacts:
    """The parts besides the services of systemd."""

    nvlsm_program: Maybe[str]  # path; NOT_THERE: not installed on the host, but perhaps in a driver container
    nvlsm_runs: Maybe[bool]
    umad_loaded: Maybe[bool]  # ib_umad is loaded or built in
    imex_channels: Maybe[int]  # number of channel files; NOT_THERE: no such directory
    imex_nodes: Maybe[int]  # nodes of the IMEX domain; NOT_THERE: it is not configured
    imex_list: Maybe[str]  # "18 nodes, 3f2a91c0": equal for equal lists


def probe_fabric(host: Host, pci: Maybe[PciFacts]) -> FabricServiceFacts:
    """Look for programs, processes and files; processes only where NVLSM may run."""
    has_bridge = not isinstance(pci, Unknown) and bool(pci.management)
    channels = map_known(host.names(CHANNELS), lambda names: len([n for n in names if _CHANNEL.fullmatch(n)]))
    nodes = host.read(NODES_CONFIG)
    return FabricServiceFacts(
        nvlsm_program=map_known(host.size(NVLSM), lambda _: NVLSM) if has_bridge else _NO_SWITCHES,
        nvlsm_runs=_runs(host) if has_bridge else _NO_SWITCHES,
        umad_loaded=is_there(host.names(UMAD_MODULE)),
        imex_channels=channels,
        imex_nodes=map_known(nodes, lambda text: len(addresses_of(text))),
        imex_list=map_known(nodes, _list_of),
    )


def addresses_of(text: str) -> list[str]:
    """Parse nodes_config.cfg: one IP address a line, comments begin with #."""
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def _list_of(text: str) -> str:
    addresses = sorted(addresses_of(text))
    digest = zlib.crc32("\n".join(addresses).encode("utf-8", "replace"))
    return f"{plural(len(addresses), 'node')}, {digest:08x}"


def _runs(host: Host) -> Maybe[bool]:
    """Return whether a process is NVLSM; unknown if the processes of others are not visible."""
    names = host.names("/proc")
    if isinstance(names, Unknown):
        return names
    pids = [name for name in names if name.isdecimal()][:_MAX_PROCESSES]
    if any(host.read(f"/proc/{pid}/comm", 4096) == "nvlsm" for pid in pids):
        return True
    first = host.read("/proc/1/comm", 4096)
    if isinstance(first, Unknown) or first not in ("systemd", "init"):
        detail = "the node's processes are not visible from here (a container, or hidepid)"
        return Unknown(Reason.NOT_THERE, "/proc/1/comm", detail)
    return False


_NOT_ASKED = Unknown(Reason.NOT_RECORDED, "NVML", "not asked")
MEMORY_MODE_PARAMETER = "CoherentGPUMemoryMode"


class Flavor(Enum):
    """Which NVIDIA kernel modules are loaded; only the open ones offer DMA-BUF for CUDA memory."""

    OPEN = "open"
    PROPRIETARY = "proprietary"


@frozen
class DriverFacts:
    """The loaded NVIDIA kernel driver, from /proc/driver/nvidia/version and /sys/module/nvidia."""

    version: Maybe[str]  # "570.124.06"; NOT_THERE: not loaded
    flavor: Maybe[Flavor]
    parameters: Maybe[dict[str, str]]  # /proc/driver/nvidia/params
    cuda_version: Maybe[str]
    nvml: str | None  # None: NVML answers; else why not ("driver/library version mismatch …")
    confidential_computing: Maybe[bool] = _NOT_ASKED


@frozen
class Gpu:
    """One NVIDIA GPU, seen on the PCI bus."""

    index: int  # NVML's; without NVML the place in BDF order, which is NVML's own order
    bdf: str
    name: str  # NVML's, else /proc's "Model", else the PCI name
    numa_node: Maybe[int]
    driver: Maybe[str]  # bound kernel driver: "nvidia", "vfio-pci", …
    uuid: Maybe[str]
    minor: Maybe[int]  # N of /dev/nvidiaN
    compute_capability: Maybe[tuple[int, int]]
    memory_total_bytes: Maybe[int]
    bar1_total_bytes: Maybe[int]  # the window for peers: from NVML, else the largest prefetchable BAR
    c2c_links: Maybe[int]
    nvlinks: Maybe[int]
    nvlink_peers: Maybe[tuple[tuple[str, int], ...]]  # (BDF of GPU or NVSwitch, links)
    fabric: GpuFabric
    nvml: Maybe[NvmlGpu]  # also Unknown if the GPU has fallen off the bus
    vbios: Maybe[str] = _NOT_ASKED  # "96.00.89.00.01"


@frozen
class GpuFacts:
    """Driver and GPUs in index order."""

    driver: DriverFacts
    gpus: tuple[Gpu, ...]
    # BDFs of GPUs that the driver lists (NVML or /proc/driver/nvidia/gpus) while the PCI bus shows none.
    unplaced: tuple[str, ...] = ()


NOT_LISTED = "NVML does not list this GPU"
# "NVIDIA A30-8C", "GRID A100D-40C", "NVIDIA A100-1-5CME"; not "NVIDIA A100-SXM4-80GB".
_VGPU_PROFILE = re.compile(r"(?:^GRID |-\d{1,3}(?:-\d{1,3})?[ABCQ](?:ME)?$)")
DRIVER_PROC = "/proc/driver/nvidia"
DRIVER_PARAMETERS = f"{DRIVER_PROC}/params"
_VERSION = re.compile(r"\b(\d{3,4}\.\d{1,3}(?:\.\d{1,3})?)\b")
_MINOR = re.compile(r"[0-9]{1,5}")


def is_vgpu(gpu: Gpu) -> Maybe[bool]:
    """Return whether this is a vGPU, by its profile's name or by NVML."""
    if _VGPU_PROFILE.search(gpu.name):
        return True
    return gpu.nvml if isinstance(gpu.nvml, Unknown) else gpu.nvml.is_vgpu


def parse_version(text: str) -> tuple[str, Flavor] | None:
    """Parse driver version and flavor from /proc/driver/nvidia/version (nv-procfs.c).

    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  595.45.04  Release Build …", or
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  …".
    """
    first = text.split("\n", 1)[0]
    match = _VERSION.search(first)
    if not first.startswith("NVRM version:") or match is None:
        return None
    return match.group(1), Flavor.OPEN if "Open Kernel Module" in first else Flavor.PROPRIETARY


def parse_fields(text: str) -> dict[str, str]:
    """Parse the "Name: value" lines of the driver's /proc files."""
    rows = (line.partition(":") for line in text.splitlines()[:400])
    return {printable(key.strip(), 64): printable(value.strip(), 200) for key, colon, value in rows if colon}


def _driver(host: Host, nvml: Maybe[NvmlFacts]) -> DriverFacts:
    text = host.read(f"{DRIVER_PROC}/version")
    version: Maybe[str]
    flavor: Maybe[Flavor]
    if isinstance(text, Unknown):
        flavor = text
        # A container may hide /proc/driver. The module still shows its version, but not its flavor.
        version = map_known(host.read("/sys/module/nvidia/version"), lambda shown: printable(shown, 64))
    elif (parsed := parse_version(text)) is None:
        version = flavor = Unknown(Reason.MALFORMED, f"{DRIVER_PROC}/version", printable(text, 80))
    else:
        version, flavor = parsed
    failure = None
    if isinstance(nvml, Unknown):
        failure = nvml.detail or f"{nvml.source or 'NVML'}: {nvml.reason.value}"
    parameters = map_known(host.read(DRIVER_PARAMETERS), parse_fields)
    if is_there(version) is False and is_there(parameters) is False:
        parameters = Unknown(Reason.NOT_THERE, DRIVER_PARAMETERS, "the NVIDIA driver is not loaded")
    return DriverFacts(
        version=version,
        flavor=flavor,
        parameters=parameters,
        cuda_version=map_known(nvml, lambda facts: facts.cuda_version),
        nvml=failure,
        confidential_computing=map_known(nvml, lambda facts: facts.confidential_computing),
    )


def _gpu(host: Host, function: PciFunction, index: int, name: str, nvml: Maybe[NvmlGpu]) -> Gpu:
    path = f"{DRIVER_PROC}/gpus/{function.bdf}/information"
    text = host.read(path)
    fields = {} if isinstance(text, Unknown) else parse_fields(text)

    def field(word: str) -> Maybe[str]:
        if isinstance(text, Unknown):
            return text
        value = fields.get(word, "")
        # The driver prints placeholders until it has asked the GPU: "GPU-????????-…", "Unknown".
        if not value or "?" in value or value == "Unknown":
            return Unknown(Reason.NOT_THERE, path, f"the driver does not know this GPU's {word} yet")
        return value

    minor = parse_known(field("Device Minor"), _MINOR.fullmatch, path)
    apertures = [bar.size_bytes for bar in known(function.bars, ()) if bar.prefetchable]
    no_aperture = Unknown(Reason.NOT_THERE, f"{function.sysfs_path}/resource")
    bar1: Maybe[int] = max(apertures) if apertures else no_aperture
    uuid = field("GPU UUID")
    shown = known(field("Model"), name)
    if not isinstance(nvml, Unknown):
        index = nvml.index
        uuid = uuid if isinstance(nvml.uuid, Unknown) else nvml.uuid
        shown = known(nvml.name, shown)
        bar1 = bar1 if isinstance(nvml.bar1_total_bytes, Unknown) else nvml.bar1_total_bytes
    return Gpu(
        index=index,
        bdf=function.bdf,
        name=printable(shown, 96),
        numa_node=function.numa_node,
        driver=function.driver,
        uuid=uuid,
        minor=map_known(minor, lambda match: int(match[0])),
        compute_capability=map_known(nvml, lambda answer: answer.compute_capability),
        memory_total_bytes=map_known(nvml, lambda answer: answer.memory_total_bytes),
        bar1_total_bytes=bar1,
        c2c_links=map_known(nvml, lambda answer: answer.c2c_links),
        nvlinks=map_known(nvml, lambda answer: answer.nvlinks),
        nvlink_peers=map_known(nvml, lambda answer: answer.nvlink_peers),
        fabric=fabric_of(nvml),
        nvml=nvml,
        vbios=field("Video BIOS"),
    )


def _by_bdf(nvml: NvmlFacts, functions: tuple[PciFunction, ...]) -> dict[str, Maybe[NvmlGpu]]:
    """Return NVML's answers by BDF; an answer without a BDF belongs to the only GPU left."""
    answers: dict[str, Maybe[NvmlGpu]] = {}
    nameless: list[Unknown] = []
    bdfs = {function.bdf for function in functions}
    for gpu in nvml.gpus:
        if not isinstance(gpu, Unknown):
            answers[gpu.bdf] = gpu
        elif gpu.source in bdfs:
            answers[gpu.source] = gpu
        else:
            nameless.append(gpu)
    left = [function.bdf for function in functions if function.bdf not in answers]
    if len(left) == len(nameless):
        answers.update(zip(left, nameless, strict=True))
    return answers


def probe(host: Host, pci: PciFacts, nvml: Maybe[NvmlFacts] | None = None) -> GpuFacts:
    """Join PCI functions, /proc/driver/nvidia and NVML; `nvml` is NVML's answer if it is known already.

    NVML numbers GPUs in BDF order. If some are hidden from this container, its indices differ from the
    order on the bus, and the GPUs that it does not list get the indices after the listed ones.
    """
    if nvml is None:
        nvml = host.nvml()
    functions = pci.gpus
    answers = {} if isinstance(nvml, Unknown) else _by_bdf(nvml, functions)
    absent = nvml if isinstance(nvml, Unknown) else Unknown(Reason.NOT_THERE, "NVML", NOT_LISTED)
    taken = {gpu.index for gpu in answers.values() if not isinstance(gpu, Unknown)}
    free = (number for number in range(len(functions) + len(taken)) if number not in taken)
    gpus = []
    for function in functions:
        answer = answers.get(function.bdf, absent)
        index = next(free) if isinstance(answer, Unknown) else answer.index
        gpus.append(_gpu(host, function, index, pci.names.get(function.bdf, "NVIDIA GPU"), answer))
    ordered = tuple(sorted(gpus, key=lambda gpu: (gpu.index, gpu.bdf)))
    return GpuFacts(_driver(host, nvml), ordered, () if ordered else _unplaced(host, nvml))


def _unplaced(host: Host, nvml: Maybe[NvmlFacts]) -> tuple[str, ...]:
    """Return the driver's GPUs if sysfs shows none: a sandbox that hides /sys, or an incomplete dump."""
    listed = known(host.names(f"{DRIVER_PROC}/gpus"), ())
    answered = () if isinstance(nvml, Unknown) else nvml.gpus
    named = (gpu.source if isinstance(gpu, Unknown) else gpu.bdf for gpu in answered)
    return tuple(printable(bdf, 32) for bdf in named) or tuple(printable(name, 32) for name in listed[:64])


class MemoryMode(Enum):
    """Who manages the memory of GPUs with C2C links to a Grace CPU.

    NVreg_CoherentGPUMemoryMode: with "numa" Linux has each GPU's memory as a NUMA node without CPUs; with
    "driver" (CDMM, since driver 580) only the NVIDIA driver manages it. The default is "numa" before driver
    615 and "driver" since (NVIDIA HPC SDK 26.11 release notes), so without the option the NUMA nodes decide.
    """

    NUMA = "GPU memory is a NUMA node"
    DRIVER = "the driver manages GPU memory (CDMM)"


def memory_mode(driver: DriverFacts, numa: Maybe[NumaFacts]) -> Maybe[MemoryMode]:
    """Return the mode of a node whose GPUs have C2C links, by the driver's option, else by the NUMA nodes."""
    option = known(driver.parameters, {}).get(MEMORY_MODE_PARAMETER, "").strip('" ')
    if option == "driver":
        return MemoryMode.DRIVER
    if isinstance(numa, Unknown):
        return numa
    return MemoryMode.NUMA if gpu_numa_nodes(numa) else MemoryMode.DRIVER


def gpu_numa_nodes(numa: Maybe[NumaFacts]) -> tuple[int, ...]:
    """Return the NUMA nodes that have memory and no CPUs: on Grace, those of GPUs."""
    nodes = () if isinstance(numa, Unknown) else numa.nodes
    return tuple(node.number for node in nodes if node.cpulist == "" and known(node.memory_bytes, 0))
