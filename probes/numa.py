"""NUMA nodes: their CPUs, memory and distances."""

from __future__ import annotations

import re
from dataclasses import dataclass

from probes.host import Host
from probes.text import printable
from probes.unknown import Maybe, Reason, Unknown

MAX_NUMBER = 65536


@dataclass(frozen=True)
class NumaNode:
    """One online NUMA node."""

    number: int
    cpulist: Maybe[str]  # kernel list format: "0-55,112-167"; "" for a node of memory only
    memory_bytes: Maybe[int]
    distances: Maybe[dict[int, int]]  # to every online node, 10 = itself


@dataclass(frozen=True)
class NumaFacts:
    """The node's NUMA nodes in order of their number."""

    nodes: tuple[NumaNode, ...]


_NODES = "/sys/devices/system/node"


def parse_list(text: str) -> tuple[int, ...] | None:
    """Numbers of a kernel list such as "0-2,4" (lib/bitmap.c bitmap_parselist); None if it is none."""
    numbers: list[int] = []
    for part in text.split(","):
        if not part.strip():
            continue
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or len(first) > 6 or len(last) > 6:
            return None
        numbers.extend(range(int(first), int(last or first) + 1)[:MAX_NUMBER])
        if len(numbers) > MAX_NUMBER:
            return None
    return tuple(numbers)


def list_from_map(text: str) -> str | None:
    """The list of a CPU map, comma-separated words of 32 bits in hex, most significant first."""
    words = text.strip().split(",")
    if not all(re.fullmatch(r"[0-9a-fA-F]{1,8}", word) for word in words) or len(words) > 512:
        return None
    bits = 0
    for word in words:
        bits = bits << 32 | int(word, 16)
    parts: list[str] = []
    number = 0
    while bits >> number:
        if bits >> number & 1:
            first = number
            while bits >> number + 1 & 1:
                number += 1
            parts.append(str(first) if first == number else f"{first}-{number}")
        number += 1
    return ",".join(parts)


def _cpulist(host: Host, path: str) -> Maybe[str]:
    text = host.read(f"{path}/cpulist")
    if not isinstance(text, Unknown):
        if parse_list(text) is None:
            return Unknown(Reason.MALFORMED, f"{path}/cpulist", printable(text, 40))
        return text
    cpumap = host.read(f"{path}/cpumap")
    if isinstance(cpumap, Unknown):
        return text
    cpus = list_from_map(cpumap)
    return Unknown(Reason.MALFORMED, f"{path}/cpumap", printable(cpumap, 40)) if cpus is None else cpus


def _memory(host: Host, path: str) -> Maybe[int]:
    text = host.read(f"{path}/meminfo")
    if isinstance(text, Unknown):
        return text
    match = re.search(r"MemTotal:\s+(\d{1,15}) kB", text)
    return int(match.group(1)) * 1024 if match else Unknown(Reason.MALFORMED, f"{path}/meminfo")


def _distances(host: Host, path: str, online: tuple[int, ...]) -> Maybe[dict[int, int]]:
    text = host.read(f"{path}/distance")
    if isinstance(text, Unknown):
        return text
    words = text.split()
    if len(words) != len(online) or not all(word.isdecimal() and len(word) < 6 for word in words):
        return Unknown(Reason.MALFORMED, f"{path}/distance", printable(text, 40))
    return dict(zip(online, map(int, words), strict=True))


def probe(host: Host) -> Maybe[NumaFacts]:
    """Reads /sys/devices/system/node; a distance list names the online nodes in their order."""
    names = host.names(_NODES)
    if isinstance(names, Unknown):
        return names
    numbers = sorted(int(match.group(1)) for name in names if (match := re.fullmatch(r"node(\d{1,6})", name)))
    online = host.read(f"{_NODES}/online")
    listed = None if isinstance(online, Unknown) else parse_list(online)
    if listed is not None:
        numbers = [number for number in numbers if number in listed]
    ordered = tuple(numbers)
    nodes = []
    for number in ordered:
        path = f"{_NODES}/node{number}"
        distances = _distances(host, path, ordered)
        nodes.append(NumaNode(number, _cpulist(host, path), _memory(host, path), distances))
    return NumaFacts(tuple(nodes))
