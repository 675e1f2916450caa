"""RoCE on each netdev: priorities of packets, and the IPv4 networks that netdevs share.

`dcb` of iproute2 (dcb-pfc(8), dcb-app(8)) or, where it is missing, OFED's `mlnx_qos`. mlx5 trusts DSCP while
it has DSCP entries in the APP table (mlx5/core/en_dcbnl.c, mlx5e_dcbnl_ieee_setapp).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from probes.base.frozen import frozen
from probes.base.grouping import grouped
from probes.base.text import parse_json, printable
from probes.base.unknown import Maybe, Reason, Unknown, known, map_known, parse_known
from probes.facts.network.routes import InterfaceFacts
from probes.facts.rdma.devices import RdmaFacts, RdmaPort
from probes.host.protocol import CommandOutput, Host
from probes.host.values import read_integer

T = TypeVar("T")
CM_CLASSES = "/sys/kernel/config/rdma_cm"
_PRIORITIES, _DSCPS = 8, 64
_MOST_NETDEVS = 32
# mlnx_qos is a Python program and takes a fifth of a second.
_MOST_SLOW = 4
MLX5 = "mlx5_core"
_NO_PFC = Unknown(Reason.NOT_THERE, "PFC", "no priority has PFC, so the mapping was not read")
_TRUST = re.compile(r"Priority trust state: (pcp|dscp|both)\b")
_OF_PRIORITY = re.compile(r"\s*prio:([0-7]) dscp:((?:\d{1,2},?){1,64})")
_PFC_ROW = re.compile(r"\s*enabled((?:\s+[01]){8})\s*")


@frozen
class NetdevQos:
    """How one netdev chooses a packet's priority, and which priorities are lossless."""

    pfc: Maybe[tuple[int, ...]]  # priorities with PFC
    trusts_dscp: Maybe[bool]  # False: the PCP of VLAN tags, which is the service level
    priorities: Maybe[Mapping[int, int]]  # DSCP -> priority; of 0 to 63
    sources: tuple[str, ...]  # commands: of the PFC, and of the rest


@frozen
class QosFacts:
    """By netdev; the ports of a bond each. And the class of RDMA CM's connections by (device, port)."""

    netdevs: Mapping[str, NetdevQos]
    cm_classes: Mapping[tuple[str, int], int]


def netdevs_of(port: RdmaPort) -> tuple[str, ...]:
    """Return the netdevs with the queues of a port: those of a bond's ports, or its own."""
    if port.bond is not None:
        return tuple(member.netdev for member in port.bond.members)
    return () if isinstance(port.netdev, Unknown) else (port.netdev,)


def probe(host: Host, rdma: RdmaFacts) -> QosFacts:
    """Ask about each netdev of an active RoCE port of mlx5; the mapping only where a priority has PFC."""
    ports = [
        (device, port)
        for device in rdma.devices
        for port in device.ports
        if port.link_layer == "Ethernet" and port.is_active and device.driver == MLX5
    ]
    names = dict.fromkeys(name for _, port in ports for name in netdevs_of(port))
    netdevs: dict[str, NetdevQos] = {}
    without_dcb = False
    for name in list(names)[:_MOST_NETDEVS]:
        answer = None if without_dcb else _from_dcb(host, name)
        if answer is None:
            without_dcb = True
            if len(netdevs) >= _MOST_SLOW:
                break
            answer = _from_mlnx_qos(host, name)
        netdevs[name] = answer
    classes = ((device.name, port.number) for device, port in ports)
    return QosFacts(netdevs, dict(_cm_classes(host, classes)))


def _cm_classes(host: Host, ports: Iterator[tuple[str, int]]) -> Iterator[tuple[tuple[str, int], int]]:
    """Yield default_roce_tos where it is configured (Documentation/ABI/testing/configfs-rdma_cm)."""
    configured = host.names(CM_CLASSES)
    for device, number in ports:
        if isinstance(configured, Unknown) or device not in configured:
            continue
        value = read_integer(host, f"{CM_CLASSES}/{device}/ports/{number}/default_roce_tos")
        if not isinstance(value, Unknown):
            yield (device, number), value


