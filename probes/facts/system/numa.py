"""NUMA nodes: CPUs, memory, distances; which of them this process may use; the CPU's model; free memory."""

from __future__ import annotations

import re
from functools import lru_cache

from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown, map_known, parse_known
from probes.facts.system.platform import CPUINFO, first_processor, read_cpuinfo
from probes.host.protocol import Host
from probes.host.usage import cpu_list

MAX_NUMBER = 65536
STATUS = "/proc/self/status"


@frozen
class NumaNode:
    """One online NUMA node."""

    number: int
    cpulist: Maybe[str]  # kernel list format: "0-55,112-167"; "" for a node of memory only
    memory_bytes: Maybe[int]
    distances: Maybe[dict[int, int]]  # to every online node, 10 = itself


@frozen
class NumaFacts:
    """The node's NUMA nodes in order of their number."""

    nodes: tuple[NumaNode, ...]


_NODES = "/sys/devices/system/node"
_RANGE = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?")


@lru_cache(32)
def number_set(text: Maybe[str]) -> frozenset[int] | None:
    """Return the numbers of a kernel list; None if it is unknown or malformed."""
    numbers = None if isinstance(text, Unknown) else parse_list(text)
    return None if numbers is None else frozenset(numbers)


def parse_list(text: str) -> tuple[int, ...] | None:
    """Parse a kernel list such as "0-2,4" (lib/bitmap.c bitmap_parselist); None if it is malformed."""
    numbers: list[int] = []
    for part in text.split(","):
        if not part.strip():
            continue
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            return None
        first, last = int(match.group(1)), int(match.group(2) or match.group(1))
        if last < first or last >= MAX_NUMBER or len(numbers) + last - first >= MAX_NUMBER:
            return None
        numbers.extend(range(first, last + 1))
    return tuple(numbers)


def list_from_map(text: str) -> str | None:
    """Return a CPU map as a kernel list. A map is 32-bit hex words, the most significant first."""
    words = text.strip().split(",")
    if not all(re.fullmatch(r"[0-9a-fA-F]{1,8}", word) for word in words) or len(words) > 512:
        return None
    bits = 0
    for word in words:
        bits = bits << 32 | int(word, 16)
    return cpu_list(number for number in range(bits.bit_length()) if bits >> number & 1)


def read_cpus(host: Host, list_path: str, map_path: str) -> Maybe[str]:
    """Read CPUs as a kernel list; where it is missing, from the file with the same CPUs as a map."""
    text = host.read(list_path)
    if not isinstance(text, Unknown):
        return parse_known(text, lambda cpus: None if parse_list(cpus) is None else cpus, list_path)
    cpumap = host.read(map_path)
    return text if isinstance(cpumap, Unknown) else parse_known(cpumap, list_from_map, map_path)


def _memory(host: Host, path: str) -> Maybe[int]:
    search = re.compile(r"MemTotal:\s+([0-9]{1,15}) kB").search
    match = parse_known(host.read(f"{path}/meminfo"), search, f"{path}/meminfo")
    return map_known(match, lambda found: int(found[1]) * 1024)


def _distances(host: Host, path: str, online: tuple[int, ...]) -> Maybe[dict[int, int]]:
    text = host.read(f"{path}/distance")
    if isinstance(text, Unknown):
        return text
    words = text.split()
    if len(words) != len(online) or not all(re.fullmatch("[0-9]{1,5}", word) for word in words):
        return Unknown(Reason.MALFORMED, f"{path}/distance", printable(text, 40))
    return dict(zip(online, map(int, words), strict=True))


MEMINFO = "/proc/meminfo"


@frozen
class MemoryFacts:
    """The node's memory in bytes (proc_meminfo(5)); CMA is memory that drivers get in one piece."""

    available: Maybe[int]
    cma_total: Maybe[int]  # NOT_THERE: the kernel is built without CMA
    cma_free: Maybe[int]


