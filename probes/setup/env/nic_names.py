"""Names in lists of NICs and interfaces: those of the wrong kind, and what a list leaves out.

Sources: NCCL src/misc/utils.cc parseStringList; UCX docs/source/faq.md (a device is named with its port);
rdma-core kernel-boot/rdma-persistent-naming.rules; systemd.net-naming-scheme(7); NVIDIA/dgx-spark-playbooks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from probes.base.evidence import Severity
from probes.base.text import join_limited, plural
from probes.base.unknown import Unknown, known
from probes.checks.nccl.network import HCA, selected_ports
from probes.facts.rdma.devices import RdmaDevice
from probes.facts.rdma.roce import netdevs_of
from probes.nccl.settings import parse_hca_list
from probes.nccl.variables.catalogue import Kind, variables
from probes.setup.env.assignments import Assignment, Problem
from probes.setup.env.judge import has_gpus_and_nics
from probes.setup.env.nics import active_ports
from probes.snapshot.examination import Examination
from probes.snapshot.nic_roles import Role, roles_of

_UCX = "UCX_NET_DEVICES"
_RDMA_NAME = re.compile(
    r"(?:mlx[45]_\d|bnxt_re\d|irdma\d|efa_\d|rdmap\d|roce[pPo]|iwp\d|cxi\d|erdma_\d|mana_\d|ionic_\d).*"
)
_INTERFACE_NAME = re.compile(r"(?:eth\d|en[opsx]\w|enP\d|bond\d|ib\d{1,2}$|br-|docker\d|lo$).*")
_SPARK_NAME = re.compile(r"roce(P2)?p1s0f([01])")
_HALF = "Each function has its own PCIe link with about half of the port's rate."


def of_names(
    chosen: Mapping[str, Assignment], examination: Examination, is_of_host: bool = True
) -> Iterator[Problem]:
    """Judge the lists of one environment; `is_of_host`: it is for the network of this node, not of a pod."""
    devices = {device.name: device for device in examination.topology.devices.values()}
    owners = {name: device for device in devices.values() for name in _netdevs(device)}
    for name, assignment in chosen.items():
        variable, value = variables().get(name), assignment.value
        kind = None if variable is None else variable.kind
        if not value or (kind not in (Kind.HCA_LIST, Kind.INTERFACES) and name != _UCX):
            continue
        entries = [entry for entry, _ in parse_hca_list(value).entries]
        if kind is not None and name != _UCX:
            for problem in _of_entries(name, entries, kind, devices, owners):
                yield _at(problem, assignment)
        if kind is Kind.INTERFACES and is_of_host and not any(entry in devices for entry in entries):
            for problem in _of_interfaces(name, value, examination):
                yield _at(problem, assignment)
        if name == _UCX and has_gpus_and_nics(examination):
            for problem in _of_ucx(value, devices, examination, is_of_host):
                yield _at(problem, assignment)
        if name == HCA:
            for problem in _of_list(value, entries, examination):
                yield _at(problem, assignment)


def _at(problem: Problem, assignment: Assignment) -> Problem:
    shown = (problem.severity, problem.title, problem.detail, problem.fix)
    return Problem(assignment.line, *shown, assignment.name)


def _netdevs(device: RdmaDevice) -> Iterator[str]:
    for port in device.ports:
        yield from netdevs_of(port)


def _of_entries(
    name: str,
    entries: list[str],
    kind: Kind,
    devices: Mapping[str, RdmaDevice],
    owners: Mapping[str, RdmaDevice],
) -> Iterator[Problem]:
    """Find names of interfaces in lists of NICs, and the reverse."""
    late = [entry for entry in entries[1:] if entry.startswith(("^", "="))]
    if late:
        mark = late[0][:1]
        stay = join_limited(entry[1:] for entry in late)
        title = f"“{mark}” counts only at the start of {name}"
        detail = f"NCCL takes “{late[0]}” as a name, which no NIC has."
        if mark == "^" and len(entries) > len(late):
            detail += f" So {stay} stays selected."
        yield _warning(title, detail, f"Write {mark} once, before the first name")
    for entry in entries:
        if entry in late:
            continue
        if kind is Kind.HCA_LIST and entry not in devices and _is_interface(entry, owners):
            owner = owners.get(entry)
            title = f"{entry} is a network interface, and {name} takes RDMA devices"
            which = f"Write {owner.name}" if owner is not None else "Write the name that ibv_devices lists"
            yield _warning(title, "NCCL finds no NIC of this name.", which)
        elif kind is Kind.INTERFACES and entry not in owners and _is_device(entry, devices):
            device = devices.get(entry)
            netdevs = () if device is None else tuple(_netdevs(device))
            title = f"{entry} is an RDMA device, and {name} takes network interfaces"
            which = f"Write {netdevs[0]}" if netdevs else "Write a name that ip link lists"
            yield _warning(title, "NCCL finds no interface for its bootstrap.", which)


def _of_ucx(
    value: str, devices: Mapping[str, RdmaDevice], examination: Examination, is_of_host: bool
) -> Iterator[Problem]:
    """Find names without a port that are neither an interface nor a port; the doctor compares the others."""
    facts = examination.interfaces
    if isinstance(facts, Unknown) or value.startswith("^") or re.search(r"[*?\[]", value):
        return
    known_names = {interface.name for interface in facts.interfaces} | {"all", "lo"}
    known_names.update(name for device in devices.values() for name in _netdevs(device))
    for entry in (part.strip() for part in value.split(",")):
        if not entry or ":" in entry or entry in known_names:
            continue
        if entry in devices:
            port = devices[entry].ports[0].number if devices[entry].ports else 1
            title = f"UCX names an RDMA device with its port: {entry} alone matches nothing"
            yield _warning(title, "", f"Write {entry}:{port}")
        elif is_of_host:
            title = f"{entry} is neither an interface nor a port of this node"
            yield _warning(title, "UCX warns about it, and ignores it.", f"Correct the name in {_UCX}")


def _is_interface(entry: str, owners: Mapping[str, RdmaDevice]) -> bool:
    return entry in owners or bool(_INTERFACE_NAME.fullmatch(entry))


def _is_device(entry: str, devices: Mapping[str, RdmaDevice]) -> bool:
    return entry in devices or bool(_RDMA_NAME.fullmatch(entry))


def _warning(title: str, detail: str, fix: str) -> Problem:
    return Problem(0, Severity.WARNING, title, detail, fix)


def _of_interfaces(name: str, value: str, examination: Examination) -> Iterator[Problem]:
    """Find lists that select none of this node's interfaces; NCCL takes those with an address."""
    facts = examination.interfaces
    listed = parse_hca_list(value)
    if isinstance(facts, Unknown) or not facts.interfaces or not has_gpus_and_nics(examination):
        return
    names = [interface.name for interface in facts.interfaces]
    names += [each for device in examination.topology.devices.values() for each in _netdevs(device)]
    if listed.excludes or any(listed.uses(each, 1) for each in names):
        return
    title = f"{name} selects no interface of this node"
    detail = f"This node has {join_limited(names)}. A job on it fails to start its network."
    yield _warning(title, detail, "List interfaces that every node of the job has, or remove the variable")


