"""What nvidia-smi prints (its table, -q, -q -x, nvlink -s and -e, -L), and logs of Fabric Manager and IMEX.

GPUs become NVML's facts below PCI functions, so that the checks of GPUs judge them. nvidia-smi's source is
closed: names and values are those of outputs of drivers 535 to 595.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from probes.base.text import join_limited, plural, printable
from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.gpu.gpus import UNFINISHED
from probes.host.nvml import FABRIC_STATES, LOST, NvmlFacts, NvmlGpu, bdf_of
from probes.messages.catalogue import catalogue, explain
from probes.messages.message import Weight
from probes.nccl.log.facts import Place
from probes.read.findings import statement
from probes.read.pasted_host import PLACEHOLDER, gpu_answers
from probes.read.reading import Parsed, Section, Statement, statement_of

QUERY_SIGN = (
    r"={5,}NVSMI LOG={5,}|GPU [0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.0\s*$"
    r"| {4}(?:(?:Product (?:Name|Brand|Architecture)|Persistence Mode|Addressing Mode|GPU UUID|C2C Mode"
    r"|GPU Recovery Action) {2,}: |(?:Fabric|BAR1 Memory Usage|FB Memory Usage|Remapped Rows|MIG Mode"
    r"|ECC Errors|GPU Reset Status)\s*$)"
)
XML_SIGN = r'\s*(?:<!DOCTYPE nvidia_smi_log|<nvidia_smi_log>|<gpu id="[0-9A-Fa-f]{4,8}:)'
TABLE_SIGN = r"\|\s+NVIDIA-SMI \d"
LINKS_SIGN = r"GPU \d{1,3}: .{1,100}\(UUID: "

_CHECKS = frozenset(
    (
        *("bar1-too-small", "geforce-no-gdr", "mig-with-gdr", "vgpu-without-gdr"),
        *("gpu-fabric-unhealthy", "gpu-fabric-differs"),
        *("xid-79-fell-off-bus", "c2c-grace-specifics-gb10"),
    )
)
_NOT_SHOWN = Unknown(Reason.NOT_RECORDED, "nvidia-smi", "not in the text")
_MOST_GPUS = 256
_LOST = "GPU is lost"
_NONE = ("", "n/a", "none", "no", "[n/a]")

_HEAD = re.compile(r"GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\s*$")
_PAIR = re.compile(r"([A-Za-z][^:]{0,60}?)\s*:(?:\s+(.*))?$")
_ONCE = (
    *("product_name", "product_brand", "product_architecture", "persistence_mode", "addressing_mode"),
    *("gpu_uuid", "c2c_mode", "gpu_recovery_action"),
)
_TAG = re.compile(r"<(/?)(\w{1,60})(?: id=\"([^\"]{1,40})\")?>(?:([^<]{0,400})</\2>)?")


@dataclass
class _Block:
    """One GPU's values by path: "bar1_memory_usage/total"."""

    bus_id: str
    place: Place
    values: dict[str, str] = field(default_factory=dict)

    def get(self, *paths: str) -> str:
        """Return the value of the first path that the text has; "" without one or if it is N/A."""
        for path in paths:
            value = self.values.get(path, "")
            if value and value.casefold() not in ("n/a", "[n/a]") and _LOST not in value:
                return value
        return ""

    @property
    def bdf(self) -> str:
        """The address as in sysfs."""
        return bdf_of(self.bus_id)


_OF_THE_NODE = ("timestamp", "driver_version", "cuda_version", "attached_gpus")


def _next_headless(blocks: list[_Block], path: str, place: Place) -> None:
    """Begin a GPU where the text has no head with its address: what a GPU has once comes again.

    A name whose section grep has left out may stand in several sections of a GPU.
    """
    is_headless = not blocks or blocks[-1].bus_id.startswith(PLACEHOLDER)
    is_again = blocks and path in blocks[-1].values and path.partition("/")[0] != "processes"
    is_once = "/" in path or path in _ONCE
    if path not in _OF_THE_NODE and is_headless and (not blocks or (is_again and is_once)):
        blocks.append(_Block(f"{PLACEHOLDER}{len(blocks):02x}:00.0", place))


