"""NVML's facts as `nvidia-smi -q -x` prints them, for nodes where NVML's Python module may be missing.

What it does not print is unknown. Its values are text: "81559 MiB", "16x", "Enabled", "N/A".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from xml.etree import ElementTree

from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown, first_known, known, map_known, parse_known
from probes.host.nvml import LOST, NvmlFacts, NvmlGpu, NvmlLive, bdf_of

QUERY = ("nvidia-smi", "-q", "-x")
# What is not in its output.
CAPABILITIES = ("nvidia-smi", "--query-gpu=pci.bus_id,compute_cap", "--format=csv,noheader")
NVLINKS = ("nvidia-smi", "nvlink", "--status")
SOURCE = " ".join(QUERY)
MAX_GPUS = 256
_NOT_PRINTED = Unknown(Reason.NOT_RECORDED, SOURCE, "not in its output")
_ABSENT = ("N/A", "[N/A]", "Not Supported", "[Not Supported]", "None", "")
_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_POWER = (
    *("gpu_power_readings/average_power_draw", "gpu_power_readings/instant_power_draw"),
    *("gpu_power_readings/power_draw", "power_readings/power_draw"),
)
# Words of nvml.throttle_words, by the end of nvidia-smi's names.
_THROTTLES = {
    "sw_power_cap": "power cap",
    "sync_boost": "sync boost",
    "sw_thermal_slowdown": "thermal",
    "hw_thermal_slowdown": "HW thermal",
    "hw_power_brake_slowdown": "power brake",
    "board_limit": "board limit",
    "low_utilization": "reliability",
}


def parse_facts(text: str) -> Maybe[NvmlFacts]:
    """Return driver and GPUs."""

    def facts(root: ElementTree.Element) -> NvmlFacts:
        gpus = root.findall("gpu")[:MAX_GPUS]
        return NvmlFacts(
            driver_version=_text(root, "driver_version"),
            cuda_version=_text(root, "cuda_version"),
            gpus=tuple(_gpu(number, gpu) for number, gpu in enumerate(gpus)),
        )

    return map_known(_parsed(text), facts)


def parse_live(text: str) -> Maybe[tuple[NvmlLive, ...]]:
    """Return the figures of each GPU; its bandwidths are means of 20 ms."""
    return map_known(
        _parsed(text),
        lambda root: tuple(_live(gpu) for gpu in root.findall("gpu")[:MAX_GPUS] if not _is_lost(gpu)),
    )


def with_capabilities(facts: NvmlFacts, text: Maybe[str]) -> NvmlFacts:
    """Add the compute capability of each GPU: "00000000:1B:00.0, 9.0"."""
    rows = re.findall(r"^([0-9A-Fa-f:.]{7,16}), ([0-9]{1,3})\.([0-9]{1,2})$", known(text, ""), re.M)
    found = {bdf_of(bus): (int(major), int(minor)) for bus, major, minor in rows}
    why = text if isinstance(text, Unknown) else _NOT_PRINTED
    return _changed(facts, lambda gpu: replace(gpu, compute_capability=found.get(gpu.bdf, why)))


def with_nvlinks(facts: NvmlFacts, text: Maybe[str]) -> NvmlFacts:
    """Add the number of active NVLinks of each GPU, as `nvidia-smi nvlink --status` lists them."""
    counts: dict[int, int] = {}
    number = -1
    for line in known(text, "").splitlines():
        if gpu := re.match(r"GPU ([0-9]{1,3}): ", line):
            number = int(gpu[1])
            counts[number] = 0
        elif re.fullmatch(r"\s+Link [0-9]{1,3}: [0-9.]{1,8} GB/s", line) and number in counts:
            counts[number] += 1
    why = text if isinstance(text, Unknown) else _NOT_PRINTED
    return _changed(facts, lambda gpu: replace(gpu, nvlinks=counts.get(gpu.index, why)))


def _changed(facts: NvmlFacts, change: Callable[[NvmlGpu], NvmlGpu]) -> NvmlFacts:
    gpus = tuple(gpu if isinstance(gpu, Unknown) else change(gpu) for gpu in facts.gpus)
    return replace(facts, gpus=gpus)


def _parsed(text: str) -> Maybe[ElementTree.Element]:
    # Entities are only in a document type of its own; the file that nvidia-smi names there is not opened.
    if "<!ENTITY" in text:
        return Unknown(Reason.MALFORMED, SOURCE, "not the expected XML")
    try:
        root = ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError):  # ValueError: surrogates
        return Unknown(Reason.MALFORMED, SOURCE, "not the expected XML")
    return root if root.tag == "nvidia_smi_log" else Unknown(Reason.MALFORMED, SOURCE, "not the expected XML")


def _is_lost(gpu: ElementTree.Element) -> bool:
    # The name may be what the driver remembers.
    texts = (gpu.findtext(path, "").strip() for path in ("product_name", "fb_memory_usage/total"))
    return any(text.startswith(("GPU is lost", "ERR!", "Unknown Error")) for text in texts)


def _gpu(number: int, gpu: ElementTree.Element) -> Maybe[NvmlGpu]:
    bdf = _bdf(gpu)
    if _is_lost(gpu):
        return Unknown(Reason.DRIVER_ERROR, bdf, LOST)
    fabric = map_known(_text(gpu, "fabric/state"), str.lower)
    return NvmlGpu(
        index=number,
        bdf=bdf,
        name=_text(gpu, "product_name"),
        uuid=_text(gpu, "uuid"),
        compute_capability=_NOT_PRINTED,
        memory_total_bytes=_bytes(gpu, "fb_memory_usage/total"),
        bar1_total_bytes=_bytes(gpu, "bar1_memory_usage/total"),
        nvlinks=_NOT_PRINTED,
        nvlink_peers=_NOT_PRINTED,
        c2c_links=map_known(_text(gpu, "c2c_mode"), lambda mode: 1 if mode == "Enabled" else 0),
        persistence=_switch(gpu, "persistence_mode"),
        mig=_switch(gpu, "mig_mode/current_mig"),
        is_vgpu=_is_vgpu(gpu),
        fabric=fabric,
        fabric_clique=_number(gpu, "fabric/cliqueId"),
        fabric_cluster=_text(gpu, "fabric/clusterUuid"),
        serial=_text(gpu, "serial"),
    )


def _live(gpu: ElementTree.Element) -> NvmlLive:
    link = "pci/pci_gpu_link_info"
    # Names differ between versions.
    generations = (_number(gpu, f"{link}/pcie_gen/{name}current_link_gen") for name in ("device_", ""))
    power = (_matched(gpu, path, r"([0-9]{1,5}(?:\.[0-9]+)?) W") for path in _POWER)
    return NvmlLive(
        bdf=_bdf(gpu),
        utilization_percent=_number(gpu, "utilization/gpu_util"),
        memory_used_bytes=_bytes(gpu, "fb_memory_usage/used"),
        temperature_celsius=_number(gpu, "temperature/gpu_temp"),
        power_watts=map_known(first_known(power, SOURCE), float),
        pcie_tx_bytes_per_second=_rate(gpu, "pci/tx_util"),
        pcie_rx_bytes_per_second=_rate(gpu, "pci/rx_util"),
        link_generation=first_known(generations, SOURCE),
        link_width=_number(gpu, f"{link}/link_widths/current_link_width"),
        processes=_processes(gpu),
        bar1_used_bytes=_bytes(gpu, "bar1_memory_usage/used"),
        sm_clock_mhz=_number(gpu, "clocks/sm_clock"),
        throttle_reasons=_throttles(gpu),
    )


def _bdf(gpu: ElementTree.Element) -> str:
    return printable(bdf_of(gpu.get("id", "?")), 32)


def _text(element: ElementTree.Element, path: str) -> Maybe[str]:
    text = element.findtext(path)
    if text is None:
        return Unknown(Reason.NOT_RECORDED, SOURCE, f"{path.rpartition('/')[2]} is not in its output")
    text = printable(text.strip(), 200)
    if text in _ABSENT:
        return Unknown(Reason.NOT_THERE, SOURCE, "not supported by this GPU or driver")
    return text


def _matched(element: ElementTree.Element, path: str, pattern: str) -> Maybe[str]:
    matched = parse_known(_text(element, path), re.compile(pattern).fullmatch, SOURCE)
    return map_known(matched, lambda match: match[1])


def _number(element: ElementTree.Element, path: str) -> Maybe[int]:
    return map_known(_matched(element, path, r"([0-9]{1,9})(?:x| %| C| MHz)?"), int)


def _bytes(element: ElementTree.Element, path: str) -> Maybe[int]:
    size = _matched(element, path, r"([0-9]{1,12} (?:B|KiB|MiB|GiB))")
    return map_known(size, lambda text: int(text.split()[0]) * _UNITS[text.split()[1]])


def _rate(element: ElementTree.Element, path: str) -> Maybe[float]:
    """Return KB/s of nvidia-smi, which are NVML's multiples of 1000 bytes, as bytes a second."""
    return map_known(_matched(element, path, r"([0-9]{1,12}) KB/s"), lambda text: int(text) * 1000.0)


