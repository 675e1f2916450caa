"""GPUs: from sysfs, which needs no driver, from the driver's /proc files, and from NVML if it answers."""

from __future__ import annotations

import re
from enum import Enum

from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown, is_there, known, map_known
from probes.facts.gpu.fabric import GpuFabric, fabric_of
from probes.facts.pci.functions import PciFacts, PciFunction, PciKind
from probes.facts.system.numa import NumaFacts
from probes.host.nvml import NvmlFacts, NvmlGpu
from probes.host.protocol import Host

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

    bars = () if isinstance(function.bars, Unknown) else function.bars
    apertures = [bar.size_bytes for bar in bars if bar.prefetchable]
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
        minor=_decimal(field("Device Minor"), path),
        compute_capability=map_known(nvml, lambda answer: answer.compute_capability),
        memory_total_bytes=map_known(nvml, lambda answer: answer.memory_total_bytes),
        bar1_total_bytes=bar1,
        c2c_links=map_known(nvml, lambda answer: answer.c2c_links),
        nvlinks=map_known(nvml, lambda answer: answer.nvlinks),
        nvlink_peers=map_known(nvml, lambda answer: answer.nvlink_peers),
        fabric=fabric_of(nvml),
        nvml=nvml,
    )


def _decimal(text: Maybe[str], path: str) -> Maybe[int]:
    if isinstance(text, Unknown):
        return text
    if text.isascii() and text.isdecimal() and len(text) < 6:
        return int(text)
    return Unknown(Reason.MALFORMED, path, printable(text, 40))


def _by_bdf(nvml: NvmlFacts, functions: list[PciFunction]) -> dict[str, Maybe[NvmlGpu]]:
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
    functions = [function for function in pci.functions.values() if function.kind is PciKind.GPU]
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