def read_query(section: Section) -> Parsed:
    """Read nvidia-smi -q, also what grep left of it."""
    head: dict[str, str] = {}
    blocks: list[_Block] = []
    above: list[tuple[int, str]] = []  # indents and names of the sections around a line
    read = 0
    for number, line in enumerate(section.lines):
        text = line.strip()
        if match := _HEAD.match(text):
            if len(blocks) < _MOST_GPUS:
                blocks.append(_Block(match[1], section.at(number)))
            above = []
        elif (match := _PAIR.match(text)) or (0 < len(text) < 60 and text[0].isalpha()):
            indent = len(line) - len(line.lstrip())
            while above and above[-1][0] >= indent:
                above.pop()
            words = (match[1] if match else text).strip()
            name = printable(words, 60).casefold().replace(" ", "_")
            if match:
                path = "/".join((*(outer for _, outer in above), name))
                if len(blocks) < _MOST_GPUS:
                    _next_headless(blocks, path, section.at(number))
                values = head if path in _OF_THE_NODE or not blocks else blocks[-1].values
                values.setdefault(path, printable((match[2] or "").strip(), 200))
            if len(above) < 6 and not (match and match[2]):
                above.append((indent, name))
        elif not text.startswith("="):
            continue
        read += 1
    with_head = [block for block in blocks if not block.bus_id.startswith(PLACEHOLDER)]
    return _parsed(head, with_head or blocks, read, section)


def read_xml(section: Section) -> Parsed:
    """Read nvidia-smi -q -x, line by line: what people paste is often cut."""
    head: dict[str, str] = {}
    blocks: list[_Block] = []
    above: list[str] = []
    read = 0
    for number, line in enumerate(section.lines):
        match = _TAG.search(line)
        if match is None:
            read += bool(line.strip())
            continue
        is_end, tag, bus_id, value = match.groups()
        if tag == "gpu" and bus_id:
            above = []
            if len(blocks) < _MOST_GPUS:
                blocks.append(_Block(bus_id, section.at(number)))
        elif is_end:
            if tag in above:
                del above[above.index(tag) :]
        elif value is None:
            if len(above) < 8 and tag != "nvidia_smi_log":
                above.append(tag)
        else:
            values = blocks[-1].values if blocks else head
            values.setdefault("/".join((*above, tag)).casefold(), printable(value.strip(), 200))
        read += 1
    return _parsed(head, blocks, read, section)


def _parsed(head: Mapping[str, str], blocks: list[_Block], read: int, section: Section) -> Parsed:
    attached = head.get("attached_gpus", "")
    driver, cuda = head.get("driver_version", ""), head.get("cuda_version", "")
    gpus = tuple(_gpu(index, block) for index, block in enumerate(blocks))
    names = Counter(block.get("product_name") or "GPU" for block in blocks)
    shows = _shows(names, driver, cuda)
    if any(block.bus_id.startswith(PLACEHOLDER) for block in blocks):
        shows += " A part of nvidia-smi -q without the GPUs' addresses: they are numbered as they come."
    if attached.isdigit() and len(blocks) < int(attached[:4]):
        shows += f" The text has {len(blocks)} of {plural(int(attached[:4]), 'attached GPU')}."
    statements = [row for index, block in enumerate(blocks) for row in _faults(f"GPU{index}", block)]
    statements += _of_all(blocks)
    ids = {block.bdf: block.get("pci/device_id", "pci/pci_device_id") for block in blocks}
    return Parsed(read, tuple(statements), _answers(driver, cuda, gpus, ids), _CHECKS, shows)


def _shows(names: Mapping[str, int], driver: str, cuda: str) -> str:
    gpus = join_limited(
        plural(count, name) if name == "GPU" else f"{count} {name}" for name, count in names.items()
    )
    versions = [f"driver {driver}" if driver else "", f"CUDA {cuda}" if cuda else ""]
    return f"{', '.join(filter(None, (gpus, *versions)))}." if gpus or driver else ""


