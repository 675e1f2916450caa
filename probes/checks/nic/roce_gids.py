"""Checks of RoCE ports' GIDs, and of RoCE netdevs that share an IPv4 network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probes.base.evidence import Evidence, Severity, first_n
from probes.base.plan import Plan, Step, instruction, make_plan
from probes.base.text import join_limited
from probes.base.unknown import Unknown, first_unread, known
from probes.checks.nccl.gdr_settings import INDEX, NEARER, is_empty, is_v1, use_another_gid, wrong_gids
from probes.checks.nccl.network import used_devices
from probes.facts.rdma.devices import Gid
from probes.facts.rdma.roce import CONF, RailNetdev, RailNetworkFacts
from probes.queries.finding import Area, Outcome, found, need, passed, unknown
from probes.queries.jobs import conclude, has_pods, jobs_of, needs_environment
from probes.queries.pcie_paths import functions_of
from probes.queries.ports import Port, devices_of, need_ports, port_names, severity_without
from probes.snapshot.examination import Examination

AREA = Area("nic", __package__)
RAILS = Area("nic", __package__)
NO_ROCE = Evidence("/sys/class/infiniband/*/ports/*/link_layer", "no active RoCE port here")


def roce_ports(examination: Examination) -> tuple[Port, ...]:
    """Return the active RoCE ports, or end the check as unknown."""
    ports = need_ports(examination)
    need(first_unread(port.facts.link_layer for port in ports), "the ports' link layers")
    ethernet = tuple(port for port in ports if port.is_ethernet)
    need(first_unread(port.facts.state for port in ethernet), "the port states")
    return tuple(port for port in ethernet if port.is_active)


def _is_link_local(gid: Gid) -> bool:
    return gid.gid.startswith("fe80:")


def _v2_gids(port: Port) -> list[Gid]:
    return [gid for gid in known(port.facts.gids, ()) if gid.type == "RoCE v2"]


def _all_have_gids(ports: tuple[Port, ...]) -> Outcome:
    """Pass with the number of GIDs, or end the check as unknown."""
    for port in ports:
        for gid in need(port.facts.gids, f"the GIDs of {port.device.name}"):
            # A GID of an unknown type may be the right one.
            need(gid.type, f"the GIDs of {port.device.name}")
    counts = [(port.path, len(known(port.facts.gids, ()))) for port in ports]
    shown = first_n(Evidence(f"{path}/gids", f"{count} entries") for path, count in counts)
    return passed(*shown or (NO_ROCE,))


def _address(port: Port) -> Plan:
    netdev = known(port.facts.netdev, "its netdev")
    return make_plan(
        "Give the NIC an address",
        f"Give {netdev} an IPv4 address in its rail's subnet (netplan, NetworkManager)",
        Step("Show the GID table", ("show_gids",), needs_root=False),
        note="Leave NCCL_IB_GID_INDEX unset: NCCL 2.21 and later select the GID automatically.",
    )


@AREA.critical("roce-gid-wrong")
def roce_gid_wrong(examination: Examination) -> Outcome:
    """Find jobs whose NCCL_IB_GID_INDEX names a GID that is empty, RoCE v1 or link-local."""
    if not roce_ports(examination):
        return passed(NO_ROCE)
    jobs = jobs_of(examination)
    evidence: list[Evidence] = []
    severities: list[Severity] = []
    # RoCE v1 and link-local GIDs work inside one Ethernet segment.
    for is_wrong, most in ((is_empty, Severity.CRITICAL), (_is_unroutable, Severity.WARNING)):
        wrong, severity = wrong_gids(examination, is_wrong, most)
        evidence += wrong
        severities += [severity] if wrong else []
    if evidence:
        return conclude(
            jobs,
            evidence,
            "The GIDs at this index are empty, RoCE v1 or link-local.",
            fix=use_another_gid(),
            severity=min(severities, key=list(Severity).index),
            impact=NEARER if set(severities) == {Severity.NOTE} else "",
            part_of=("nccl-gid-index-missing", "nccl-gid-index-not-v2"),
        )
    for process in jobs.processes:
        if isinstance(process.environment, Unknown):
            return unknown(needs_environment(process, process.environment))
    if jobs.unseen:
        return unknown(jobs.unseen)
    return passed(Evidence("/proc/*/environ", f"no job sets {INDEX} to such a GID"))


def _is_unroutable(gid: Gid | None) -> bool:
    return gid is not None and (is_v1(gid) or _is_link_local(gid))


@AREA.critical("roce-gid-wrong-namespace", data_path=True)
def roce_gid_wrong_namespace(examination: Examination) -> Outcome:
    """Find active RoCE ports whose whole GID table is empty."""
    ports = roce_ports(examination)
    empty = [port for port in ports if port.facts.gids == ()]
    if empty:
        return found(
            f"{port_names(empty)}: every entry of the GID table is empty. The netdev belongs to a container, "
            "or is missing from this one.",
            *first_n(Evidence(f"{port.path}/gids", "all entries are zero") for port in empty),
            severity=severity_without(examination, devices_of(empty)),
            devices=devices_of(empty),
        )
    return _all_have_gids(ports)


@AREA.critical("roce-gid-wrong-no-v2", data_path=True)
def roce_gid_wrong_no_v2(examination: Examination) -> Outcome:
    """Find active RoCE ports whose GIDs are all RoCE v1."""
    ports = roce_ports(examination)
    without = [
        port
        for port in ports
        if not isinstance(port.facts.gids, Unknown)
        and port.facts.gids
        and all(gid.type == "IB/RoCE v1" for gid in port.facts.gids)
    ]
    if without:
        return found(
            f"{port_names(without)}: the GID table has RoCE v1 entries only.",
            *first_n(
                Evidence(f"{port.path}/gid_attrs/types/{gid.index}", known(gid.type, "unknown"))
                for port in without
                for gid in known(port.facts.gids, ())[:1]
            ),
            fix=_address(without[0]),
            severity=severity_without(examination, devices_of(without)),
            devices=devices_of(without),
        )
    return _all_have_gids(ports)


def _is_needed(examination: Examination, ports: list[Port]) -> bool:
    """Say whether a job uses one of these ports itself, not through a VF or from a pod."""
    parents = {function.physical_function for function in functions_of(examination).values()} - {None}
    if has_pods(examination) or any(known(port.device.bdf, "") in parents for port in ports):
        return False
    settings = (settings for _, settings in jobs_of(examination).of_processes)
    used = {name for each in settings for name in used_devices(examination, each)}
    return any(port.device.name in used for port in ports)


@AREA.warning("roce-gid-wrong-link-local", part_of=("spark-function-unaddressed",))
def roce_gid_wrong_link_local(examination: Examination) -> Outcome:
    """Find active RoCE ports whose RoCE v2 GIDs are all link-local; a note if no job here needs more."""
    ports = roce_ports(examination)
    local = [
        port
        for port in ports
        if _v2_gids(port)
        and all(gid.type == "IB/RoCE v1" or _is_link_local(gid) for gid in known(port.facts.gids, ()))
    ]
    if local:
        return found(
            f"{port_names(local)}: the netdev has no IP address, so all RoCE v2 GIDs are link-local.",
            *first_n(
                Evidence(f"{port.path}/gids/{gid.index}", gid.gid)
                for port in local
                for gid in _v2_gids(port)[:1]
            ),
            fix=_address(local[0]),
            severity=None if _is_needed(examination, local) else Severity.NOTE,
            devices=devices_of(local),
        )
    return _all_have_gids(ports)


# Checks of several RoCE netdevs in one IPv4 network: ARP answers of the wrong NIC, and dropped packets.

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
    return devices_of(
        port
        for port in need_ports(examination)
        if {port.facts.netdev, *(gid.netdev for gid in known(port.facts.gids, ()))} & names
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


@RAILS.warning("roce-rails-one-subnet", part_of=("spark-functions-one-subnet",))
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


@RAILS.warning("roce-rp-filter-strict", part_of=("spark-functions-one-subnet",))
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
    return Evidence(f"{CONF}/{netdev.name}/{key}", str(getattr(netdev, key)))


def _fine(facts: RailNetworkFacts, key: str) -> Outcome:
    shared = {netdev.name: netdev for netdevs in facts.shared.values() for netdev in netdevs}
    return passed(*first_n(_setting(netdev, key) for netdev in shared.values()) or (_NOT_SHARED,))