def _from_dcb(host: Host, netdev: str) -> NetdevQos | None:
    """Return what dcb shows; None: it is not installed."""
    argv = ("dcb", "-j", "pfc", "show", "dev", netdev)
    answer = host.run(argv)
    if isinstance(answer, Unknown) and answer.reason is Reason.NOT_THERE:
        return None
    pfc = _parsed(answer, argv, parse_pfc)
    if isinstance(pfc, Unknown):
        return NetdevQos(pfc, pfc, pfc, (" ".join(argv),))
    if not pfc:
        return NetdevQos(pfc, _NO_PFC, _NO_PFC, (" ".join(argv),))
    mapping = ("dcb", "-j", "-N", "app", "show", "dev", netdev)
    priorities = _parsed(host.run(mapping), mapping, parse_dscp_priorities)
    trusts = priorities if isinstance(priorities, Unknown) else bool(priorities)
    return NetdevQos(pfc, trusts, priorities, (" ".join(argv), " ".join(mapping)))


def _from_mlnx_qos(host: Host, netdev: str) -> NetdevQos:
    argv = ("mlnx_qos", "-i", netdev)
    found = _parsed(host.run(argv), argv, parse_mlnx_qos)
    if isinstance(found, Unknown):
        return NetdevQos(found, found, found, (" ".join(argv),))
    return replace(found, sources=(" ".join(argv),))


def _parsed(
    answer: Maybe[CommandOutput],
    argv: Sequence[str],
    parse: Callable[[str], T | None],
    otherwise: str = "unexpected output",
) -> Maybe[T]:
    if isinstance(answer, Unknown):
        return answer
    if answer.exit_status:
        detail = printable(answer.stderr.strip(), 80) or f"exit status {answer.exit_status}"
        return Unknown(Reason.IO_ERROR, " ".join(argv), detail)
    return parse_known(answer.stdout, parse, " ".join(argv), detail=otherwise)


def parse_pfc(text: str) -> tuple[int, ...] | None:
    """Parse `dcb -j pfc show`: the priorities with PFC; None: it is something else."""
    table = _table(text)
    enabled = None if table is None else table.get("prio_pfc")
    if not isinstance(enabled, list) or len(enabled) != _PRIORITIES:
        return None
    return tuple(number for number, is_on in enumerate(enabled) if is_on in (True, "on"))


def parse_dscp_priorities(text: str) -> dict[int, int] | None:
    """Parse `dcb -j -N app show`: DSCP -> priority, {} without DSCP entries; None: it is something else."""
    table = _table(text.strip() or "{}")
    if table is None:
        return None
    entries = table.get("dscp_prio", [])
    found: dict[int, int] = {}
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, list) and len(entry) == 2 and all(type(number) is int for number in entry):
            dscp, priority = entry
            if 0 <= dscp < _DSCPS and 0 <= priority < _PRIORITIES:
                found[dscp] = priority
    return found


def _table(text: str) -> dict[str, object] | None:
    parsed = parse_json(text)
    return parsed if isinstance(parsed, dict) else None


def parse_mlnx_qos(text: str) -> NetdevQos | None:
    """Parse `mlnx_qos -i NETDEV`; None: it is something else."""
    trust, enabled = _TRUST.search(text), None
    priorities: dict[int, int] = {}
    for line in text.splitlines():
        if row := _OF_PRIORITY.match(line):
            listed = (int(number) for number in row[2].split(",") if number)
            priorities.update((dscp, int(row[1])) for dscp in listed if dscp < _DSCPS)
        elif enabled is None and (row := _PFC_ROW.fullmatch(line)):
            enabled = row[1].split()
    if trust is None or enabled is None:
        return None
    pfc = tuple(number for number, word in enumerate(enabled) if word == "1")
    return NetdevQos(pfc, trust[1] != "pcp", priorities, ())


# The IPv4 networks of RoCE netdevs, and how the kernel answers ARP and filters packets there.
#
# Documentation/networking/ip-sysctl.rst: of rp_filter, arp_ignore, arp_announce and arp_filter the larger
# value of conf/all and conf/NETDEV counts. ip-rule(8), ip-route(8): policy routing by source address.

CONF = "/proc/sys/net/ipv4/conf"
RULES = ("ip", "-4", "-j", "rule", "show")
ROUTES = ("ip", "-4", "-j", "route", "show", "table", "all")
_NOT_ASKED = Unknown(Reason.NOT_THERE, " ".join(RULES), "not queried: no two RoCE netdevs share a network")
_MOST_ENTRIES = 4096
_EVERYONE = ("all", "0.0.0.0/0")
_SETTINGS = ("rp_filter", "arp_ignore", "arp_announce", "arp_filter")


