"""Checks of several RoCE netdevs in one IPv4 network: ARP answers of the wrong NIC, and dropped packets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probes.base.plan import Step, instruction, make_plan
from probes.base.unknown import Unknown, known
from probes.facts.rdma.rail_networks import CONF, RailNetdev, RailNetworkFacts
from probes.queries.evidence_list import first_n, join_limited
from probes.queries.finding import Area, Evidence, Outcome, Severity, found, need, passed
from probes.queries.ports import need_ports
from probes.snapshot.examination import Examination

AREA = Area("nic")
_SYSCTL = "Linux, Documentation/networking/ip-sysctl.rst"
_STRICT = 1
_BEST_ADDRESS = 2
# 1 and 2: only for addresses of the receiving netdev; 8: for none.
_ANSWERS_FOR_ITSELF = (1, 2, 8)
_NOT_SHARED = Evidence("/proc/net/route", "no two RoCE netdevs are in one IPv4 network")
_SETTINGS = "the ARP settings of the RoCE netdevs"


def _facts(examination: Examination) -> RailNetworkFacts:
    if not any(port.is_ethernet for port in need_ports(examination)):
        return RailNetworkFacts(())
    return need(examination.rail_networks, "the IPv4 networks of the RoCE netdevs")


def _devices(examination: Examination, netdevs: Iterable[RailNetdev]) -> tuple[str, ...]:
    names = {netdev.name for netdev in netdevs}
    return tuple(
        dict.fromkeys(
            port.device.name
            for port in need_ports(examination)
            if {port.facts.netdev, *(gid.netdev for gid in known(port.facts.gids, ()))} & names
        )
    )


def _sysctl(netdevs: Sequence[RailNetdev], key: str, value: int, why: str) -> Step:
    """Return the step that sets a value on netdevs, with the values now as its undo."""

    def words(values: Iterable[int]) -> tuple[str, ...]:
        return tuple(
            # sysctl(8): slashes where a name contains a dot
            f"net/ipv4/conf/{netdev.name}/{key}={number}"
            if "." in netdev.name
            else f"net.ipv4.conf.{netdev.name}.{key}={number}"
            for netdev, number in zip(netdevs, values, strict=True)
        )

    now = [known(getattr(netdev, key), 0) for netdev in netdevs]
    return Step(why, ("sysctl", "-w", *words([value] * len(netdevs))), undo=("sysctl", "-w", *words(now)))


_KEEP = instruction("Write the same settings to a file in /etc/sysctl.d, or they are lost at the next boot")


@AREA.check(
    "roce-rails-one-subnet",
    Severity.WARNING,
    "RoCE NICs in the same subnet answer each other's ARP requests",
    f"{_SYSCTL}, arp_ignore and arp_announce; NVIDIA/nccl issues 1269 and 2158",
    ok="No RoCE NIC answers ARP requests for another NIC",
    impact="Peers can learn the MAC address of the wrong NIC. That NIC drops the packets, and the connection "
    "fails with completion error 12.",
)
def roce_rails_one_subnet(examination: Examination) -> Outcome:
    """Find netdevs that share a network and answer ARP requests for each other's addresses."""
    facts = _facts(examination)
    mixed: dict[str, list[RailNetdev]] = {}
    for network, netdevs in facts.shared.items():
        for netdev in netdevs:
            if need(netdev.arp_ignore, _SETTINGS) in _ANSWERS_FOR_ITSELF:
                continue
            # arp_filter asks the routes, which name the right netdev only with a rule for its address.
            if need(netdev.arp_filter, _SETTINGS) and netdev.name in need(
                facts.routed_by_source, "the routing rules"
            ):
                continue
            mixed.setdefault(network, []).append(netdev)
    if not mixed:
        return _fine(facts, "arp_ignore")
    affected = list({netdev.name: netdev for netdevs in mixed.values() for netdev in netdevs}.values())
    network = next(iter(mixed))
    in_network = facts.shared[network]
    asking = [netdev for netdev in in_network if known(netdev.arp_announce, 0) != _BEST_ADDRESS]
    return found(
        f"{join_limited(netdev.name for netdev in affected)}: these are in {join_limited(mixed)}, and each "
        "NIC answers ARP requests for all their addresses.",
        Evidence("/proc/net/route", f"{network} on {join_limited(netdev.name for netdev in in_network)}"),
        *first_n(_setting(netdev, "arp_ignore") for netdev in affected),
        fix=make_plan(
            "Let each NIC answer for its own address only",
            _sysctl(affected, "arp_ignore", 1, "Answer only for addresses of the receiving netdev"),
            *(
                (_sysctl(asking, "arp_announce", 2, "Send ARP requests with the sending netdev's address"),)
                if asking
                else ()
            ),
            _KEEP,
            note="Peers keep wrong entries for a while: run ip neigh flush dev NETDEV there. A subnet for "
            "each rail avoids the problem.",
        ),
        devices=_devices(examination, affected),
    )


@AREA.check(
    "roce-rp-filter-strict",
    Severity.WARNING,
    "Strict reverse path filtering drops packets on RoCE NICs in the same subnet",
    f"{_SYSCTL}, rp_filter; Linux net/ipv4/arp.c, arp_process",
    ok="Reverse path filtering does not drop RoCE traffic",
    impact="The kernel ignores ARP requests on all but one of these NICs. Connections to the others time "
    "out.",
)
def roce_rp_filter_strict(examination: Examination) -> Outcome:
    """Find netdevs that share a network, with rp_filter 1 and no routing rule for their addresses."""
    facts = _facts(examination)
    sharing = {netdev.name: netdev for netdevs in facts.shared.values() for netdev in netdevs}
    strict = [netdev for netdev in sharing.values() if need(netdev.rp_filter, _SETTINGS) == _STRICT]
    if strict:
        routed = need(facts.routed_by_source, "the routing rules")
        strict = [netdev for netdev in strict if netdev.name not in routed]
    if not strict:
        return _fine(facts, "rp_filter")
    return found(
        f"{join_limited(netdev.name for netdev in strict)}: rp_filter is 1, and the route back to this "
        "network uses only one of its NICs. No routing rule sends packets from the other NICs' addresses "
        "over those NICs.",
        Evidence("/proc/net/route", ", ".join(facts.shared)),
        *first_n(_setting(netdev, "rp_filter") for netdev in strict),
        fix=make_plan(
            "Accept packets on every NIC that has a route back",
            _sysctl(strict, "rp_filter", 2, "Use loose filtering: any route to the sender is enough"),
            _KEEP,
            note="Or give each NIC a routing table and a rule “from ADDRESS lookup TABLE” (ip-rule).",
        ),
        devices=_devices(examination, strict),
    )


def _setting(netdev: RailNetdev, key: str) -> Evidence:
    value = getattr(netdev, key)
    return Evidence(f"{CONF}/{netdev.name}/{key}", str(value) if isinstance(value, Unknown) else f"{value}")


def _fine(facts: RailNetworkFacts, key: str) -> Outcome:
    shared = {netdev.name: netdev for netdevs in facts.shared.values() for netdev in netdevs}
    return passed(*first_n(_setting(netdev, key) for netdev in shared.values()) or (_NOT_SHARED,))