def _gpu(index: int, block: _Block) -> Maybe[NvmlGpu]:
    if any(_LOST in value for value in block.values.values()):
        return Unknown(Reason.DRIVER_ERROR, block.bdf, LOST)
    state, clique, cluster, health = _fabric(block)
    virtual = block.get("gpu_virtualization_mode/virtualization_mode")
    return NvmlGpu(
        index=index,
        bdf=block.bdf,
        name=block.get("product_name") or _NOT_SHOWN,
        uuid=block.get("gpu_uuid", "uuid") or _NOT_SHOWN,
        compute_capability=_NOT_SHOWN,
        memory_total_bytes=_mebibytes(block.get("fb_memory_usage/total")),
        bar1_total_bytes=_mebibytes(block.get("bar1_memory_usage/total")),
        nvlinks=_NOT_SHOWN,
        nvlink_peers=_NOT_SHOWN,
        c2c_links=_switch(block.get("c2c_mode")),
        persistence=_switch(block.get("persistence_mode")),
        mig=_switch(block.get("mig_mode/current", "mig_mode/current_mig")),
        is_vgpu=virtual.casefold() == "vgpu" if virtual else _NOT_SHOWN,
        fabric=state,
        fabric_clique=clique,
        fabric_cluster=cluster,
        fabric_health=health,
    )


def _mebibytes(text: str) -> Maybe[int]:
    match = re.match(r"(\d{1,9}) MiB", text)
    return int(match[1]) << 20 if match else _NOT_SHOWN


def _switch(text: str) -> Maybe[bool]:
    return {"enabled": True, "disabled": False, "on": True, "off": False}.get(text.casefold(), _NOT_SHOWN)


def _fabric(block: _Block) -> tuple[Maybe[str], Maybe[int], Maybe[str], Maybe[int]]:
    """Return state, clique, cluster and health mask as NVML has them."""
    state, status = block.get("fabric/state").casefold(), block.get("fabric/status").casefold()
    if state not in FABRIC_STATES:
        return _NOT_SHOWN, _NOT_SHOWN, _NOT_SHOWN, _NOT_SHOWN
    if state == FABRIC_STATES[-1] and status not in ("", "success"):
        return "failed", _NOT_SHOWN, _NOT_SHOWN, _NOT_SHOWN
    clique = block.get("fabric/cliqueid")
    return (
        state,
        int(clique) if re.fullmatch(r"\d{1,9}", clique) else _NOT_SHOWN,
        block.get("fabric/clusteruuid") or _NOT_SHOWN,
        _health(block),
    )


def _health(block: _Block) -> Maybe[int]:
    mask = block.get("fabric/health_mask", "fabric/healthmask")
    if re.fullmatch(r"0x[0-9a-fA-F]{1,8}", mask):
        return int(mask, 16)
    words = ("bandwidth", "route_recovery_in_progress", "route_unhealthy", "access_timeout_recovery")
    fields_of = {"degraded": 1, "true": 1, "yes": 1, "full": 2, "false": 2, "no": 2}
    values = [fields_of.get(block.get(f"fabric/health/{word}").casefold(), 0) for word in words]
    return sum(value << 2 * place for place, value in enumerate(values)) or _NOT_SHOWN


def _answers(
    driver: str, cuda: str, gpus: Iterable[Maybe[NvmlGpu]], ids: Mapping[str, str]
) -> dict[tuple[str, ...], Any]:
    """Return the answers of a host with these GPUs; PCI bridges are not known, so each is below a root."""
    gpus = tuple(gpus)
    answers: dict[tuple[str, ...], Any] = {
        ("nvml",): NvmlFacts(driver or _NOT_SHOWN, cuda or _NOT_SHOWN, gpus)
    }
    if driver:
        answers["file", "/sys/module/nvidia/version"] = driver.encode()
    for gpu in gpus:
        bdf = gpu.source if isinstance(gpu, Unknown) else gpu.bdf
        device = re.match(r"0x([0-9A-Fa-f]{4})10DE|([0-9A-Fa-f]{4})10DE", ids.get(bdf, ""))
        number = (device[1] or device[2]) if device else ""
        answers |= gpu_answers(bdf, number)
    return answers