def probe_memory(host: Host) -> Maybe[MemoryFacts]:
    """Read /proc/meminfo."""
    return map_known(host.read(MEMINFO), parse_memory)


def parse_memory(text: str) -> MemoryFacts:
    """Parse the lines "MemAvailable:", "CmaTotal:" and "CmaFree:", whose values are in KiB."""
    return MemoryFacts(*(_kib(text, name) for name in ("MemAvailable", "CmaTotal", "CmaFree")))


def _kib(text: str, name: str) -> Maybe[int]:
    match = re.search(rf"^{name}: {{1,32}}([0-9]{{1,15}}) kB$", text, re.M)
    return int(match[1]) * 1024 if match else Unknown(Reason.NOT_THERE, MEMINFO, f"no “{name}” line")


def probe(host: Host) -> Maybe[NumaFacts]:
    """Read /sys/devices/system/node. A distance list is in the order of the online nodes."""
    names = host.names(_NODES)
    if isinstance(names, Unknown):
        return names
    matches = (re.fullmatch(r"node([0-9]{1,6})", name) for name in names)
    numbers = sorted(int(match.group(1)) for match in matches if match)
    online = host.read(f"{_NODES}/online")
    listed = None if isinstance(online, Unknown) else parse_list(online)
    if listed is not None:
        numbers = [number for number in numbers if number in listed]
    ordered = tuple(numbers)
    nodes = []
    for number in ordered:
        path = f"{_NODES}/node{number}"
        distances = _distances(host, path, ordered)
        cpus = read_cpus(host, f"{path}/cpulist", f"{path}/cpumap")
        nodes.append(NumaNode(number, cpus, _memory(host, path), distances))
    return NumaFacts(tuple(nodes))


@frozen
class CpusetFacts:
    """The CPUs and NUMA nodes of this process and of the programs that it starts: "0-55,112-167".

    A job, a container or taskset limits them. libnuma reads the same lines (set_task_constraints).
    """

    cpus: Maybe[str]
    memory_nodes: Maybe[str]


def probe_cpuset(host: Host) -> Maybe[CpusetFacts]:
    """Read /proc/self/status (proc_pid_status(5))."""
    return map_known(host.read(STATUS), parse_status)


def parse_status(text: str) -> CpusetFacts:
    """Parse the lines "Cpus_allowed_list:" and "Mems_allowed_list:"."""
    return CpusetFacts(_status_list(text, "Cpus_allowed_list"), _status_list(text, "Mems_allowed_list"))


def _status_list(text: str, name: str) -> Maybe[str]:
    match = re.search(rf"^{name}:[ \t]*([^\n]{{0,4096}})$", text, re.M)
    if match is None:
        return Unknown(Reason.MALFORMED, STATUS, f"no “{name}” line")
    return parse_known(match[1].strip(), lambda cpus: None if parse_list(cpus) is None else cpus, STATUS)


# The CPU's vendor, family and model, from /proc/cpuinfo: UCX chooses its defaults by them.


@frozen
class CpuModel:
    """The first processor of an x86 machine."""

    vendor: str  # "GenuineIntel"
    family: int
    model: int


def probe_cpu_model(host: Host) -> Maybe[CpuModel]:
    """Read /proc/cpuinfo, which is slow on nodes with many CPUs."""
    return map_known(read_cpuinfo(host), parse_cpu_model)


def parse_cpu_model(text: str) -> Maybe[CpuModel]:
    """Parse the first processor; Arm has other fields, which UCX does not use for this."""
    fields = first_processor(text)
    numbers = [fields.get(name, "") for name in ("cpu family", "model")]
    if "vendor_id" not in fields:
        return Unknown(Reason.NOT_THERE, CPUINFO, "no vendor_id, as on Arm")
    if not all(number.isascii() and number.isdigit() and len(number) <= 4 for number in numbers):
        return Unknown(Reason.MALFORMED, CPUINFO, "no family and model")
    return CpuModel(printable(fields["vendor_id"], 32), int(numbers[0]), int(numbers[1]))
