"""The JSON document of `gdrtop topo`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.gpu.gpus import Gpu, GpuFacts
from probes.facts.node import Node
from probes.facts.rdma.devices import RdmaFacts
from probes.queries.finding import Finding, Severity, Status
from probes.queries.usable_here import UsableHere
from probes.snapshot.nic_roles import NicRole, roles_of
from probes.snapshot.verdict import Verdict
from probes.topology.endpoints import Endpoint
from probes.topology.export import Mark, node_link, plain_graph
from probes.topology.paths import Path, Topology
from tui.runtime.json_values import document, host_name, object_of, plain_value, verdict_json

if TYPE_CHECKING:
    import networkx as nx


def topology_json(
    node: Node,
    topology: Topology,
    verdict: Verdict,
    at: float,
    found: Sequence[Finding] = (),
    usable: UsableHere | None = None,
) -> dict[str, Any]:
    """Return the document; a path's "unknown" is one reason, that of its smi and nccl.

    `at`: seconds since 1970; `usable`: what this session may use, left out if not given.
    """
    gpus = {gpu.bdf: gpu for gpu in node.gpus.gpus} if isinstance(node.gpus, GpuFacts) else {}
    roles = roles_of(node, topology)
    ends = (*topology.gpus, *topology.nics)
    content: dict[str, Any] = {
        "verdict": verdict_json(verdict),
        "gpus": [_gpu_json(node, topology, end, gpus.get(end.id), usable) for end in topology.gpus],
        "nics": [_nic_json(node, end, roles.get(end.id), usable) for end in topology.nics],
        "paths": [_path_json(topology.path(a.id, b.id)) for a, b in combinations(ends, 2)],
        "graph": node_link(marked_graph(topology, found)),
        "gpudirect": plain_value(node.gpudirect),
    }
    unknown: dict[str, str] = {}
    if isinstance(node.gpudirect, Unknown):
        unknown["gpudirect"] = str(node.gpudirect)
    # "There are none" and "unknown whether there are any" are different answers.
    for name, facts in (("gpus", node.gpus), ("nics", node.rdma)):
        reason = _unlisted(facts, node)
        if reason is not None and not content[name]:
            content[name] = None
            unknown[name] = str(reason)
    if unknown:
        content["unknown"] = unknown
    return document("topo", host_name(node), node.origin, at, content)


def marked_graph(topology: Topology, found: Sequence[Finding]) -> nx.Graph[str]:
    """Return the graph for export, with the critical findings and warnings about each node."""
    bdfs = {end.id: known(end.bdf, end.id) for end in topology.nics}
    marks: dict[str, Mark] = {}
    for severity in (Severity.CRITICAL, Severity.WARNING):
        for finding in found:
            if finding.status is not Status.FOUND or finding.severity is not severity:
                continue
            for device in dict.fromkeys(bdfs.get(device, device) for device in finding.devices):
                mark = marks.get(device, Mark(severity.value, ()))
                marks[device] = Mark(mark.severity, (*mark.findings, finding.id))
    return plain_graph(topology.graph, marks)


def no_device(node: Node) -> Unknown:
    """Return why a NIC on the bus has no RDMA device."""
    if isinstance(node.rdma, Unknown) and node.rdma.reason is not Reason.NOT_THERE:
        return node.rdma
    return Unknown(Reason.NOT_THERE, "/sys/class/infiniband", "no RDMA device for this NIC")


def _unlisted(facts: Maybe[GpuFacts] | Maybe[RdmaFacts], node: Node) -> Unknown | None:
    """Return why devices could not be listed; None if they could, or there are no such devices at all."""
    for listed in (facts, node.pci):
        if isinstance(listed, Unknown) and listed.reason is not Reason.NOT_THERE:
            return listed
    return None


def _use(usable: UsableHere | None, end: Endpoint) -> dict[str, object]:
    """Return whether this session may use a device, and if not, why."""
    if usable is None:
        return {}
    why = usable.devices.get(end.id, Unknown(Reason.NOT_THERE))
    if isinstance(why, Unknown):
        return {"usable_here": why}
    return {"usable_here": not why, **({"not_usable_because": why} if why else {})}


def _gpu_json(
    node: Node, topology: Topology, end: Endpoint, gpu: Gpu | None, usable: UsableHere | None
) -> dict[str, Any]:
    fields: dict[str, object] = {"index": int(end.label.removeprefix("GPU")), "bdf": end.id}
    if gpu is None:
        fields.update(name=node.gpus, numa_node=end.numa_node, uuid=node.gpus)
    else:
        fields.update(_fields(gpu, ("index", "bdf", "nvml")))
    fields["best_nics"] = topology.best_nics[end.id]
    fields |= _use(usable, end)
    return object_of(fields)


def _nic_json(node: Node, end: Endpoint, role: NicRole | None, usable: UsableHere | None) -> dict[str, Any]:
    devices = node.rdma.devices if isinstance(node.rdma, RdmaFacts) else ()
    device = next((device for device in devices if device.name == end.id), None)
    fields: dict[str, object] = {"name": end.label, "bdf": end.bdf, "numa_node": end.numa_node}
    if device is not None:
        fields.update(_fields(device, ("name", "bdf", "numa_node", "sysfs_path")))
    else:
        fields["ports"] = no_device(node)
    direct = node.data_direct
    if isinstance(direct, Unknown):
        fields["data_direct"] = direct
    elif end.id in direct.of_devices:
        fields["data_direct"] = direct.of_devices[end.id]
    if role is not None:
        fields.update(role=role.role, role_reasons=role.reasons)
    fields |= _use(usable, end)
    return object_of(fields)


def _fields(facts: object, leave_out: tuple[str, ...]) -> dict[str, object]:
    assert dataclasses.is_dataclass(facts)
    names = (field.name for field in dataclasses.fields(facts))
    return {name: getattr(facts, name) for name in names if name not in leave_out}


def _path_json(path: Path) -> dict[str, Any]:
    fields = object_of(
        {"from": path.a, "to": path.b, "smi": path.smi, "nccl": path.nccl, "nccl_pcie": path.nccl_pcie}
    )
    fields.pop("unknown", None)
    fields["nvlinks"] = path.nvlinks
    fields["gbps"] = None if isinstance(path.gbps, Unknown) else round(path.gbps, 1)
    fields["weakest"] = path.weakest
    fields["hops"] = [plain_value(hop) for hop in path.hops]
    reasons = [str(word) for word in (path.smi, path.nccl) if isinstance(word, Unknown)]
    return {**fields, "unknown": reasons[0]} if reasons else fields
