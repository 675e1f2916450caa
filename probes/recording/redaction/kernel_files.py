"""Rules for what the kernel shows: CPUs, PCI configuration space, DMA buffers, host names, routes."""

from __future__ import annotations

import ipaddress
import re

from probes.facts.pci.config_space import (
    CONVENTIONAL_BYTES,
    HEADER_BYTES,
    capabilities,
    extended_capabilities,
    is_gone,
)
from probes.facts.pci.nvswitch_management import MARK
from probes.recording.redaction.tokens import HOST, Tokens


def cpuinfo(tokens: Tokens, text: str) -> str:
    """Keep the first processor's vendor, family and model, and whether it runs under a hypervisor."""
    kept = []
    for line in text.lstrip("\n").partition("\n\n")[0].split("\n"):
        key, _, value = line.partition(":")
        if key.strip() in ("vendor_id", "CPU implementer", "CPU architecture"):
            kept.append(tokens.text(line))
        elif key.strip() in ("cpu family", "model") and re.fullmatch(r" ?[0-9]{1,4}", value):
            kept.append(line)
        elif key.strip() == "flags":
            flags = [flag for flag in value.split() if flag in ("lm", "hypervisor")]
            kept.append(f"flags\t: {' '.join(flags)}")
    return "\n".join([*kept, "", ""])


def dma_buffers(tokens: Tokens, text: str) -> str:
    """Keep the size at the start of each line in the kernel's list of DMA-BUFs."""
    return re.sub(r"(?m)^([0-9]{8,20}\t)?(.*)$", lambda line: (line[1] or "") + tokens.text(line[2]), text)


# Capability -> bytes that probes read: PCI Express; ACS, ATS, Resizable BAR.
_CAPABILITIES = {0x10: 0x3C}
_EXTENDED_CAPABILITIES = {0x0D: 8, 0x0F: 8, 0x15: 52}


def vital_product_data(tokens: Tokens, content: bytes) -> bytes:
    """Keep only the mark of functions that manage NVSwitches; the rest has part and serial numbers."""
    return MARK if MARK in content else b""


def pci_config(tokens: Tokens, content: bytes) -> bytes:
    """Keep the registers and capabilities that probes read; another capability has the serial number."""
    if is_gone(content):
        return b"\xff" * len(content)
    kept = bytearray(len(content))
    kept[:4] = content[:4]  # vendor and device
    if len(content) <= HEADER_BYTES:
        return bytes(kept)
    kept[0x06] = content[0x06] & 0x10  # has a capability list
    kept[0x0E] = content[0x0E]  # header type
    found = [(at, _CAPABILITIES[kind]) for kind, at in capabilities(content).items() if kind in _CAPABILITIES]
    kept[0x34] = found[0][0] if found else 0
    for offset, size in found:
        kept[offset : offset + size] = content[offset : offset + size]
        kept[offset + 1] = 0  # end of the list
    if len(content) <= CONVENTIONAL_BYTES:
        return bytes(kept)
    extended = extended_capabilities(content)
    places = sorted(
        (at, _EXTENDED_CAPABILITIES[kind]) for kind, at in extended.items() if kind in _EXTENDED_CAPABILITIES
    )
    if places and places[0][0] != CONVENTIONAL_BYTES:
        places.insert(0, (CONVENTIONAL_BYTES, 0))  # the list must start there
    for (offset, size), (following, _) in zip(places, [*places[1:], (0, 0)], strict=False):
        number = int.from_bytes(content[offset : offset + 4], "little") & 0xFFFFF if size else 0x10000
        kept[offset : offset + size] = content[offset : offset + size]
        kept[offset : offset + 4] = (number | following << 20).to_bytes(4, "little")
    return bytes(kept)


def host_name_file(tokens: Tokens, text: str) -> str:
    """Replace the host name in the first line of a file."""
    return "\n".join(host_name(tokens, line) for line in text.split("\n")[:1]) + "\n"


def host_name(tokens: Tokens, name: str) -> str:
    """Return the tokens of a host's name and of its domain."""
    short, dot, domain = name.strip().partition(".")
    return f"{tokens.name(HOST, short)}{dot}{tokens.name(HOST, domain) if domain else ''}"


def listening_sockets(tokens: Tokens, text: str) -> str:
    """Keep only listening sockets, without addresses, users and inodes."""
    kept = ["  sl  local_address rem_address   st"]
    sockets = re.finditer(r"^ *\d+: ([0-9A-F]{8,32}):([0-9A-F]{4}) \S+:0000 0A ", text, re.M)
    for number, match in enumerate(sockets):
        zero, rest = "0" * len(match[1]), "00000000:00000000 00:00000000 00000000     0"
        kept.append(f"{number:4}: {zero}:{match[2]} {zero}:0000 0A {rest}")
    return "\n".join([*kept, ""])


def routes(tokens: Tokens, text: str) -> str:
    """Replace addresses in /proc/net/route, which are little-endian numbers."""
    kept = []
    for line in text.splitlines():
        fields = enumerate(line.split("\t"))
        kept.append("\t".join(_route_field(tokens, column, field.strip()) for column, field in fields))
    return "\n".join([*kept, ""])


_ROUTE_MASK = 7  # column


def _route_field(tokens: Tokens, column: int, field: str) -> str:
    if not re.fullmatch(r"[0-9A-F]{8}", field):
        return tokens.text(field)
    address = ipaddress.IPv4Address(bytes.fromhex(field)[::-1])
    zeros = f"{int(address):032b}".lstrip("1")
    if not int(address) or (column == _ROUTE_MASK and "1" not in zeros):
        return field
    return ipaddress.IPv4Address(tokens.address(address)).packed[::-1].hex().upper()


def ipv6_routes(tokens: Tokens, text: str) -> str:
    """Replace addresses in /proc/net/ipv6_route: destination, source and next hop have 32 digits each."""

    def field(digits: str) -> str:
        address = ipaddress.IPv6Address(bytes.fromhex(digits))
        return ipaddress.IPv6Address(tokens.address(address)).packed.hex()

    kept = []
    for line in text.splitlines():
        *numbers, name = line.split() or [""]
        numbers = [text for text in numbers if re.fullmatch(r"[0-9a-f]{2}|[0-9a-f]{8}|[0-9a-f]{32}", text)]
        fields = [field(number) if len(number) == 32 else number for number in numbers]
        kept.append(" ".join((*fields, tokens.text(name))))
    return "\n".join([*kept, ""])