def _faults(gpu: str, block: _Block) -> Iterator[Statement]:
    """Find what only nvidia-smi says: no check of the node reads it."""
    action = block.get("gpu_recovery_action")
    if not action and block.get("gpu_reset_status/reset_required").casefold() == "yes":
        action = "Reset"
    if action.casefold() not in _NONE:
        yield statement("gpu-recovery-needed", block.place, gpu=gpu, action=action)
    if block.get("remapped_rows/remapping_failure_occurred", "remapped_rows/remapped_row_failure") == "Yes":
        yield statement("gpu-memory-unrepairable", block.place, gpu=gpu)
    elif block.get("remapped_rows/pending", "remapped_rows/remapped_row_pending") == "Yes" or "Yes" in (
        block.get("retired_pages/pending_page_blacklist"),
        block.get("retired_pages/pending_retirement", "retired_pages/pending_blacklist"),
    ):
        yield statement("gpu-memory-repair-pending", block.place, gpu=gpu)
    errors = [
        name.rpartition("/")[2].replace("_", " ")
        for name, value in block.values.items()
        if name.startswith("ecc_errors/volatile/") and "uncorrectable" in name and value.strip("0").isdigit()
    ]
    if errors:
        yield statement("gpu-memory-errors", block.place, gpu=gpu, errors=join_limited(errors))


def _of_all(blocks: list[_Block]) -> Iterator[Statement]:
    """Find what the checks of a node would find by facts that NVML's do not have."""
    found: dict[str, list[str]] = {}
    unregistered: dict[str, str] = {}
    for index, block in enumerate(blocks):
        gpu = f"GPU{index}"
        lanes = _numbers(block, _WIDTHS)
        if lanes and lanes[0] < lanes[1]:
            found.setdefault("pcie-link-degraded-width", []).append(f"{gpu}: x{lanes[0]} of x{lanes[1]}")
        speeds = _numbers(block, _GENERATIONS)
        if speeds and 0 < speeds[0] == speeds[1] < speeds[2]:
            text = f"{gpu}: Gen{speeds[0]} instead of Gen{speeds[2]}"
            found.setdefault("pcie-link-limited-by-slot", []).append(text)
        if (wrong := block.get("fabric/health/incorrect_configuration")).casefold() not in _NONE:
            text = f"{gpu}: incorrect configuration ({wrong})"
            found.setdefault("gpu-fabric-unhealthy", []).append(text)
        if block.get("persistence_mode") == "Disabled":
            found.setdefault("persistence-off", []).append(gpu)
        if known(_fabric(block)[0], "") in UNFINISHED:
            state = block.get("fabric/state")
            unregistered[gpu] = state if state != "Completed" else block.get("fabric/status")
    for name, texts in found.items():
        yield statement(name, blocks[0].place, cause=f"{join_limited(texts)}.")
    if unregistered:
        states = join_limited(f"“{state}”" for state in unregistered.values())
        cause = f"{join_limited(unregistered)}: the state of the registration is {states}."
        yield statement("gpu-fabric-not-registered", blocks[0].place, cause=cause)


_WIDTHS = (
    ("link_width/current", "link_widths/current_link_width"),
    ("link_width/max", "link_widths/max_link_width"),
)
_GENERATIONS = (
    ("pcie_generation/host_max", "pcie_gen/max_host_link_gen"),
    ("pcie_generation/max", "pcie_gen/max_link_gen"),
    ("pcie_generation/device_max", "pcie_gen/max_device_link_gen"),
)


def _numbers(block: _Block, ends: Iterable[tuple[str, str]]) -> tuple[int, ...]:
    """Return the numbers of the PCIe link's values, in text or XML; () if one is missing."""
    numbers = []
    for text, xml in ends:
        value = block.get(f"pci/gpu_link_info/{text}", f"pci/pci_gpu_link_info/{xml}")
        match = re.match(r"\d{1,2}", value)
        if match is None:
            return ()
        numbers.append(int(match[0]))
    return tuple(numbers)


# The table.

