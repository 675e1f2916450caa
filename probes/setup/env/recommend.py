"""Recommend the variables that jobs on a node need, and nothing that is already the default."""

from __future__ import annotations

from collections.abc import Mapping

from probes.base.evidence import Severity
from probes.base.text import join_limited
from probes.base.unknown import Maybe, Unknown, known
from probes.checks.nccl.gdr_settings import INDEX
from probes.checks.nccl.library import first_for_gpus, is_older, versions_of
from probes.checks.nccl.network import HCA
from probes.checks.nic.port_rates import QUEUE_PAIRS
from probes.facts.network.routes import Interface
from probes.facts.rdma.devices import Gid, RdmaPort
from probes.facts.rdma.roce import netdevs_of
from probes.facts.system.platform import Cloud
from probes.nccl.variables.catalogue import NEWEST, Version, parse_version, variables
from probes.queries.jobs import GIN_CLASS, NVSHMEM_CLASS, jobs_of
from probes.setup.env.advice import ASSUMED, OF_JOBS, STATED, Advice, Note, Setting, State
from probes.setup.env.clouds import GIB_SCRIPT, Stack, cloud_settings, stack_notes, stack_of
from probes.setup.env.judge import conf_values, has_gpus_and_nics, judge
from probes.setup.env.nics import level_advice, nic_advice, roce_ports, topology_advice
from probes.snapshot.examination import Examination

# The interface that NCCL's bootstrap uses; GID, traffic class and queue pairs of RoCE.

IFNAME = "NCCL_SOCKET_IFNAME"
CLASS = "NCCL_IB_TC"
_LINK_LOCAL_IPV4 = "169.254."
# Interfaces that exist on one node only, by the names of the programs that make them.
_LOCAL_ONLY = (
    *("br-", "cni", "virbr", "podman", "lxdbr", "lxcbr", "flannel", "cali", "veth", "tun", "tap", "vxlan"),
    *("kube-", "nodelocaldns", "weave", "cilium", "ovs", "vnet", "wg", "tailscale", "nerdctl"),
)
FAMILY = "NCCL_IB_ADDR_FAMILY"
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
        return Note(IFNAME, State.UNKNOWN, "the interfaces or the routes could not be read")
    if (chosen := first_choice(facts.interfaces, version)) is None:
        return Note(IFNAME, State.UNKNOWN, "no interface with an IPv4 address was found")
    why = "which exists on this node only" if chosen.name.startswith(_LOCAL_ONLY) else ""
    if chosen.networks and all(network.startswith(_LINK_LOCAL_IPV4) for network in chosen.networks):
        why = "which has only a link-local address, such as a BMC's USB interface"
    if not why or chosen.name in use.default_routes:
        return Note(IFNAME, State.NOT_NEEDED, f"NCCL uses {chosen.name} for its bootstrap")
    routed = [interface.name for interface in facts.interfaces if interface.name in use.default_routes]
    if not routed:
        text = f"NCCL would use {chosen.name}, {why}; choose an interface that the other nodes can reach"
        return Note(IFNAME, State.UNKNOWN, text)
    reason = f"NCCL would use {chosen.name}, {why}; {routed[0]} has the default route"
    return Setting(IFNAME, f"={routed[0]}", reason)


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
        text = f"the driver already sets traffic class {value} (DSCP {value >> 2}) on all RoCE traffic"
        text += f", but not on that of GIN ({GIN_CLASS}) and IBGDA ({NVSHMEM_CLASS})"
        return Note(CLASS, State.NOT_NEEDED, text)
    if found:
        shown = ", ".join(f"{join_limited(names)} {value}" for value, names in found.items())
        return Note(CLASS, State.UNKNOWN, f"the driver sets a class on some NICs only: {shown}")
    text = "one node cannot show which class the switches treat as lossless"
    if lossless := _lossless(examination, ports):
        text = f"this node's NICs have PFC for {lossless}, but the switches decide"
    return Note(CLASS, State.UNKNOWN, f"{text}; ask your network administrator")


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
            return Note(INDEX, State.UNKNOWN, f"the GIDs of {name} are unknown: {port.gids}")
        routable[name] = [
            gid for gid in port.gids if gid.type == "RoCE v2" and not gid.gid.startswith(_LINK_LOCAL_GID)
        ]
    if without := [name for name, gids in routable.items() if not gids]:
        text = f"no routable RoCE v2 GID on {join_limited(without)}; see gdrtop check"
        return Note(INDEX, State.FIX_FIRST, text)
    has_ipv4 = {
        name: [gid for gid in gids if gid.gid.startswith(_IPV4_GID)] for name, gids in routable.items()
    }
    if version >= _FINDS_GIDS:
        return _by_family(has_ipv4)
    wanted = has_ipv4 if all(has_ipv4.values()) else routable
    common = set.intersection(*({gid.index for gid in gids} for gids in wanted.values()))
    if not common:
        text = "the RoCE v2 GIDs of the NICs have different indexes; use NCCL 2.21 or newer, which finds them"
        return Note(INDEX, State.FIX_FIRST, text)
    index = min(common)
    if index == 0:
        return Note(INDEX, State.NOT_NEEDED, "GID 0, the default, is a RoCE v2 GID on every NIC")
    reason = (
        "the RoCE v2 GID on every NIC here; NCCL before 2.21 uses index 0, and newer versions need none."
        " Check it on every node (show_gids)"
    )
    return Setting(INDEX, str(index), reason)


