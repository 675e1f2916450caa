"""The error counters of the switch ports at the other end of a node's InfiniBand cables.

A NIC counts what it receives; what arrives damaged at the switch, only the switch counts. Three queries
of infiniband-diags a port, which change nothing: `smpquery nodeinfo` and `portinfo` by a directed route
through the port (0,PORT), and `perfquery LID PORT` without -r and -R.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.rdma.devices import RdmaFacts, RdmaPort
from probes.host.protocol import Host

T = TypeVar("T")
_SECONDS, _MOST_SECONDS = 5.0, 60.0  # of a query, and after which no other port is asked
_MOST_PORTS = 64
_FIELD = re.compile(r"^([A-Za-z0-9]{1,40}):\.{1,60}([^\n.][^\n]{0,60})$", re.MULTILINE)
_LID = re.compile(r"[1-9][0-9]{0,4}", re.ASCII)
_TICKS = "PortXmitWait"
# libibmad/fields.c, PortCounters: those of errors, and the ticks without credits.
ERRORS = (
    *("SymbolErrorCounter", "LinkErrorRecoveryCounter", "LinkDownedCounter", "PortRcvErrors"),
    *("PortRcvRemotePhysicalErrors", "PortRcvSwitchRelayErrors", "PortXmitDiscards"),
    *("PortXmitConstraintErrors", "PortRcvConstraintErrors", "LocalLinkIntegrityErrors"),
    *("ExcessiveBufferOverrunErrors", "VL15Dropped", _TICKS),
)
_ETHERNET = "only InfiniBand switches answer; read this port's counters on the switch"
# libibmad/rpc.c: mad_rpc_open_port, mad_rpc
_NOT_OPENED, _NO_ANSWER = "can't open UMAD port", "_do_madrpc failed"


@frozen
class SwitchPort:
    """A port of a switch, and its counters since they were reset; most stop at their maximum."""

    guid: str  # of the switch: "0xfc6a1c0300a1b2c0"
    number: int
    counters: Mapping[str, int]  # of ERRORS those that it has

    @property
    def errors(self) -> Mapping[str, int]:
        """The counters that are not 0."""
        return {name: count for name, count in self.counters.items() if count}

    @property
    def has_errors(self) -> bool:
        """Whether a counter of errors is not 0; ticks without credits are congestion."""
        return bool(self.errors.keys() - {_TICKS})


def read_switch_ports(host: Host, rdma: RdmaFacts) -> dict[tuple[str, int], Maybe[SwitchPort]]:
    """Ask for the switch port of each port of the node, and what it has counted."""
    ports = ((device.name, port) for device in rdma.devices for port in device.ports)
    return ask_ports(host, ports, lambda device, port: _ask(host, device, port))


def ask_ports(
    host: Host, ports: Iterable[tuple[str, RdmaPort]], ask: Callable[[str, RdmaPort], Maybe[T]]
) -> dict[tuple[str, int], Maybe[T]]:
    """Ask about each port that is up; after a query without an answer, about no other."""
    found: dict[tuple[str, int], Maybe[T]] = {}
    silent: Unknown | None = None
    until = host.monotonic() + _MOST_SECONDS
    for number, (device, port) in enumerate(ports):
        if silent is None and number >= _MOST_PORTS:
            silent = Unknown(Reason.NOT_THERE, device, f"not asked: only the first {_MOST_PORTS} ports are")
        elif silent is None and host.monotonic() > until:
            why = f"not asked: the ports before took {_MOST_SECONDS:g} s"
            silent = Unknown(Reason.TIMED_OUT, device, why)
        if silent is not None:
            answer: Maybe[T] = silent
        elif port.link_layer == "InfiniBand" and port.is_down:
            answer = Unknown(Reason.NOT_THERE, device, f"the port is {port.state}")
        else:
            answer = ask(device, port)
        if silent is None and isinstance(answer, Unknown) and answer.reason is Reason.TIMED_OUT:
            silent = Unknown(Reason.TIMED_OUT, answer.source, "not asked: the query before had no answer")
        found[device, port.number] = answer
    return found


def node_info(host: Host, device: str, port: int) -> Maybe[dict[str, str]]:
    """Return what a switch at the other end of a cable says of itself; NOT_THERE: it is no switch."""
    argv = ("smpquery", "-C", device, "-P", str(port), "-D", "nodeinfo", f"0,{port}")
    found = query(host, argv)
    kind = "" if isinstance(found, Unknown) else found.get("NodeType", "")
    if isinstance(found, Unknown) or kind == "Switch":
        return found
    what = f"the cable leads to a {kind}" if kind else "its output has no node type"
    return Unknown(Reason.NOT_THERE if kind else Reason.MALFORMED, "smpquery", what)


def _ask(host: Host, device: str, port: RdmaPort) -> Maybe[SwitchPort]:
    if port.link_layer != "InfiniBand":
        layer = port.link_layer
        return layer if isinstance(layer, Unknown) else Unknown(Reason.NOT_THERE, device, _ETHERNET)
    here = ("-C", device, "-P", str(port.number))
    route = f"0,{port.number}"
    node = node_info(host, device, port.number)
    if isinstance(node, Unknown):
        return node
    guid, number = node.get("Guid", ""), node.get("LocalPort", "")
    management = query(host, ("smpquery", *here, "-D", "portinfo", route, "0"))
    if isinstance(management, Unknown):
        return management
    lid = management.get("Lid", "")
    if not (_LID.fullmatch(lid) and _LID.fullmatch(number)):
        return Unknown(Reason.MALFORMED, "smpquery", "its output has no LID or port of the switch")
    counted = query(host, ("perfquery", *here, lid, number))
    if isinstance(counted, Unknown):
        return counted
    counters = {name: int(counted[name]) for name in ERRORS if counted.get(name, "").isdecimal()}
    if not counters:
        return Unknown(Reason.MALFORMED, "perfquery", "its output has no error counter")
    return SwitchPort(guid, int(number), counters)


def query(host: Host, argv: tuple[str, ...]) -> Maybe[dict[str, str]]:
    """Run a query of infiniband-diags; return its fields, `Name:....value`."""
    output = host.run(argv, _SECONDS)
    if isinstance(output, Unknown):
        missing = f"{argv[0]} (infiniband-diags) is not installed"
        return replace(output, detail=missing) if output.detail == "not installed" else output
    if output.exit_status != 0:
        return query_failure(host, argv[0], output.stderr or output.stdout)
    return {match[1]: printable(match[2], 60).strip() for match in _FIELD.finditer(output.stdout)}


def query_failure(host: Host, command: str, message: str) -> Unknown:
    """Return why a query has failed; the programs open /dev/infiniband/umadN, which only root may.

    They print neither that the permission is missing nor, in newer releases, that no answer came.
    """
    lines = message.strip().splitlines()
    text = printable(lines[0], 120) if lines else "it failed without a message"
    is_denied = any(word in message.lower() for word in ("permission denied", "not permitted"))
    if is_denied or (_NOT_OPENED in message and not host.is_root()):
        return Unknown(Reason.NEEDS_ROOT, command, text)
    if _NOT_OPENED in message:
        return Unknown(Reason.DRIVER_ERROR, command, f"{text}; is ib_umad loaded?")
    if _NO_ANSWER in message and "send failed" not in message:
        return Unknown(Reason.TIMED_OUT, command, "no answer came from the other end of the cable")
    return Unknown(Reason.DRIVER_ERROR, command, text)