def _switch(element: ElementTree.Element, path: str) -> Maybe[bool]:
    return parse_known(_text(element, path), {"Enabled": True, "Disabled": False}.get, SOURCE)


def _is_vgpu(gpu: ElementTree.Element) -> Maybe[bool]:
    mode = gpu.findtext("gpu_virtualization_mode/virtualization_mode")  # "None": no virtualization
    return _NOT_PRINTED if mode is None or mode.strip() == "N/A" else mode.strip() == "VGPU"


def _processes(gpu: ElementTree.Element) -> Maybe[tuple[int, ...]]:
    listed = gpu.find("processes")
    if listed is None:
        return _NOT_PRINTED
    infos = listed.findall("process_info")
    pids = [info.findtext("pid", "") for info in infos if "C" in info.findtext("type", "C")]
    return tuple(int(pid) for pid in pids if re.fullmatch(r"[0-9]{1,9}", pid))


def _throttles(gpu: ElementTree.Element) -> Maybe[tuple[str, ...]]:
    reasons = gpu.find("clocks_event_reasons")
    if reasons is None:
        reasons = gpu.find("clocks_throttle_reasons")  # before driver 535
    if reasons is None:
        return _NOT_PRINTED
    active = [reason.tag for reason in reasons if reason.text == "Active"]
    return tuple(word for end, word in _THROTTLES.items() if any(tag.endswith(end) for tag in active))