def _of_list(value: str, entries: list[str], examination: Examination) -> Iterator[Problem]:
    """Say what a list of NICs loses: part of what shares a port, or most of the NICs."""
    listed = parse_hca_list(value)
    active = {device.name: device for device, _ in active_ports(examination)}
    if not (set(entries) & set(examination.topology.devices)) and not listed.excludes:
        yield from _of_spark_names(entries)
        return
    chosen = {device.name for device, _ in selected_ports(examination, listed)} & set(active)
    shared = [group for group in _sharing(active) if 0 < len(chosen & set(group)) < len(group)]
    for group in shared:
        used = next(name for name in group if name in chosen)
        title = f"{used} shares its port with {join_limited(set(group) - chosen)}, which the list leaves out"
        yield _warning(title, f"{_HALF} A job loses the other half.", f"List both: {','.join(group)}")
    roles = roles_of(examination.node, examination.topology)
    compute = {name for name in active if name in roles and roles[name].role is Role.COMPUTE}
    left_out = len(compute - chosen)
    if not shared and left_out and compute & chosen:
        title = f"The list selects {len(compute & chosen)} of {plural(len(compute), 'compute NIC')}"
        others = "one" if left_out == 1 else left_out
        detail = f"A job on all GPUs loses the bandwidth of the other {others}."
        yield Problem(0, Severity.NOTE, title, detail, "Add them, unless other jobs use them")


def _sharing(active: Mapping[str, RdmaDevice]) -> list[tuple[str, ...]]:
    """Return the pairs of functions of one card that share a port: the same number, on other PCIe links."""
    groups: dict[tuple[str, ...], dict[str, str]] = {}  # name by BDF; a subfunction has the BDF of another
    for name, device in active.items():
        match = _SPARK_NAME.fullmatch(name)
        guid, bdf = known(device.system_image_guid, ""), known(device.bdf, "")
        if match:
            groups.setdefault(("spark", match[2]), {})[bdf] = name
        elif guid and bdf and not device.is_virtual_function:
            groups.setdefault((guid, bdf[-1]), {}).setdefault(bdf, name)
    pairs = (tuple(sorted(group.values(), key=lambda name: (len(name), name))) for group in groups.values())
    return [pair for pair in pairs if len(pair) == 2]


def _of_spark_names(entries: list[str]) -> Iterator[Problem]:
    """Find one function of a port of DGX Spark by the names alone, on any node."""
    found = {entry: match for entry in entries if (match := _SPARK_NAME.fullmatch(entry))}
    for entry, match in found.items():
        other = f"roce{'' if match[1] else 'P2'}p1s0f{match[2]}"
        if other not in found:
            title = f"On a DGX Spark, {entry} shares its port with {other}, which the list leaves out"
            pair = ",".join(sorted((entry, other), key=len))
            yield _warning(title, f"{_HALF} A job loses the other half.", f"List both: {pair}")