@frozen
class RailNetdev:
    """A RoCE netdev with an IPv4 network; the settings are those in effect."""

    name: str
    networks: tuple[str, ...]  # "10.30.0.0/16"
    rp_filter: Maybe[int]  # 0 off, 1 strict, 2 loose
    arp_ignore: Maybe[int]  # 0: the kernel answers for every address of this host
    arp_announce: Maybe[int]
    arp_filter: Maybe[int]  # 1: answers only where it would send to the asker


@frozen
class RailNetworkFacts:
    """RoCE netdevs, and which of them policy routing sends their own addresses over."""

    netdevs: tuple[RailNetdev, ...]
    routed_by_source: Maybe[frozenset[str]] = _NOT_ASKED

    @property
    def shared(self) -> dict[str, tuple[RailNetdev, ...]]:
        """The networks that two or more netdevs are in."""
        found = grouped(
            (network, netdev) for netdev in self.netdevs for network in dict.fromkeys(netdev.networks)
        )
        return {network: tuple(netdevs) for network, netdevs in found.items() if len(netdevs) > 1}


def probe_rails(host: Host, rdma: RdmaFacts, interfaces: Maybe[InterfaceFacts]) -> Maybe[RailNetworkFacts]:
    """Read the settings of each RoCE netdev; the rules and routes only where netdevs share a network."""
    if isinstance(interfaces, Unknown):
        return interfaces
    networks = {interface.name: interface.networks for interface in interfaces.interfaces}
    names = dict.fromkeys(name for name in _roce_netdevs(rdma) if name in networks)
    settings = {name: tuple(_in_effect(host, name, key) for key in _SETTINGS) for name in names}
    facts = RailNetworkFacts(tuple(RailNetdev(name, networks[name], *settings[name]) for name in names))
    if not facts.shared:
        return facts
    return RailNetworkFacts(facts.netdevs, _routed_by_source(host))


def _roce_netdevs(rdma: RdmaFacts) -> Iterator[str]:
    """Yield the netdevs of RoCE ports, with the VLANs on them that have GIDs."""
    for device in rdma.devices:
        for port in device.ports:
            if port.link_layer == "Ethernet":
                netdevs = (port.netdev, *(gid.netdev for gid in known(port.gids, ())))
                yield from (netdev for netdev in netdevs if not isinstance(netdev, Unknown))


def _in_effect(host: Host, name: str, key: str) -> Maybe[int]:
    of_all, own = (read_integer(host, f"{CONF}/{part}/{key}") for part in ("all", name))
    return map_known(of_all, lambda general: map_known(own, lambda special: max(general, special)))


def _routed_by_source(host: Host) -> Maybe[frozenset[str]]:
    tables = _parsed(host.run(RULES), RULES, parse_source_tables, "not a JSON list")
    over = _parsed(host.run(ROUTES), ROUTES, parse_table_netdevs, "not a JSON list")
    if isinstance(tables, Unknown):
        return tables
    if isinstance(over, Unknown):
        return over
    return frozenset(netdev for table in tables for netdev in over.get(table, ()))


def parse_source_tables(text: str) -> frozenset[str] | None:
    """Parse `ip -j rule show`: the tables of rules "from ADDRESS"; None: it is no JSON list."""
    entries = _entries(text)
    if entries is None:
        return None
    return frozenset(
        str(entry["table"])[:64]
        for entry in entries
        if entry.get("table") and entry.get("src", "all") not in _EVERYONE
    )


def parse_table_netdevs(text: str) -> dict[str, frozenset[str]] | None:
    """Parse `ip -j route show table all`: the netdevs of each table; None: it is no JSON list."""
    entries = _entries(text)
    if entries is None:
        return None
    found: dict[str, set[str]] = {}
    for entry in entries:
        if entry.get("dev"):
            netdev = printable(str(entry["dev"]), 32)
            found.setdefault(str(entry.get("table", "main"))[:64], set()).add(netdev)
    return {table: frozenset(netdevs) for table, netdevs in found.items()}


def _entries(text: str) -> list[dict[str, object]] | None:
    parsed = parse_json(text or "[]")
    if not isinstance(parsed, list):
        return None
    return [entry for entry in parsed[:_MOST_ENTRIES] if isinstance(entry, dict)]
