"""Checks of a DGX Spark's ports: each has two functions, and both have to be up, in two subnets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import ip_network
from itertools import product, starmap

from probes.base.evidence import Evidence, first_n
from probes.base.plan import Plan, Step, make_plan
from probes.base.text import join_limited
from probes.base.unknown import known
from probes.facts.rdma.roce import netdevs_of
from probes.queries.finding import Area, Outcome, found, need, passed
from probes.queries.pcie_paths import is_gb10
from probes.queries.ports import Port, devices_of, functions_of_ports, need_ports, port_names
from probes.snapshot.examination import Examination


def _not_spark(examination: Examination) -> Outcome | None:
    if is_gb10(examination):
        return None
    need(examination.node.gpus, "the GPUs")
    return passed(Evidence("nvidia-smi -L", "no GB10 GPU"))


AREA = Area("nic", __package__, requires=(_not_spark,))


def _cabled(examination: Examination) -> list[tuple[Port, Port]]:
    """Return both functions of each port with a cable: at least one of them is active."""
    ports = {port.device.name: port for port in need_ports(examination)}
    pairs = [(ports[a], ports[b]) for a, b in functions_of_ports(port.device for port in ports.values())]
    for port in (port for pair in pairs for port in pair):
        need(port.facts.state, "the port states")
    return [pair for pair in pairs if pair[0].is_active or pair[1].is_active]


def _networks(examination: Examination) -> dict[str, tuple[str, ...]]:
    facts = need(examination.rail_networks, "the IPv4 networks of the RoCE netdevs")
    return {netdev.name: netdev.networks for netdev in facts.netdevs}


def _of(port: Port, networks: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return the networks of a port's netdevs, and of the VLANs on them that have GIDs."""
    of_gids = (known(gid.netdev, "") for gid in known(port.facts.gids, ()))
    names = dict.fromkeys((*netdevs_of(port.facts), *of_gids))
    return tuple(network for name in names for network in networks.get(name, ()))


def _overlap(near: str, far: str) -> bool:
    """Return whether two networks are the same or overlap; redacted ones can only be the same."""
    try:
        return near == far or ip_network(near).overlaps(ip_network(far))
    except ValueError:  # an address in place of a network
        return False


def _addresses(ports: Iterable[Port], networks: dict[str, tuple[str, ...]]) -> Plan:
    """Return how these functions come up, each with an address in a subnet that no other one has."""
    used = [ip_network(text, strict=False) for own in networks.values() for text in own]
    subnets = (ip_network(f"192.168.{number}.0/24") for number in range(100, 200))
    free = (subnet for subnet in subnets if not any(subnet.overlaps(other) for other in used))
    up, wanted = [], []
    for port, subnet in zip(ports, free, strict=False):
        name = known(port.facts.netdev, port.name)
        if not port.is_active:
            up.append(Step(f"Bring {port.name} up", ("ip", "link", "set", "dev", name, "up")))
        wanted.append(f"{name} {str(subnet).removesuffix('0/24')}N/24")
    return make_plan(
        "Give each function an address of its own",
        *up,
        f"In /etc/netplan/40-cx7.yaml, give {join_limited(wanted)}, with mtu: 9000. N differs on each node",
        "Run netplan apply",
        disturbs="jobs that use these ports",
        note="Any private subnets will do if each function has its own, the same on both nodes.",
    )


def _shown(cabled: list[tuple[Port, Port]], networks: dict[str, tuple[str, ...]]) -> Iterator[Evidence]:
    for port in (port for pair in cabled for port in pair):
        netdev = known(port.facts.netdev, port.name)
        yield Evidence("/proc/net/route", f"{netdev}: {', '.join(_of(port, networks)) or 'no IPv4 network'}")


@AREA.warning("spark-function-unaddressed", data_path=True)
def spark_function_unaddressed(examination: Examination) -> Outcome:
    """Find functions of cabled ports that are not active or have no IPv4 network; both share one cable."""
    cabled = _cabled(examination)
    if not cabled:
        return passed(Evidence("/sys/class/infiniband", "no port with two functions is active"))
    networks = _networks(examination)
    every = [port for pair in cabled for port in pair]
    down = [port for port in every if not port.is_active]
    bare = [port for port in every if port.is_active and not _of(port, networks)]
    if not down and not bare:
        return passed(*first_n(_shown(cabled, networks)))
    parts = [f"{port_names(down)}: down, although its port has a link."] if down else []
    parts += [f"{port_names(bare)}: no IPv4 address."] if bare else []
    names = {port.name for port in (*down, *bare)}
    wrong = [pair for pair in cabled if not names.isdisjoint(port.name for port in pair)]
    return found(
        f"{' '.join(parts)} Each port of a DGX Spark is two functions, and each has its own four PCIe lanes.",
        *first_n(_shown(wrong, networks)),
        fix=_addresses((*down, *bare), networks),
        devices=devices_of([*down, *bare]),
    )


@AREA.warning("spark-functions-one-subnet", data_path=True)
def spark_functions_one_subnet(examination: Examination) -> Outcome:
    """Find pairs of functions whose IPv4 networks overlap."""
    cabled = _cabled(examination)
    networks = _networks(examination) if cabled else {}
    wrong = [
        pair for pair in cabled if any(starmap(_overlap, product(*(_of(port, networks) for port in pair))))
    ]
    if not wrong:
        none = Evidence("/sys/class/infiniband", "no port with two functions is active")
        return passed(*first_n(_shown(cabled, networks)) or (none,))
    names = join_limited(" and ".join(port.name for port in pair) for pair in wrong)
    return found(
        f"{names}: same IPv4 network.",
        *first_n(_shown(wrong, networks)),
        fix=_addresses((other for _, other in wrong), networks),
        devices=devices_of(port for pair in wrong for port in pair),
    )