_VERSIONS = re.compile(
    r"NVIDIA-SMI \S{1,20}\s+(?:Driver|KMD) Version: (\S{1,20})\s+(?:.{0,40}?)"
    r"CUDA (?:UMD )?Version: (\S{1,20})"
)
_ROW = re.compile(
    r"\|\s{1,4}(\d{1,3})\s{1,4}(\S.{0,60}?)\s+(On|Off|N/A|ERR!)?\s*\|\s*"
    r"([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\s+\S{2,4}\s*\|\s*(\S.{0,20}?)\s*\|"
)
_USAGE = re.compile(r"\|.{0,80}\|\s*\d{1,9}MiB\s*/\s*(\d{1,9})MiB\s*\|")
_MIG_ROW = re.compile(r"\|\s+\|\s+\|\s+(Enabled|Disabled|N/A)\*?\s*\|\s*$")


def read_table(section: Section) -> Parsed:
    """Read nvidia-smi without options."""
    driver = cuda = ""
    blocks: list[_Block] = []
    errors: set[str] = set()
    read = 0
    is_processes = False
    for number, line in enumerate(section.lines):
        read += line.startswith(("|", "+"))
        is_processes = (is_processes or "| Processes:" in line) and "NVIDIA-SMI" not in line
        if is_processes:
            continue
        if match := _VERSIONS.search(line):
            driver, cuda = match[1], match[2]
        elif (match := _ROW.match(line)) and len(blocks) < _MOST_GPUS:
            values = {"product_name": match[2], "mig_mode/current": ""}
            values["persistence_mode"] = {"On": "Enabled", "Off": "Disabled"}.get(match[3] or "", "")
            blocks.append(_Block(match[4], section.at(number), values))
            if re.fullmatch(r"[1-9]\d{0,8}", match[5]):
                values["ecc_errors/volatile/uncorrectable"] = match[5]
        elif blocks and (match := _USAGE.match(line)):
            blocks[-1].values.setdefault("fb_memory_usage/total", f"{match[1]} MiB")
        elif blocks and (match := _MIG_ROW.match(line)):
            blocks[-1].values["mig_mode/current"] = match[1]
        if blocks and "ERR!" in line and line.startswith("|"):
            errors.add(blocks[-1].bus_id)
    parsed = _parsed({"driver_version": driver, "cuda_version": cuda}, blocks, read, section)
    statements = (
        statement("gpu-values-unreadable", block.place, gpu=f"GPU{index}")
        for index, block in enumerate(blocks)
        if block.bus_id in errors
    )
    return replace(parsed, statements=(*parsed.statements, *statements))


# NVLinks.

_GPU = re.compile(r"GPU (\d{1,3}): (.{1,100}?) \(UUID: ")
_LINK = re.compile(r"\s*Link (\d{1,2}): (?:(<inactive>)|([\d.]{1,9}) GB/s|(\w[\w ]{1,40}): (\d{1,12}))")
_ALL_INACTIVE = re.compile(r"\s*NVML: Unable to retrieve NVLink information as all links are inactive")


@dataclass
class _Links:
    """The NVLinks of a GPU."""

    name: str
    place: Place
    active: set[int] = field(default_factory=set)
    inactive: set[int] = field(default_factory=set)
    errors: set[str] = field(default_factory=set)
    are_shown: bool = False


def read_links(section: Section) -> Parsed:
    """Read nvidia-smi nvlink -s and -e; -L has the same first lines."""
    gpus: dict[str, _Links] = {}
    gpu: _Links | None = None
    read = 0
    for number, line in enumerate(section.lines):
        if match := _GPU.match(line):
            gpu = gpus.setdefault(match[1], _Links(match[2], section.at(number)))
        elif gpu is not None and (match := _LINK.match(line)):
            link = int(match[1])
            gpu.are_shown = gpu.are_shown or match[4] is None
            if match[2]:
                gpu.inactive.add(link)
            elif match[3]:
                gpu.active.add(link)
            elif int(match[5]):
                gpu.errors.add(match[4])
        elif gpu is not None and _ALL_INACTIVE.match(line):
            gpu.are_shown = True
        else:
            continue
        read += 1
    shown = {number: links for number, links in gpus.items() if links.are_shown}
    statements = [*_link_faults(shown), *_link_errors(gpus)]
    shows = _shows(Counter(links.name for links in gpus.values()), "", "")
    if counts := sorted({len(links.active) for links in shown.values()}):
        each = counts[0] if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        shows = f"{plural(len(shown), 'GPU')} with {each} active NVLinks{' each' if len(shown) > 1 else ''}."
    return Parsed(read, tuple(statements), shows=shows)