def _by_family(has_ipv4: dict[str, list[Gid]]) -> Setting | Note:
    if all(has_ipv4.values()):
        text = "NCCL 2.21 and newer find the RoCE v2 GID; older versions need an index (--nccl 2.20 shows it)"
        return Note(INDEX, State.NOT_NEEDED, text)
    if any(has_ipv4.values()):
        without = [name for name, gids in has_ipv4.items() if not gids]
        text = f"no IPv4 address on {join_limited(without)}, unlike the other NICs; use one address family"
        return Note(FAMILY, State.FIX_FIRST, text)
    reason = "no NIC has an IPv4 address; NCCL looks for an IPv4 GID by default"
    return Setting(FAMILY, "AF_INET6", reason)


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
    nics = nic_advice(examination)
    named = (part.value[1:].split(",") for part in nics if isinstance(part, Setting) and part.name == HCA)
    ports = roce_ports(examination, next(named, ()))
    parts = [*nics, level_advice(examination, version), *([_gid(ports, version)] if ports else ())]
    parts += _too_old(examination, version)
    parts += topology_advice(examination), interface_advice(examination, version)
    parts += [_traffic_class(examination, ports)] if ports else []
    if bonds := [name for name, port in ports.items() if port.bond is not None]:
        # NVIDIA lists the variable under debugging.
        text = f"a queue pair uses one port of a bond ({join_limited(bonds, 2)})"
        text += "; measure a job with 2 queue pairs per connection"
        parts.append(Note(QUEUE_PAIRS, State.UNKNOWN, text))
    conf = conf_values(examination)
    notes = [  # where gdrtop cannot decide, the file does
        Note(note.variable, State.IN_FILE, f"{conf[note.variable]} is already in /etc/nccl.conf")
        if note.state in (State.UNKNOWN, State.MEASURE) and note.variable in conf
        else note
        for note in parts
        if isinstance(note, Note)
    ]
    settings = [*of_cloud, *(part for part in parts if isinstance(part, Setting))]
    catalogued = {setting.name: variables().get(setting.name) for setting in settings}
    defaults = {name: variable and variable.default(version) for name, variable in catalogued.items()}
    settings = [setting for setting in settings if defaults[setting.name] != setting.value]
    settings, in_file = _without_conf(examination, settings)
    settings, refused = _without_findings(examination, settings, version)
    decided = {setting.name for setting in settings}
    kept = [
        note
        for note in (*in_file, *refused, *notes)
        if note.variable not in decided or note.state is State.FIX_FIRST
    ]
    return Advice(version, version_from, tuple(settings), tuple(dict.fromkeys(kept)), vendor)


def _too_old(examination: Examination, version: Version) -> list[Note]:
    """Say so if this NCCL does not support the GPUs, or if that is unknown."""
    needed = first_for_gpus(examination, lambda row: row.first_nccl)
    if isinstance(needed, Unknown):
        return [Note("NCCL", State.UNKNOWN, f"which version supports these GPUs is unknown: {needed}")]
    first, generation = needed
    if not is_older(version, first):
        return []
    here, least = (".".join(map(str, numbers)) for numbers in (version, first))
    text = f"{here} does not support {generation} GPUs; use {least} or newer"
    return [Note("NCCL", State.FIX_FIRST, text)]


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
