"""Names of PCI vendors and devices: from the system's pci.ids, else the few that matter."""

from __future__ import annotations

import re
from collections.abc import Iterable

from probes.base.text import printable
from probes.base.unknown import Unknown
from probes.host.protocol import Host

_PCI_IDS = ("/usr/share/misc/pci.ids", "/usr/share/hwdata/pci.ids")
_PCI_IDS_LIMIT = 4 << 20
_NEXT_VENDOR = re.compile(rb"\n[^\t#\r\n]")
_VENDORS = {
    0x10DE: "NVIDIA",
    0x15B3: "Mellanox",
    0x1000: "Broadcom",
    0x11F8: "Microchip",
    0x17DB: "HPE",
    0x1D0F: "Amazon",
    0x8086: "Intel",
}
_DEVICES = {
    (0x10DE, 0x1DB1): "V100-SXM2 16GB",
    (0x10DE, 0x1DB4): "V100-PCIe 16GB",
    (0x10DE, 0x1DB5): "V100-SXM2 32GB",
    (0x10DE, 0x1DB6): "V100-PCIe 32GB",
    (0x10DE, 0x1DB8): "V100-SXM3 32GB",
    (0x10DE, 0x20B0): "A100-SXM4 40GB",
    (0x10DE, 0x20B1): "A100-PCIe 40GB",
    (0x10DE, 0x20B2): "A100-SXM4 80GB",
    (0x10DE, 0x20B3): "A100-SXM 64GB",
    (0x10DE, 0x20B5): "A100-PCIe 80GB",
    (0x10DE, 0x20F1): "A100-PCIe 40GB",
    (0x10DE, 0x2236): "A10",
    (0x10DE, 0x26B1): "RTX 6000 Ada Generation",
    (0x10DE, 0x26B5): "L40",
    (0x10DE, 0x26B9): "L40S",
    (0x10DE, 0x27B8): "L4",
    (0x10DE, 0x2230): "RTX A6000",
    (0x10DE, 0x2330): "H100 SXM5 80GB",
    (0x10DE, 0x2331): "H100 PCIe",
    (0x10DE, 0x2324): "H800",
    (0x10DE, 0x2329): "H20",
    (0x10DE, 0x2335): "H200 SXM 141GB",
    (0x10DE, 0x233B): "H200 NVL",
    (0x10DE, 0x2342): "GH200 480GB",
    (0x10DE, 0x2901): "B200",
    (0x10DE, 0x2941): "GB200",
    (0x10DE, 0x3182): "B300 SXM6 AC",
    (0x10DE, 0x31C2): "GB300",
    (0x10DE, 0x2BB5): "RTX PRO 6000 Blackwell Server Edition",
    (0x10DE, 0x1AF1): "NVSwitch (A100)",
    (0x10DE, 0x22A3): "NVSwitch (H100)",
    (0x15B3, 0x1013): "ConnectX-4",
    (0x15B3, 0x1015): "ConnectX-4 Lx",
    (0x15B3, 0x1017): "ConnectX-5",
    (0x15B3, 0x1018): "ConnectX-5 virtual function",
    (0x15B3, 0x1019): "ConnectX-5 Ex",
    (0x15B3, 0x101B): "ConnectX-6",
    (0x15B3, 0x101C): "ConnectX-6 virtual function",
    (0x15B3, 0x101D): "ConnectX-6 Dx",
    (0x15B3, 0x101E): "ConnectX virtual function",
    (0x15B3, 0x101F): "ConnectX-6 Lx",
    (0x15B3, 0x1021): "ConnectX-7",
    (0x15B3, 0x1023): "ConnectX-8",
    (0x15B3, 0x1025): "ConnectX-9",
    (0x15B3, 0x1027): "ConnectX-10",
    (0x15B3, 0xA2D6): "BlueField-2",
    (0x15B3, 0xA2DC): "BlueField-3",
    (0x15B3, 0x1979): "ConnectX-7 PCIe bridge",
    (0x17DB, 0x0501): "Cassini 1 [Slingshot 200Gb]",
    (0x1D0F, 0x0200): "PCIe bridge",
    **{(0x1D0F, 0xEFA0 + version): "Elastic Fabric Adapter [EFA]" for version in range(4)},
    (0x1000, 0xC010): "PEX880xx Gen4 switch",
    (0x1000, 0xC012): "PEX880xx Gen4 switch",
    (0x1000, 0xC030): "PEX890xx Gen5 switch",
    (0x1000, 0xC034): "PEX890xx Gen5 switch",
    (0x11F8, 0x4000): "Switchtec PFX 100xG4 switch",
    (0x11F8, 0x4100): "Switchtec PSX 100xG4 switch",
    (0x11F8, 0x4128): "Switchtec PSX 28xG4 switch",
    (0x11F8, 0x8536): "Switchtec PFX 96xG3 switch",
}


def names_of(host: Host, wanted: Iterable[tuple[int, int]]) -> dict[tuple[int, int], str]:
    """Return the names of (vendor, device) pairs; an unknown device is named by its numbers."""
    wanted = set(wanted)
    if not wanted:
        return {}
    found: dict[tuple[int, int], str] = {}
    for path in _PCI_IDS:
        content = host.read_bytes(path, _PCI_IDS_LIMIT)
        if not isinstance(content, Unknown):
            found = search(content, wanted)
            break
    for vendor, device in wanted:
        found.setdefault((vendor, device), built_in_name(vendor, device))
    return found


def built_in_name(vendor: int, device: int) -> str:
    """Return the name from the built-in table; an unknown device is named by its numbers."""
    maker = _VENDORS.get(vendor, f"{vendor:04x}")
    return f"{maker} {_DEVICES.get((vendor, device), f'device {device:04x}')}"


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
