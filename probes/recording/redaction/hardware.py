"""Rules for CPUs, PCI configuration space and DMA buffers."""

from __future__ import annotations

import re

from probes.facts.pci.config_space import (
    CONVENTIONAL_BYTES,
    HEADER_BYTES,
    capabilities,
    extended_capabilities,
    is_gone,
)
from probes.facts.pci.nvswitch_management import MARK
from probes.recording.redaction.tokens import Tokens


def cpuinfo(tokens: Tokens, text: str) -> str:
    """Keep the first processor's vendor and whether it runs under a hypervisor."""
    kept = []
    for line in text.lstrip("\n").partition("\n\n")[0].split("\n"):
        key, _, value = line.partition(":")
        if key.strip() in ("vendor_id", "CPU implementer", "CPU architecture"):
            kept.append(tokens.text(line))
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
