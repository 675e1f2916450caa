"""setpci(8): reads and writes PCI configuration space; messages are those of pciutils."""

from __future__ import annotations

import re

from probes.base.frozen import frozen
from probes.facts.pci.functions import DEVICES
from probes.simulation.commands.command_result import CommandResult, Invocation, done, failed
from probes.simulation.node.devices.pci import real_path
from probes.simulation.node.model.tree import Tree

_CAPABILITIES = {"PM": 0x01, "MSI": 0x05, "VNDR": 0x09, "EXP": 0x10, "MSIX": 0x11}
# fmt: off
_EXTENDED = {
    "AER": 0x01, "DSN": 0x03, "ACS": 0x0D, "ARI": 0x0E, "ATS": 0x0F, "SRIOV": 0x10, "PRI": 0x13,
    "REBAR": 0x15, "TPH": 0x17, "LTR": 0x18, "SECPCI": 0x19, "PASID": 0x1B, "DPC": 0x1D,
    "L1PM": 0x1E, "PTM": 0x1F,
}
_REGISTERS = {
    "VENDOR_ID": (0x00, 2), "DEVICE_ID": (0x02, 2), "COMMAND": (0x04, 2), "STATUS": (0x06, 2),
    "REVISION": (0x08, 1), "CACHE_LINE_SIZE": (0x0C, 1), "LATENCY_TIMER": (0x0D, 1), "HEADER_TYPE": (0x0E, 1),
    "BRIDGE_CONTROL": (0x3E, 2),
}
# fmt: on
_BY_NUMBER = re.compile(r"(E?)CAP([0-9A-F]{1,3})")
_WIDTHS = {"b": 1, "w": 2, "l": 4}
_REGISTER = re.compile(
    r"(?P<base>[A-Za-z0-9_]+)(\+(?P<offset>[0-9A-Fa-f]+))?(\.(?P<width>[A-Za-z]+))?(=(?P<values>.*))?"
)
_VALUE = re.compile(r"(?:0[xX])?([0-9A-Fa-f]{1,8})(?::(?:0[xX])?([0-9A-Fa-f]{1,8}))?")
_SLOT = re.compile(r"(?:([0-9A-Fa-f]{1,4}):)?([0-9A-Fa-f]{1,2}):([0-9A-Fa-f]{1,2})\.([0-7])")
_HELP_HINT = "Try `setpci --help' for more information."
_CONFIG_BYTES = 0x1000


class _Malformed(ValueError):
    """A command line that setpci cannot parse; it then changes nothing."""


@frozen
class _Access:
    """One access to one register."""

    capability: tuple[bool, int] | None  # extended, id
    offset: int
    width: int
    values: tuple[tuple[int, int], ...]  # value and mask


def _setpci(call: Invocation) -> CommandResult:
    try:
        groups = _parse(call.args)
    except _Malformed as error:
        return failed(f"setpci: {error}.", _HELP_HINT)
    lines: list[str] = []
    for number, (bdf, accesses) in enumerate(groups, 1):
        if f"{DEVICES}/{bdf}" not in call.tree.links:
            # The exit status stays 0, like that of the real setpci.
            lines.append(f"setpci: Warning: No devices selected for operation group {number}.")
            continue
        for access in accesses:
            result = _access(call.tree, bdf, access)
            if result.exit_status:
                return failed(*lines, *result.lines)
            lines += result.lines
    return done(*lines)


def _parse(words: tuple[str, ...]) -> list[tuple[str, list[_Access]]]:
    groups: list[tuple[str, list[_Access]]] = []
    left = list(words)
    while left:
        word = left.pop(0)
        if word.startswith("-s"):
            slot = word[2:].removeprefix("=") or (left.pop(0) if left else "")
            if not slot:
                raise _Malformed("Option -s requires an argument")
            match = _SLOT.fullmatch(slot)
            if match is None:
                raise _Malformed(f"Unable to parse filter -s {slot}")
            domain, bus, device, function = (int(part or "0", 16) for part in match.groups())
            groups.append((f"{domain:04x}:{bus:02x}:{device:02x}.{function}", []))
        elif word.startswith("-"):
            raise _Malformed(f"Invalid option -{word[1:2]}")
        elif not groups:
            raise _Malformed("Filter specification expected")
        else:
            groups[-1][1].append(_register(word))
    if not groups:
        raise _Malformed("No operation specified")
    return groups


