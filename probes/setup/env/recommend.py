"""Recommend the variables that jobs on a node need, and nothing that is already the default."""

from __future__ import annotations

from collections.abc import Mapping

from probes.base.evidence import Severity
from probes.base.text import join_limited
from probes.base.unknown import Maybe, Unknown, known
from probes.checks.nccl.library import first_for_gpus, is_older, versions_of
from probes.checks.nccl.network import HCA
from probes.facts.network.routes import Interface
from probes.facts.rdma.devices import Gid, RdmaPort
from probes.facts.rdma.roce import netdevs_of
from probes.facts.system.platform import Cloud
from probes.nccl.variables.catalogue import NEWEST, Version, parse_version, variables
from probes.queries.jobs import jobs_of
from probes.queries.ports import other_key_index
from probes.queries.queue_pair_makers import GIN_CLASS, NVSHMEM_CLASS
from probes.setup.env.advice import (
    ASSUMED,
    OF_JOBS,
    STATED,
    Advice,
    Note,
    Setting,
    State,
    note_of,
    setting_of,
)
from probes.setup.env.clouds import GIB_SCRIPT, Stack, cloud_settings, stack_notes, stack_of
from probes.setup.env.judge import conf_values, has_gpus_and_nics, judge
from probes.setup.env.nics import level_advice, nic_advice, roce_ports, spark_advice, topology_advice
from probes.snapshot.examination import Examination

# The interface that NCCL's bootstrap uses; GID, traffic class and queue pairs of RoCE.

_LINK_LOCAL_IPV4 = "169.254."
# Interfaces that exist on one node only, by the names of the programs that make them.
_LOCAL_ONLY = (
    *("br-", "cni", "virbr", "podman", "lxdbr", "lxcbr", "flannel", "cali", "veth", "tun", "tap", "vxlan"),
    *("kube-", "nodelocaldns", "weave", "cilium", "ovs", "vnet", "wg", "tailscale", "nerdctl"),
)
_FINDS_GIDS = (2, 21)
_FIRST_WITHOUT_VIRBR = (2, 28, 3)
_IPV4_GID = "0000:0000:0000:0000:0000:ffff:"
_LINK_LOCAL_GID = "fe80:"


def first_choice(interfaces: tuple[Interface, ...], version: Version = NEWEST) -> Interface | None:
    """Return the interface that NCCL takes without NCCL_SOCKET_IFNAME (src/misc/socket.cc).

    The first one whose name begins with ib, else the first one that is neither docker nor lo, nor virbr.
    """
    by_name = [interface for interface in interfaces if interface.name.startswith("ib")]
    last = ("docker", "lo") if is_older(version, _FIRST_WITHOUT_VIRBR) else ("docker", "lo", "virbr")
    others = [interface for interface in interfaces if not interface.name.startswith(last)]
    return next(iter((*by_name, *others)), None)


def interface_advice(examination: Examination, version: Version) -> Setting | Note:
    """Return the interface of the default route if NCCL would take one that other nodes cannot reach."""
    facts, use = examination.interfaces, examination.node.network
    if isinstance(facts, Unknown) or isinstance(use, Unknown) or isinstance(use.default_routes, Unknown):
        return note_of("interfaces-unread")
    if (chosen := first_choice(facts.interfaces, version)) is None:
        return note_of("no-interface")
    why = "which exists on this node only" if chosen.name.startswith(_LOCAL_ONLY) else ""
    if chosen.networks and all(network.startswith(_LINK_LOCAL_IPV4) for network in chosen.networks):
        why = "which has only a link-local address, such as a BMC's USB interface"
    if not why or chosen.name in use.default_routes:
        return note_of("right-interface", name=chosen.name)
    routed = [interface.name for interface in facts.interfaces if interface.name in use.default_routes]
    if not routed:
        return note_of("wrong-interface", name=chosen.name, why=why)
    return setting_of("routed-interface", f"={routed[0]}", name=chosen.name, why=why, routed=routed[0])


def _traffic_class(examination: Examination, ports: Mapping[str, RdmaPort]) -> Note:
    """Say what is known of the traffic class; it is the fabric's, so no value is invented."""
    health = examination.port_health
    found: dict[int, list[str]] = {}
    for name, port in ports.items():
        known_port = None if isinstance(health, Unknown) else health.ports.get((name, port.number))
        value = None if known_port is None else known(known_port.traffic_class, None)
        if value is not None:
            found.setdefault(value, []).append(name)
    if len(found) == 1 and sum(map(len, found.values())) == len(ports):
        (value,) = found
        words = {"value": value, "dscp": value >> 2, "gin": GIN_CLASS, "ibgda": NVSHMEM_CLASS}
        return note_of("class-set", **words)
    if found:
        shown = ", ".join(f"{join_limited(names)} {value}" for value, names in found.items())
        return note_of("class-set-on-some", shown=shown)
    lossless = _lossless(examination, ports)
    return note_of("class-of-pfc", priorities=lossless) if lossless else note_of("class-unknown")


