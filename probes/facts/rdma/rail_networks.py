"""The IPv4 networks of RoCE netdevs, and how the kernel answers ARP and filters packets there.

Documentation/networking/ip-sysctl.rst: of rp_filter, arp_ignore, arp_announce and arp_filter the larger
value of conf/all and conf/NETDEV counts. ip-rule(8), ip-route(8): policy routing by source address.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.network.routes import InterfaceFacts
from probes.facts.rdma.devices import RdmaFacts
from probes.host.protocol import Host
from probes.host.values import read_integer

CONF = "/proc/sys/net/ipv4/conf"
RULES = ("ip", "-4", "-j", "rule", "show")
ROUTES = ("ip", "-4", "-j", "route", "show", "table", "all")
_NOT_ASKED = Unknown(Reason.NOT_THERE, " ".join(RULES), "not queried: no two RoCE netdevs share a network")
_MOST_ENTRIES = 4096
_EVERYONE = ("all", "0.0.0.0/0")


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
        found: dict[str, list[RailNetdev]] = {}
        for netdev in self.netdevs:
            for network in dict.fromkeys(netdev.networks):
                found.setdefault(network, []).append(netdev)
        return {network: tuple(netdevs) for network, netdevs in found.items() if len(netdevs) > 1}


def probe(host: Host, rdma: RdmaFacts, interfaces: Maybe[InterfaceFacts]) -> Maybe[RailNetworkFacts]:
    """Read the settings of each RoCE netdev; the rules and routes only where netdevs share a network."""
    if isinstance(interfaces, Unknown):
        return interfaces
    networks = {interface.name: interface.networks for interface in interfaces.interfaces}
    names = dict.fromkeys(name for name in _roce_netdevs(rdma) if name in networks)
    facts = RailNetworkFacts(tuple(_netdev(host, name, networks[name]) for name in names))
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


def _netdev(host: Host, name: str, networks: tuple[str, ...]) -> RailNetdev:
    keys = ("rp_filter", "arp_ignore", "arp_announce", "arp_filter")
    return RailNetdev(name, networks, *(_in_effect(host, name, key) for key in keys))


def _in_effect(host: Host, name: str, key: str) -> Maybe[int]:
    of_all, own = (read_integer(host, f"{CONF}/{part}/{key}") for part in ("all", name))
    if isinstance(of_all, Unknown) or isinstance(own, Unknown):
        return of_all if isinstance(of_all, Unknown) else own
    return max(of_all, own)


def _routed_by_source(host: Host) -> Maybe[frozenset[str]]:
    answers = [host.run(argv) for argv in (RULES, ROUTES)]
    for answer, argv in zip(answers, (RULES, ROUTES), strict=True):
        if isinstance(answer, Unknown):
            return answer
        if answer.exit_status:
            detail = printable(answer.stderr.strip(), 80)
            return Unknown(Reason.IO_ERROR, " ".join(argv), detail or f"exit status {answer.exit_status}")
    rules, routes = (answer.stdout for answer in answers if not isinstance(answer, Unknown))
    tables = parse_source_tables(rules)
    over = None if tables is None else parse_table_netdevs(routes)
    if tables is None or over is None:
        return Unknown(Reason.MALFORMED, " ".join(RULES if tables is None else ROUTES), "not a JSON list")
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
    try:
        parsed = json.loads(text or "[]")
    except (ValueError, RecursionError):
        return None
    if not isinstance(parsed, list):
        return None
    return [entry for entry in parsed[:_MOST_ENTRIES] if isinstance(entry, dict)]
