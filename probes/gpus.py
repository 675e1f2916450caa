"""GPUs: from sysfs even with no driver, with the driver's /proc files, with NVML where it answers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from probes.host import Host
from probes.nvml import NvmlFacts, NvmlGpu
from probes.pci import PciFacts, PciFunction, PciKind
from probes.text import printable
from probes.unknown import Maybe, Reason, Unknown, known


class Flavour(Enum):
    """Which NVIDIA kernel modules are loaded; only the open ones offer DMA-BUF for CUDA memory."""

    OPEN = "open"
    PROPRIETARY = "proprietary"


@dataclass(frozen=True)
class DriverFacts:
    """The loaded NVIDIA kernel driver, from /proc/driver/nvidia/version and /sys/module/nvidia."""

    version: Maybe[str]  # "570.124.06"; NOT_THERE: not loaded
    flavour: Maybe[Flavour]
    parameters: Maybe[dict[str, str]]  # /proc/driver/nvidia/params
    cuda_version: Maybe[str]
    nvml: str | None  # None: NVML answers; else the sentence why not ("driver/library version mismatch …")


@dataclass(frozen=True)
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
    bar1_total_bytes: Maybe[
        int
    ]  # aperture through which peers reach memory: NVML, else largest prefetchable BAR
    c2c_links: Maybe[int]
    nvlinks: Maybe[int]
    nvlink_peers: Maybe[tuple[tuple[str, int], ...]]  # (BDF of GPU or NVSwitch, links)
    nvml: Maybe[NvmlGpu]  # the reason tells a GPU that has fallen off the bus


@dataclass(frozen=True)
class GpuFacts:
    """Driver and GPUs in index order."""

    driver: DriverFacts
    gpus: tuple[Gpu, ...]


_PROC = "/proc/driver/nvidia"
_VERSION = re.compile(r"\b(\d{3,4}\.\d{1,3}(?:\.\d{1,3})?)\b")


def parse_version(text: str) -> tuple[str, Flavour] | None:
    """Driver version and flavour of /proc/driver/nvidia/version (nv-procfs.c).

    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  595.45.04  Release Build …", or
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  …".
    """
    first = text.split("\n", 1)[0]
    match = _VERSION.search(first)
    if not first.startswith("NVRM version:") or match is None:
        return None
    return match.group(1), Flavour.OPEN if "Open Kernel Module" in first else Flavour.PROPRIETARY


def parse_fields(text: str) -> dict[str, str]:
    """The "Name: value" lines of the driver's /proc files."""
    fields = {}
    for line in text.splitlines()[:400]:
        name, colon, value = line.partition(":")
        if colon:
            fields[printable(name.strip(), 64)] = printable(value.strip(), 200)
    return fields


def _driver(host: Host, nvml: Maybe[NvmlFacts]) -> DriverFacts:
    text = host.read(f"{_PROC}/version")
    version: Maybe[str]
    flavour: Maybe[Flavour]
    if isinstance(text, Unknown):
        flavour = text
        version = host.read("/sys/module/nvidia/version")
    elif (parsed := parse_version(text)) is None:
        version = flavour = Unknown(Reason.MALFORMED, f"{_PROC}/version", printable(text, 80))
    else:
        version, flavour = parsed
    parameters = host.read(f"{_PROC}/params")
    return DriverFacts(
        version=version,
        flavour=flavour,
        parameters=parameters if isinstance(parameters, Unknown) else parse_fields(parameters),
        cuda_version=nvml if isinstance(nvml, Unknown) else nvml.cuda_version,
        nvml=str(nvml) if isinstance(nvml, Unknown) else None,
    )


def _gpu(host: Host, function: PciFunction, index: int, name: str, nvml: Maybe[NvmlGpu]) -> Gpu:
    text = host.read(f"{_PROC}/gpus/{function.bdf}/information")
    fields = {} if isinstance(text, Unknown) else parse_fields(text)
    not_there = Unknown(Reason.NOT_THERE, f"{_PROC}/gpus/{function.bdf}/information")

    def field(word: str) -> Maybe[str]:
        return fields.get(word) or (text if isinstance(text, Unknown) else not_there)

    minor = field("Device Minor")
    uuid: Maybe[str] = field("GPU UUID")
    bars = () if isinstance(function.bars, Unknown) else function.bars
    apertures = [bar.size_bytes for bar in bars if bar.prefetchable]
    bar1: Maybe[int] = (
        max(apertures) if apertures else Unknown(Reason.NOT_THERE, f"{function.sysfs_path}/resource")
    )
    shown = known(field("Model"), name)
    if isinstance(nvml, Unknown):
        return Gpu(
            index=index,
            bdf=function.bdf,
            name=shown,
            numa_node=function.numa_node,
            driver=function.driver,
            uuid=uuid,
            minor=_decimal(minor),
            compute_capability=nvml,
            memory_total_bytes=nvml,
            bar1_total_bytes=bar1,
            c2c_links=nvml,
            nvlinks=nvml,
            nvlink_peers=nvml,
            nvml=nvml,
        )
    return Gpu(
        index=nvml.index,
        bdf=function.bdf,
        name=known(nvml.name, shown),
        numa_node=function.numa_node,
        driver=function.driver,
        uuid=uuid if isinstance(nvml.uuid, Unknown) else nvml.uuid,
        minor=_decimal(minor),
        compute_capability=nvml.compute_capability,
        memory_total_bytes=nvml.memory_total_bytes,
        bar1_total_bytes=bar1 if isinstance(nvml.bar1_total_bytes, Unknown) else nvml.bar1_total_bytes,
        c2c_links=nvml.c2c_links,
        nvlinks=nvml.nvlinks,
        nvlink_peers=nvml.nvlink_peers,
        nvml=nvml,
    )


def _decimal(text: Maybe[str]) -> Maybe[int]:
    if isinstance(text, Unknown):
        return text
    return int(text) if text.isdecimal() and len(text) < 6 else Unknown(Reason.MALFORMED, "", text)


def probe(host: Host, pci: PciFacts) -> GpuFacts:
    """Joins PCI functions, /proc/driver/nvidia and NVML."""
    nvml = host.nvml()
    by_bdf: dict[str, Maybe[NvmlGpu]] = {}
    if not isinstance(nvml, Unknown):
        by_bdf = {(gpu.source if isinstance(gpu, Unknown) else gpu.bdf): gpu for gpu in nvml.gpus}
    absent = (
        nvml
        if isinstance(nvml, Unknown)
        else Unknown(Reason.DRIVER_ERROR, "NVML", "NVML does not list this GPU")
    )
    functions = [function for function in pci.functions.values() if function.kind is PciKind.GPU]
    gpus = [
        _gpu(
            host, function, index, pci.names.get(function.bdf, "NVIDIA GPU"), by_bdf.get(function.bdf, absent)
        )
        for index, function in enumerate(functions)
    ]
    return GpuFacts(_driver(host, nvml), tuple(sorted(gpus, key=lambda gpu: (gpu.index, gpu.bdf))))