def _lossless(examination: Examination, ports: Mapping[str, RdmaPort]) -> str:
    """Return the priorities with PFC and their classes, where all these ports agree; "" otherwise."""
    facts = examination.qos
    netdevs = {} if isinstance(facts, Unknown) else facts.netdevs
    found = {
        tuple((dscp, priority) for dscp, priority in known(qos.priorities, {}).items() if priority in qos.pfc)
        for port in ports.values()
        for name in netdevs_of(port)
        if (qos := netdevs.get(name)) is not None and not isinstance(qos.pfc, Unknown)
    }
    if len(found) != 1 or not (pairs := found.pop()):
        return ""
    priorities = join_limited(str(priority) for priority in sorted({priority for _, priority in pairs}))
    return f"priority {priorities} (class {join_limited(str(dscp << 2) for dscp, _ in sorted(pairs))})"


def _gid(ports: Mapping[str, RdmaPort], version: Version) -> Setting | Note:
    """Return the index or the address family, or why NCCL needs neither."""
    routable: dict[str, list[Gid]] = {}  # RoCE v2, and not link-local
    for name, port in ports.items():
        if isinstance(port.gids, Unknown):
            return note_of("gids-unknown", name=name, why=port.gids)
        routable[name] = [
            gid for gid in port.gids if gid.type == "RoCE v2" and not gid.gid.startswith(_LINK_LOCAL_GID)
        ]
    if without := [name for name, gids in routable.items() if not gids]:
        return note_of("no-routable-gid", names=join_limited(without))
    has_ipv4 = {
        name: [gid for gid in gids if gid.gid.startswith(_IPV4_GID)] for name, gids in routable.items()
    }
    if version >= _FINDS_GIDS:
        return _by_family(has_ipv4)
    wanted = has_ipv4 if all(has_ipv4.values()) else routable
    common = set.intersection(*({gid.index for gid in gids} for gids in wanted.values()))
    if not common:
        return note_of("gids-differ")
    index = min(common)
    return note_of("gid-is-default") if index == 0 else setting_of("gid-index", str(index))


def _by_family(has_ipv4: dict[str, list[Gid]]) -> Setting | Note:
    if all(has_ipv4.values()):
        return note_of("gid-found")
    if any(has_ipv4.values()):
        without = [name for name, gids in has_ipv4.items() if not gids]
        return note_of("mixed-families", names=join_limited(without))
    return setting_of("only-ipv6", "AF_INET6")


def version_of(examination: Examination, stated: str = "") -> tuple[Version, str]:
    """Return the NCCL whose defaults apply: the stated one, the oldest that a job maps, or the newest."""
    if stated:
        return parse_version(stated), STATED
    found = [
        version
        for process in jobs_of(examination).processes
        for _, version in versions_of(process, "libnccl")
        if version
    ]
    return (min(found), OF_JOBS) if found else (NEWEST, ASSUMED)


