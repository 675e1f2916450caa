"""Names of PCI vendors and devices: from the system's pci.ids, else the few that matter."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pkgutil import get_data

from probes.base.text import printable
from probes.base.unknown import first_known, known
from probes.host.protocol import Host

_PCI_IDS = ("/usr/share/misc/pci.ids", "/usr/share/hwdata/pci.ids")
_PCI_IDS_LIMIT = 4 << 20
_NEXT_VENDOR = re.compile(rb"\n[^\t#\r\n]")
_VENDORS = {
    0x10DE: "NVIDIA",
    0x15B3: "Mellanox",
    0x1000: "Broadcom",
    0x11F8: "Microchip",
    0x1414: "Microsoft",
    0x14E4: "Broadcom",
    0x17DB: "HPE",
    0x1D0F: "Amazon",
    0x1DD8: "AMD Pensando",
    0x1DED: "Alibaba",
    0x8086: "Intel",
}


def names_of(host: Host, wanted: Iterable[tuple[int, int]]) -> dict[tuple[int, int], str]:
    """Return the names of (vendor, device) pairs; an unknown device is named by its numbers."""
    wanted = set(wanted)
    if not wanted:
        return {}
    content = known(first_known((host.read_bytes(path, _PCI_IDS_LIMIT) for path in _PCI_IDS), ""), b"")
    found = search(content, wanted)
    return {pair: found.get(pair) or built_in_name(*pair) for pair in wanted}


def built_in_name(vendor: int, device: int) -> str:
    """Return the name from pci.ids beside this file; an unknown device is named by its numbers."""
    maker = _VENDORS.get(vendor, f"{vendor:04x}")
    named = search(_built_in_names(), ((vendor, device),))
    return named.get((vendor, device), f"{maker} device {device:04x}")


@cache
def _built_in_names() -> bytes:
    return get_data(__package__, "pci.ids") or b""  # importlib.resources takes longer to import


def search(content: bytes, wanted: Iterable[tuple[int, int]]) -> dict[tuple[int, int], str]:
    """Find names in a pci.ids file, in which devices are indented below their vendors."""
    sections: dict[int, tuple[str, bytes]] = {}
    found: dict[tuple[int, int], str] = {}
    for vendor, device in wanted:
        if vendor not in sections:
            sections[vendor] = _section(content, vendor)
        maker, section = sections[vendor]
        name = _after(section, b"\n\t%04x  " % device)
        if name:
            found[vendor, device] = f"{_VENDORS.get(vendor, maker)} {name}"
    return found


def _section(content: bytes, vendor: int) -> tuple[str, bytes]:
    key = b"\n%04x  " % vendor
    start = content.find(key)
    if start < 0:
        return "", b""
    following = _NEXT_VENDOR.search(content, start + len(key))
    section = content[start : following.start() if following else len(content)]
    return _after(section, key), section


def _after(content: bytes, key: bytes) -> str:
    start = content.find(key)
    if start < 0:
        return ""
    line = content[start + len(key) :].split(b"\n", 1)[0]
    return printable(line.decode("utf-8", "replace").strip(), 80)
