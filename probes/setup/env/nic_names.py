"""Names in lists of NICs and interfaces: those of the wrong kind, and what a list leaves out.

Sources: NCCL src/misc/utils.cc parseStringList; UCX docs/source/faq.md (a device is named with its port);
rdma-core kernel-boot/rdma-persistent-naming.rules; systemd.net-naming-scheme(7); NVIDIA/dgx-spark-playbooks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from probes.base.text import join_limited, plural
from probes.base.unknown import Unknown
from probes.checks.nccl.network import HCA, selected_ports
from probes.facts.rdma.devices import RdmaDevice
from probes.facts.rdma.roce import netdevs_of
from probes.nccl.settings import parse_hca_list
from probes.nccl.variables.catalogue import Kind, variables
from probes.queries.ports import SPARK_NAME, functions_of_ports
from probes.setup.env.assignments import Assignment, Problem, problem_at
from probes.setup.env.judge import has_gpus_and_nics
from probes.setup.env.nics import active_ports
from probes.snapshot.examination import Examination
from probes.snapshot.nic_roles import Role, roles_of

_UCX = "UCX_NET_DEVICES"
_At = Callable[..., Problem]  # problem_at of one assignment
_RDMA_NAME = re.compile(
    r"(?:mlx[45]_\d|bnxt_re\d|irdma\d|efa_\d|rdmap\d|roce[pPo]|iwp\d|cxi\d|erdma_\d|mana_\d|ionic_\d).*"
)
_INTERFACE_NAME = re.compile(r"(?:eth\d|en[opsx]\w|enP\d|bond\d|ib\d{1,2}$|br-|docker\d|lo$).*")


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
        at = partial(problem_at, assignment.line, variable=name)
        if kind is not None and name != _UCX:
            yield from _of_entries(at, entries, kind, devices, owners)
        if kind is Kind.INTERFACES and is_of_host and not any(entry in devices for entry in entries):
            yield from _of_interfaces(at, value, examination)
        if name == _UCX and has_gpus_and_nics(examination):
            yield from _of_ucx(at, value, devices, examination, is_of_host)
        if name == HCA:
            yield from _of_list(at, value, entries, examination)


def _netdevs(device: RdmaDevice) -> Iterator[str]:
    for port in device.ports:
        yield from netdevs_of(port)


def _of_entries(
    at: _At,
    entries: list[str],
    kind: Kind,
    devices: Mapping[str, RdmaDevice],
    owners: Mapping[str, RdmaDevice],
) -> Iterator[Problem]:
    """Find names of interfaces in lists of NICs, and the reverse."""
    late = [entry for entry in entries[1:] if entry.startswith(("^", "="))]
    if late:
        mark, stays = late[0][:1], ""
        if mark == "^" and len(entries) > len(late):
            stays = f" So {join_limited(entry[1:] for entry in late)} stays selected."
        yield at("mark-after-start", mark=mark, entry=late[0], stays=stays)
    for entry in entries:
        if entry in late:
            continue
        if (
            kind is Kind.HCA_LIST
            and entry not in devices
            and (entry in owners or _INTERFACE_NAME.fullmatch(entry))
        ):
            owner = owners.get(entry)
            right = owner.name if owner is not None else "the name that ibv_devices lists"
            yield at("interface-among-nics", entry=entry, right=right)
        elif (
            kind is Kind.INTERFACES
            and entry not in owners
            and (entry in devices or _RDMA_NAME.fullmatch(entry))
        ):
            device = devices.get(entry)
            netdevs = () if device is None else tuple(_netdevs(device))
            right = netdevs[0] if netdevs else "a name that ip link lists"
            yield at("nic-among-interfaces", entry=entry, right=right)


def _of_ucx(
    at: _At, value: str, devices: Mapping[str, RdmaDevice], examination: Examination, is_of_host: bool
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
            yield at("ucx-without-port", entry=entry, port=port)
        elif is_of_host:
            yield at("ucx-without-device", entry=entry)


def _of_interfaces(at: _At, value: str, examination: Examination) -> Iterator[Problem]:
    """Find lists that select none of this node's interfaces; NCCL takes those with an address."""
    facts = examination.interfaces
    listed = parse_hca_list(value)
    if isinstance(facts, Unknown) or not facts.interfaces or not has_gpus_and_nics(examination):
        return
    names = [interface.name for interface in facts.interfaces]
    names += [each for device in examination.topology.devices.values() for each in _netdevs(device)]
    if listed.excludes or any(listed.uses(each, 1) for each in names):
        return
    yield at("no-interface-selected", names=join_limited(names))


def _of_list(at: _At, value: str, entries: list[str], examination: Examination) -> Iterator[Problem]:
    """Say what a list of NICs loses: part of what shares a port, or most of the NICs."""
    listed = parse_hca_list(value)
    active = {device.name: device for device, _ in active_ports(examination)}
    if not (set(entries) & set(examination.topology.devices)) and not listed.excludes:
        yield from _of_spark_names(at, entries)
        return
    chosen = {device.name for device, _ in selected_ports(examination, listed)} & set(active)
    groups = functions_of_ports(active.values())
    shared = [group for group in groups if 0 < len(chosen & set(group)) < len(group)]
    for group in shared:
        used = next(name for name in group if name in chosen)
        others = join_limited(set(group) - chosen)
        yield at("half-of-port", used=used, others=others, both=",".join(group))
    roles = roles_of(examination.node, examination.topology)
    compute = {name for name in active if name in roles and roles[name].role is Role.COMPUTE}
    left_out = len(compute - chosen)
    if not shared and left_out and compute & chosen:
        nics = plural(len(compute), "compute NIC")
        others = "one" if left_out == 1 else str(left_out)
        yield at("nics-left-out", count=len(compute & chosen), nics=nics, others=others)


def _of_spark_names(at: _At, entries: list[str]) -> Iterator[Problem]:
    """Find one function of a port of DGX Spark by the names alone, on any node."""
    found = {entry: match for entry in entries if (match := SPARK_NAME.fullmatch(entry))}
    for entry, match in found.items():
        other = f"roce{'' if match[1] else 'P2'}p1s0f{match[2]}"
        if other not in found:
            pair = ",".join(sorted((entry, other), key=len))
            yield at("half-of-port-on-spark", used=entry, others=other, both=pair)