def recommend(examination: Examination, cloud: Maybe[Cloud], nccl: str = "") -> Advice:
    """Return what jobs on this node need; `nccl`: a version, if not that of the running jobs."""
    version, version_from = version_of(examination, nccl)
    if not has_gpus_and_nics(examination):
        unread = any(isinstance(each, Unknown) for each in (examination.node.gpus, examination.node.rdma))
        return Advice(version, version_from, nothing=_why_nothing(examination), is_unread=unread)
    if (stack := stack_of(examination, cloud)) is not None:
        script = GIB_SCRIPT if stack is Stack.GIB else ""
        text = f"on top of {stack.value}; remove the line"
        stacked = (
            Note(name, State.IN_FILE, f"/etc/nccl.conf sets {value}, {text}")
            for name, value in conf_values(examination).items()
            if not name.startswith("NCCL_DEBUG")
        )
        of_stack = (*_too_old(examination, version), *stack_notes(stack), *stacked)
        return Advice(version, version_from, (), of_stack, stack.value, script)
    vendor = "" if isinstance(cloud, Unknown) else cloud.provider.value
    of_cloud = () if isinstance(cloud, Unknown) else cloud_settings(examination, cloud)
    of_spark = spark_advice(examination)
    nics = of_spark or nic_advice(examination)
    named = (part.value[1:].split(",") for part in nics if isinstance(part, Setting) and part.name == HCA)
    ports = roce_ports(examination, next(named, ()))
    parts = [*nics, level_advice(examination, version), *([_gid(ports, version)] if ports else ())]
    parts += _key_index(examination)
    parts += _too_old(examination, version)
    parts += [topology_advice(examination)]
    parts += [] if of_spark else [interface_advice(examination, version)]
    parts += [_traffic_class(examination, ports)] if ports else []
    if bonds := [name for name, port in ports.items() if port.bond is not None]:
        parts.append(note_of("bonds", bonds=join_limited(bonds, 2)))
    conf = conf_values(examination)
    notes = [  # where gdrtop cannot decide, the file does
        Note(part.variable, State.IN_FILE, f"{conf[part.variable]} is already in /etc/nccl.conf")
        if part.state in (State.UNKNOWN, State.MEASURE) and part.variable in conf
        else part
        for part in parts
        if isinstance(part, Note)
    ]
    settings = [*of_cloud, *(part for part in parts if isinstance(part, Setting))]
    catalogued = {setting.name: variables().get(setting.name) for setting in settings}
    defaults = {name: variable and variable.default(version) for name, variable in catalogued.items()}
    settings = [setting for setting in settings if defaults[setting.name] != setting.value]
    settings, in_file = _without_conf(examination, settings)
    settings, refused = _without_findings(examination, settings, version)
    decided = {setting.name for setting in settings}
    kept = [
        each
        for each in (*in_file, *refused, *notes)
        if each.variable not in decided or each.state is State.FIX_FIRST
    ]
    return Advice(version, version_from, tuple(settings), tuple(dict.fromkeys(kept)), vendor)


def _key_index(examination: Examination) -> list[Setting]:
    """Return the index of the partition key, where the default 0 has none of a full member."""
    index = other_key_index(examination, examination.topology.nics_near_gpus)
    return [] if index is None else [setting_of("pkey-index", str(index))]


def _too_old(examination: Examination, version: Version) -> list[Note]:
    """Say so if this NCCL does not support the GPUs, or if that is unknown."""
    needed = first_for_gpus(examination, lambda row: row.first_nccl)
    if isinstance(needed, Unknown):
        return [note_of("nccl-for-gpus-unknown", why=needed)]
    first, generation = needed
    if not is_older(version, first):
        return []
    here, least = (".".join(map(str, numbers)) for numbers in (version, first))
    return [note_of("nccl-too-old", here=here, generation=generation, least=least)]


def _why_nothing(examination: Examination) -> str:
    gpus, rdma = examination.node.gpus, examination.node.rdma
    if isinstance(gpus, Unknown):
        return f"the GPUs are unknown: {gpus}"
    if not gpus.gpus:
        return "this node has no NVIDIA GPU"
    unknown = isinstance(rdma, Unknown)
    return f"the RDMA devices are unknown: {rdma}" if unknown else "this node has no RDMA device"


def _without_conf(examination: Examination, settings: list[Setting]) -> tuple[list[Setting], list[Note]]:
    """Leave out what /etc/nccl.conf sets already; a different value there is kept and named."""
    conf = conf_values(examination)
    kept: list[Setting] = []
    notes: list[Note] = []
    for setting in settings:
        if setting.name not in conf:
            kept.append(setting)
        elif conf[setting.name] == setting.value:
            notes.append(Note(setting.name, State.IN_FILE, f"{setting.value} is already in /etc/nccl.conf"))
        else:
            text = (
                f"/etc/nccl.conf has {conf[setting.name]}; gdrtop would use {setting.value}: {setting.reason}"
            )
            notes.append(Note(setting.name, State.IN_FILE, text))
    return kept, notes


def _without_findings(
    examination: Examination, settings: list[Setting], version: Version
) -> tuple[list[Setting], list[Note]]:
    """Leave out what the doctor would object to, so that both never contradict each other."""
    values = {**conf_values(examination), **{setting.name: setting.value for setting in settings}}
    objections = {
        judgment.variable: judgment.title
        for judgment in judge(examination, values, version)
        if judgment.severity is not Severity.NOTE
    }
    notes = [
        Note(setting.name, State.FIX_FIRST, f"{setting.value} would help, but: {objections[setting.name]}")
        for setting in settings
        if setting.name in objections
    ]
    return [setting for setting in settings if setting.name not in objections], notes