def _link_faults(gpus: Mapping[str, _Links]) -> Iterator[Statement]:
    """Compare GPUs of one model, and the links of a GPU that stands alone in the text."""
    for number, links in gpus.items():
        same = [other for other in gpus.values() if other.name == links.name]
        most = max(len(other.active) for other in same)
        missing = most - len(links.active)
        if len(same) == 1 and (links.active or "SXM" in links.name):
            missing = len(links.inactive) or not links.active
        if not missing:
            continue
        which = join_limited(str(link) for link in sorted(links.inactive))
        cause = f"GPU{number}: {plural(len(links.active), 'link')} active"
        cause += (
            f", {plural(len(links.inactive), 'link')} inactive ({which})." if which else ", all are inactive."
        )
        if len(same) > 1:
            cause += f" Other GPUs have {most} active links."
        cause += (
            " The GPU, its board or a link is faulty; or, between PCIe cards, an NVLink bridge is missing."
        )
        is_card = re.search(r"PCIe|NVL\b", links.name) is not None
        weight = Weight.NOTE if is_card else None
        yield statement("nvlink-down", links.place, cause=cause, weight=weight)


def _link_errors(gpus: Mapping[str, _Links]) -> Iterator[Statement]:
    for number, links in gpus.items():
        if links.errors:
            errors = join_limited(sorted(links.errors))
            weight = Weight.WARNING if any("Recovery" in error for error in links.errors) else None
            yield statement("nvlink-errors", links.place, weight=weight, number=number, errors=errors)


# Fabric Manager and IMEX.

FABRIC_LOG_SIGN = r"\[\w{3} [ \d]\d \d{4} \d\d:\d\d:\d\d\] \[[A-Z]{4,8}\] \[tid \d"
DOMAIN_SIGN = r"\s*(?:Connectivity Table Legend:|Domain State:\s*\w+)"
_LOG_LINE = re.compile(r"\[[^\]]{11,24}\] \[(\w+)\] \[tid \d{1,10}\] (.*)")
_SERIOUS = ("ERROR", "CRITICAL", "ALERT", "FATAL")
_MISMATCH = re.compile(r"(?:version|interface).{0,80}(?:mismatch|do(?:es)?n'?t match|does not match)", re.I)
_STATE = re.compile(r"\s*Domain State:\s*(\w{2,20})")


def read_log(section: Section) -> Parsed:
    """Read fabricmanager.log or nvidia-imex.log; lines without a head belong to the one before."""
    first: dict[str, tuple[str, Place]] = {}
    errors = 0
    for number, line in enumerate(section.lines):
        match = _LOG_LINE.match(line)
        if match is None or match[1] not in _SERIOUS:
            continue
        errors += 1
        kind = "version" if _MISMATCH.search(match[2]) else "error"
        if "non-fatal" in match[2].casefold():
            kind = "non-fatal"
        first.setdefault(kind, (printable(match[2], 300), section.at(number)))
    lines = plural(section.filled, "line")
    if not first:
        return Parsed(section.filled, shows=f"{lines} of Fabric Manager or IMEX without an error.")
    kind = next(kind for kind in ("version", "error", "non-fatal") if kind in first)
    text, place = first[kind]
    if kind == "version":
        said = statement("fabric-manager-down-version", place, cause=text)
    elif kind == "error" and (found := catalogue("cuda").find(text)) is not None:
        said = replace(statement_of(explain(found), text, place), count=errors)
    else:
        weight = Weight.NOTE if kind == "non-fatal" else None
        said = statement("fabric-manager-error", place, weight=weight, text=text, count=errors)
    return Parsed(section.filled, (said,))


def read_domain(section: Section) -> Parsed:
    """Read nvidia-imex-ctl -N."""
    for number, line in enumerate(section.lines):
        if match := _STATE.match(line):
            if match[1] == "UP":
                return Parsed(section.filled, shows="The IMEX domain is up.")
            place, text = section.at(number), line.strip()
            down = statement("imex-domain-not-up", place, text=text, state=match[1])
            return Parsed(section.filled, (down,))
    return Parsed(section.filled)