def _register(word: str) -> _Access:
    match = _REGISTER.fullmatch(word)
    if match is None:
        raise _Malformed(f'Unknown register "{word}"')
    base, width, capability, offset = match["base"].upper(), 0, None, 0
    family, _, short = base.partition("_")
    if family == "CAP" and short in _CAPABILITIES:
        capability = False, _CAPABILITIES[short]
    elif family == "ECAP" and short in _EXTENDED:
        capability = True, _EXTENDED[short]
    elif (by_number := _BY_NUMBER.fullmatch(base)) is not None:
        capability = bool(by_number[1]), int(by_number[2], 16)
    elif base in _REGISTERS:
        offset, width = _REGISTERS[base]
    elif re.fullmatch(r"[0-9A-F]{1,4}", base):
        offset = int(base, 16)
    else:
        raise _Malformed(f'Unknown register "{match["base"]}"')
    if match["width"] is not None:
        if match["width"].lower() not in _WIDTHS:
            raise _Malformed(f'Invalid width "{match["width"]}"')
        width = _WIDTHS[match["width"].lower()]
    if not width:
        raise _Malformed("Missing width")
    if match["offset"] is not None:
        offset += int(match["offset"][:8], 16)
    if offset >= _CONFIG_BYTES:
        raise _Malformed(f"Register number {offset:02x} out of range")
    if offset % width:
        raise _Malformed(f"Unaligned register address {offset:02x}")
    return _Access(capability, offset, width, _values(match["values"], width))


def _values(text: str | None, width: int) -> tuple[tuple[int, int], ...]:
    if text is None:
        return ()
    if not text:
        raise _Malformed("Missing value")
    most = (1 << 8 * width) - 1
    values = []
    for value_text in text.split(","):
        match = _VALUE.fullmatch(value_text)
        if match is None:
            raise _Malformed(f'Invalid value "{value_text}"')
        value, mask = int(match[1], 16), most if match[2] is None else int(match[2], 16)
        if value > most:
            raise _Malformed(f'Value "{match[1]}" is out of range')
        if mask > most:
            raise _Malformed(f'Mask "{match[2]}" is out of range')
        values.append((value & mask, mask))
    return tuple(values)


def _access(tree: Tree, bdf: str, access: _Access) -> CommandResult:
    path = f"{real_path(tree, bdf)}/config"
    old_content = tree.files.get(path)
    content = bytearray(old_content if isinstance(old_content, bytes) else b"")
    offset = access.offset
    if access.capability is not None:
        extended, number = access.capability
        start = _find(content, extended, number)
        if start is None:
            sort = "Extended capability" if extended else "Capability"
            error = f"Instance #0 of {sort} {number:04x} not found - there are no capabilities with that id."
            return failed(f"setpci: {bdf}: {error}")
        offset += start
    if not access.values:
        value = int.from_bytes(content[offset : offset + access.width], "little")
        return done(f"{value:0{2 * access.width}x}")
    lockdown = tree.text("/sys/kernel/security/lockdown") or "[none]"
    if "[none]" not in lockdown or offset + access.width * len(access.values) > len(content):
        return done("pcilib: sysfs_write: write failed: Operation not permitted")
    for value, mask in access.values:
        place = slice(offset, offset + access.width)
        old = int.from_bytes(content[place], "little")
        content[place] = (old & ~mask | value).to_bytes(access.width, "little")
        offset += access.width
    tree.files[path] = bytes(content)
    return done()


def _find(content: bytes | bytearray, extended: bool, number: int) -> int | None:
    """Return the offset of a capability; None if there is none or the function does not answer."""
    at = 0x100 if extended else content[0x34] if len(content) > 0x34 else 0
    seen: set[int] = set()
    while at and at not in seen and at + 4 <= len(content):
        seen.add(at)
        header = int.from_bytes(content[at : at + 4], "little")
        if header in (0, 0xFFFFFFFF):
            break
        if header & (0xFFFF if extended else 0xFF) == number:
            return at
        at = header >> 20 if extended else header >> 8 & 0xFF
    return None


COMMANDS = {"setpci": _setpci}
