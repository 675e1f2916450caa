"""Commands for PCI functions and ports: setpci (pciutils), ip link set, ibportstate, perfquery, sminfo."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from probes.base.frozen import frozen
from probes.base.unknown import Unknown
from probes.facts.pci import config_space
from probes.facts.pci.functions import DEVICES
from probes.facts.rdma.port_health import ERROR_COUNTER_BITS
from probes.simulation.commands.command_result import (
    CommandResult,
    Handler,
    Invocation,
    done,
    failed,
    split_options,
    unsupported,
)
from probes.simulation.node.devices.pci import real_path
from probes.simulation.node.devices.ports import port_of
from probes.simulation.node.model.tree import Content, PlacedNic, Tree

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
    before = tree.files.get(path)
    before = before if isinstance(before, bytes) else b""
    content, offset = bytearray(before), access.offset
    if access.capability is not None:
        extended, number = access.capability
        list_them = config_space.extended_capabilities if extended else config_space.capabilities
        start = list_them(before).get(number)
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


# Ports

_UP = 0x1  # IFF_UP
_SMALLEST_MTU, _LARGEST_MTU, _LARGEST_IB_MTU = 68, 9978, 4092
_DOWN, _INIT, _ACTIVE = "1: DOWN", "2: INIT", "4: ACTIVE"
_DISABLED, _LINK_UP = "3: Disabled", "5: LinkUp"
_PATH = "# Port info: DR path slid 65535; dlid 65535; 0 port 1"
_IB_ERROR = 255  # exit status of the infiniband-diags programs


def _ip(call: Invocation) -> CommandResult:
    """`ip link set [dev] NETDEV [up|down] [mtu N]`."""
    words = list(call.args)
    if words[:2] not in (["link", "set"], ["l", "set"], ["link", "s"]):
        return unsupported(call)
    words = words[2:]
    if words[:1] == ["dev"]:
        words = words[1:]
    if not words:
        return failed('Not enough information: "dev" argument is required.', exit_status=255)
    netdev, *changes = words
    path = call.tree.real(f"/sys/class/net/{netdev}")
    if "/" in netdev or isinstance(path, Unknown):
        return failed(f'Cannot find device "{netdev}"')
    wanted: dict[str, str] = {}
    while changes:
        word = changes.pop(0)
        if word in ("up", "down"):
            wanted["state"] = word
        elif word == "mtu" and changes:
            wanted["mtu"] = changes.pop(0)
        elif word == "mtu":
            return failed('Command line is not complete. Try option "help"', exit_status=255)
        else:
            return failed(f'Error: either "dev" is duplicate, or "{word}" is a garbage.', exit_status=255)
    nic = next((nic for nic in call.tree.nics if path.startswith(f"{nic.path}/")), None)
    if "mtu" in wanted and (refusal := _set_mtu(call.tree, path, nic, wanted["mtu"])) is not None:
        return refusal
    if "state" in wanted:
        _set_state(call.tree, path, nic, wanted["state"] == "up")
    return done()


def _set_mtu(tree: Tree, path: str, nic: PlacedNic | None, text: str) -> CommandResult | None:
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        return failed(f'Error: argument "{text}" is wrong: Invalid "mtu" value', exit_status=255)
    largest = _LARGEST_IB_MTU if nic is not None and nic.kind.layer == "InfiniBand" else _LARGEST_MTU
    if int(text) > largest:
        return failed("Error: mtu greater than device maximum.", exit_status=2)
    if int(text) < _SMALLEST_MTU:
        return failed("Error: mtu less than device minimum.", exit_status=2)
    tree.add(f"{path}/mtu", f"{int(text)}\n")
    return None


def _set_state(tree: Tree, path: str, nic: PlacedNic | None, up: bool) -> None:
    """Bring the netdev up or down; a RoCE port is Disabled while its netdev is down (mlx5, main.c)."""
    try:
        flags = int(tree.text(f"{path}/flags").strip() or "0", 16)
    except ValueError:
        flags = 0
    if bool(flags & _UP) == up:
        return
    tree.add(f"{path}/flags", f"{flags | _UP if up else flags & ~_UP:#x}\n")
    tree.add(f"{path}/operstate", "up\n" if up else "down\n")
    if nic is None or nic.kind.layer != "Ethernet" or not tree.is_there(port_of(nic)):
        return
    if not up:
        _set_port(tree, nic, _DOWN, _DISABLED)
    elif tree.text(f"{port_of(nic)}/phys_state").strip() == _DISABLED:
        _set_port(tree, nic, _ACTIVE, _LINK_UP)


def _set_port(tree: Tree, nic: PlacedNic, state: str, phys_state: str) -> None:
    tree.add_values(port_of(nic), {"state": state, "phys_state": phys_state})


def _on_infiniband_port(
    run: Callable[[Invocation, PlacedNic, Collection[str], list[str]], CommandResult],
) -> Handler:
    """Return a command that runs with the port named by -C and -P, the options and the other words."""

    def handle(call: Invocation) -> CommandResult:
        options, words = split_options(call.args, valued="CPtL")
        name, port = options.get("-C", ""), options.get("-P", "1")
        tree = call.tree
        nics = (nic for nic in tree.nics if nic.name == name or (not name and nic.kind.layer == "InfiniBand"))
        nic = next(nics, None)
        if nic is None or port != "1":
            problem = f"can't open UMAD port ({name or '(null)'}:{port})"
        elif tree.text(f"{port_of(nic)}/link_layer").strip() == "InfiniBand":
            return run(call, nic, options, words)
        else:
            problem = "client_register for mgmt 1 failed"  # Ethernet ports have no QP0 (core/mad.c)
        return failed(
            f"ibwarn: [4711] mad_rpc_open_port: {problem}",
            f"{call.name}: iberror: failed: Failed to open '{name or '(null)'}' port '{port}'",
            exit_status=_IB_ERROR,
        )

    return handle


@_on_infiniband_port
def _ibportstate(
    call: Invocation, nic: PlacedNic, options: Collection[str], words: list[str]
) -> CommandResult:
    tree = call.tree
    if "-D" not in options or len(words) not in (2, 3) or words[:2] != ["0", "1"]:
        return unsupported(call)
    before = _port_lines(tree, nic)
    verb = words[2] if len(words) == 3 else "query"
    if verb == "query":
        return done("CA/RT PortInfo:", *before)
    if verb not in ("enable", "disable"):
        return unsupported(f"{call.name} {verb}")
    if verb == "disable":
        _set_port(tree, nic, _DOWN, _DISABLED)
    elif tree.text(f"{port_of(nic)}/phys_state").strip() == _DISABLED:
        has_manager = tree.text(f"{port_of(nic)}/sm_lid").strip() not in ("", "0x0")
        _set_port(tree, nic, _ACTIVE if has_manager else _INIT, _LINK_UP)
    after = _port_lines(tree, nic)
    return done("Initial CA/RT PortInfo:", *before, "", "After PortInfo set:", *after, seconds=3.0)


def _port_lines(tree: Tree, nic: PlacedNic) -> tuple[str, ...]:
    state, phys_state = (
        tree.text(f"{port_of(nic)}/{file}").strip().partition(": ")[2] for file in ("state", "phys_state")
    )
    return (_PATH, f"{'LinkState:':.<33}{state.capitalize()}", f"{'PhysLinkState:':.<33}{phys_state}")


@_on_infiniband_port
def _perfquery(call: Invocation, nic: PlacedNic, options: Collection[str], words: list[str]) -> CommandResult:
    """`perfquery -R [LID PORT MASK]`: reset error counters; without -R it is not supported."""
    itself = [str(int(call.tree.text(f"{port_of(nic)}/lid").strip() or "0", 16)), "1", "0xfff"]
    if {"-R", "--Reset_only"}.isdisjoint(options) or words not in ([], itself):
        return unsupported(call)
    for name in ERROR_COUNTER_BITS:
        path = f"{port_of(nic)}/counters/{name}"
        if path in call.tree.files:
            call.tree.add(path, _reset_counter(call.tree.files[path], call.seconds))
    return done()


def _reset_counter(content: Content, now: float) -> Content:
    """Reset a counter to zero; it keeps counting from there."""
    if not callable(content):
        return "0\n"
    counted, before = content, _number(content(now))
    return lambda seconds: f"{max(0, _number(counted(seconds)) - before)}\n"


def _number(text: str) -> int:
    word = text.strip()
    return int(word) if word.isdecimal() else 0


@_on_infiniband_port
def _sminfo(call: Invocation, nic: PlacedNic, options: Collection[str], words: list[str]) -> CommandResult:
    lid = call.tree.text(f"{port_of(nic)}/sm_lid").strip()
    if lid in ("", "0x0"):
        return failed(
            "ibwarn: [4711] mad_rpc: _do_madrpc failed; dport (Lid 0)",
            "sminfo: iberror: failed: query",
            exit_status=_IB_ERROR,
            seconds=3.0,
        )
    count = 1000 + round(call.seconds)
    manager = f"sm lid {int(lid, 16)} sm guid 0x51a01a7e0000ffff, activity count {count} priority 15"
    return done(f"sminfo: {manager} state 3 SMINFO_MASTER")


COMMANDS = {
    "setpci": _setpci,
    "ip": _ip,
    "ibportstate": _ibportstate,
    "perfquery": _perfquery,
    "sminfo": _sminfo,
}
