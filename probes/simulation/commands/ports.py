"""Commands for ports: ip link set, ibportstate, perfquery -R, sminfo."""

from __future__ import annotations

from probes.base.unknown import Unknown
from probes.facts.rdma.port_health import ERROR_COUNTER_BITS
from probes.simulation.commands.command_result import (
    CommandResult,
    Invocation,
    done,
    failed,
    split_options,
    unsupported,
)
from probes.simulation.node.devices.ports import port_of
from probes.simulation.node.model.tree import Content, PlacedNic, Tree

_UP = 0x1  # IFF_UP
_SMALLEST_MTU, _LARGEST_MTU, _LARGEST_IB_MTU = 68, 9978, 4092
_DOWN, _INIT, _ACTIVE = "1: DOWN", "2: INIT", "4: ACTIVE"
_DISABLED, _LINK_UP = "3: Disabled", "5: LinkUp"
_PATH = "# Port info: DR path slid 65535; dlid 65535; 0 port 1"
_Port = tuple[PlacedNic, dict[str, str], list[str]]
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


def _infiniband_port(call: Invocation) -> _Port | CommandResult:
    """Return the port named by -C and -P, the options and the other words; or the error of the program."""
    options, words = split_options(call.args, valued="CPtL")
    name, port = options.get("-C", ""), options.get("-P", "1")
    tree = call.tree
    chosen = (nic for nic in tree.nics if nic.name == name or (not name and nic.kind.layer == "InfiniBand"))
    nic = next(chosen, None)
    problem = ""
    if nic is None or port != "1":
        problem = f"can't open UMAD port ({name or '(null)'}:{port})"
    elif tree.text(f"{port_of(nic)}/link_layer").strip() != "InfiniBand":
        problem = "client_register for mgmt 1 failed"  # Ethernet ports have no QP0 (core/mad.c)
    if nic is None or problem:
        return failed(
            f"ibwarn: [4711] mad_rpc_open_port: {problem}",
            f"{call.name}: iberror: failed: Failed to open '{name or '(null)'}' port '{port}'",
            exit_status=_IB_ERROR,
        )
    return nic, options, words


def _ibportstate(call: Invocation) -> CommandResult:
    found = _infiniband_port(call)
    if isinstance(found, CommandResult):
        return found
    nic, options, words = found
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


def _perfquery(call: Invocation) -> CommandResult:
    """`perfquery -R [LID PORT MASK]`: reset error counters; without -R it is not supported."""
    found = _infiniband_port(call)
    if isinstance(found, CommandResult):
        return found
    nic, options, words = found
    itself = (str(int(call.tree.text(f"{port_of(nic)}/lid").strip() or "0", 16)), "1", "0xfff")
    if not options.keys() & {"-R", "--Reset_only"} or tuple(words) not in ((), itself):
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


def _sminfo(call: Invocation) -> CommandResult:
    found = _infiniband_port(call)
    if isinstance(found, CommandResult):
        return found
    lid = call.tree.text(f"{port_of(found[0])}/sm_lid").strip()
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


COMMANDS = {"ip": _ip, "ibportstate": _ibportstate, "perfquery": _perfquery, "sminfo": _sminfo}
