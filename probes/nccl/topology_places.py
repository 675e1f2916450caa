"""Where a topology file places GPUs, NICs and switches, and the words that follow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from probes.nccl.topology_xml import Element
from probes.topology.nccl_words import UNKNOWN_NUMA, FileTree, Seat, flattened

GPU_CLASS, NIC_CLASS = "0x03", "0x02"
_MAX_ENDPOINTS = 512
_IDS = {
    "vendor_id": "vendor",
    "device_id": "device",
    "subsystem_vendor_id": "subsystem_vendor",
    "subsystem_device_id": "subsystem_device",
}


def endpoints_of(system: Element) -> tuple[Element, ...]:
    """Return the elements of GPUs and NICs in the order of the file, at most 512."""
    ends = (element for element in system.walk() if is_endpoint(element))
    return tuple(element for element, _ in zip(ends, range(_MAX_ENDPOINTS), strict=False))


def is_endpoint(element: Element) -> bool:
    """Return whether this is a PCI function with the class of a GPU or a NIC; bridges may be invented."""
    return element.name == "pci" and element.get("class").startswith((GPU_CLASS, NIC_CLASS))


def endpoint_ids(system: Element) -> tuple[str, ...]:
    """Return the bus IDs of GPUs and NICs, in lower case."""
    return tuple(bus for element in endpoints_of(system) if (bus := bus_id(element)))


def bus_id(element: Element) -> str:
    """Return an element's bus ID, in lower case as in sysfs."""
    return element.get("busid").lower()


def file_tree(path: str, system: Element) -> FileTree:
    """Return the places by bus ID; an ID that the file repeats keeps its first place, as for NCCL."""
    seats: dict[str, Seat] = {}
    for cpu in system.named("cpu"):
        number = cpu.get("numaid")
        numa = int(number) if number.isdecimal() and len(number) < 7 else UNKNOWN_NUMA
        for element, above in _functions(cpu, ()):
            ids = {bus_id(switch): _ids(switch) for switch in above}
            seat = Seat(bus_id(element), flattened(list(ids), ids), numa)
            seats.setdefault(seat.bus_id, seat)
    return FileTree(path, seats)


def _functions(
    above: Element, switches: tuple[Element, ...]
) -> Iterator[tuple[Element, tuple[Element, ...]]]:
    """Yield each PCI function inside an element, with those above it, nearest first."""
    for element in above.named("pci"):
        yield element, switches
        yield from _functions(element, (element, *switches))


def _ids(switch: Element) -> Mapping[str, Any]:
    return {name: _number(switch.get(attribute)) for name, attribute in _IDS.items()}


def _number(text: str) -> int | None:
    """Return a sysfs ID such as "0x1000"; None if it is missing or malformed."""
    digits = text.lower().removeprefix("0x")
    return int(digits, 16) if 0 < len(digits) <= 4 and set(digits) <= set("0123456789abcdef") else None
