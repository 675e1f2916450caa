"""Topology and module ladder as plain text and as JSON: same probes as the dashboard, no Textual."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from enum import Enum
from typing import Any, TextIO

from probes.base.unknown import Maybe, Reason, Unknown
from probes.checks.registry import findings
from probes.checks.summary import summed_up
from probes.facts.gpu.gpus import Gpu, GpuFacts
from probes.facts.kernel.module_blockers import explain
from probes.facts.kernel.modules import ModuleFacts, Rung
from probes.facts.node import Node, probe_node
from probes.facts.rdma.devices import RdmaFacts
from probes.host.protocol import Host
from probes.queries.acs_redirects import detours
from probes.snapshot.examination import examine
from probes.snapshot.nic_roles import NicRole, roles_of
from probes.snapshot.verdict import Verdict
from probes.topology.endpoints import Endpoint, is_down
from probes.topology.paths import Path, Topology
from tui.commands.json_values import document, host_name, object_of, plain_value, verdict_json, write_json
from tui.runtime.printing import heading, print_lines, text_width
from widgets.base.lines import Line, Run, line, width_of
from widgets.doctor.findings import marks_of
from widgets.node import matrix as matrix_drawing
from widgets.node import modules as ladder_drawing
from widgets.node import topology as topology_drawing
from widgets.node import verdict as verdict_drawing
from widgets.node.path import label_of
from widgets.node.topology import Lit


def _verdict_line(verdict: Verdict) -> Line:
    drawn = verdict_drawing.draw(verdict)
    return (*drawn, Run(f" · {verdict.reason}")) if verdict.reason else drawn


def write_topology(host: Host, out: TextIO, as_json: bool = False, ascii_only: bool = False) -> None:
    """Print the boxes, the matrices and the best NIC of every GPU, or all of it as JSON.

    The verdict counts the findings, so that every command says the same of a node.
    """
    examination = examine(host)
    node, topology = examination.node, examination.topology
    found = findings(examination)
    verdict = summed_up(examination.verdict, found)
    if as_json:
        write_json(topology_json(node, topology, verdict, host.wall_clock()), out)
        return
    width = text_width(out)
    lines: list[Line] = [heading(node), _verdict_line(verdict), ()]
    roles = roles_of(node, topology)
    lit = Lit(marks=marks_of(found), detours=detours(examination), roles=roles)
    lines.extend(topology_drawing.draw(node, topology, width, lit=lit))
    if topology.gpus and topology.nics:
        lines.extend([(), line("GPU × NIC")])
        lines.extend(matrix_drawing.draw(topology, width, lit=lit))
        lines.extend(matrix_drawing.legend(topology, width, lit))
        lines.extend([(), line("Best NIC of each GPU")])
        lines.extend(_best_nics(topology))
    if roles:
        lines.extend([(), line("What each NIC is for")])
        names = max(map(len, roles))
        lines.extend(
            line(f"  {name:<{names}} {role.role.value}: {', '.join(role.reasons)}")
            for name, role in roles.items()
        )
    if len(topology.gpus) > 1:
        lines.extend([(), line("GPU × GPU")])
        lines.extend(matrix_drawing.draw(topology, width, topology.gpus, topology.gpus))
    print_lines(lines, out, ascii_only)


def _best_nics(topology: Topology) -> list[Line]:
    rdma = topology.node.rdma
    devices = {one.name: one for one in rdma.devices} if isinstance(rdma, RdmaFacts) else {}
    lines = []
    for gpu in topology.gpus:
        best = topology.best_nics[gpu.id]
        if best:
            path = topology.path(gpu.id, best[0])
            gbps = "" if isinstance(path.gbps, Unknown) else f", PCIe at most {path.gbps:.0f} Gb/s each way"
            # Those that are down stand behind all others: where one is the best, there is none that is up.
            device = devices.get(best[0])
            state = "no port is ACTIVE" if device else str(_no_device(topology.node))
            but = f"; {state}" if is_down(device) else ""
            where = f"{label_of(topology, best[0]):<8} {matrix_drawing.both_words(path)}{gbps}{but}"
            lines.append(line(f"  {gpu.label:<6} {where}"))
    return lines


def _no_device(node: Node) -> Unknown:
    """Why a NIC on the bus has no RDMA device."""
    if isinstance(node.rdma, Unknown) and node.rdma.reason is not Reason.NOT_THERE:
        return node.rdma
    return Unknown(Reason.NOT_THERE, "/sys/class/infiniband", "no RDMA device for this NIC")


def write_modules(host: Host, out: TextIO, as_json: bool = False, ascii_only: bool = False) -> None:
    """The ladder in load order, what is missing and why it matters; or as JSON."""
    node = probe_node(host)
    if as_json:
        write_json(modules_json(node, host.wall_clock()), out)
        return
    lines: list[Line] = [heading(node), ()]
    if isinstance(node.modules, Unknown):
        lines.append(line(f"The modules could not be read: {node.modules}"))
    else:
        unread = _all_unread(node.modules)
        if unread:
            lines.extend([line(unread), line("To see the ladder of a simulated node: gdrtop modules --demo")])
            print_lines(lines, out, ascii_only)
            return
        lines.extend(_table(node, node.modules))
        for rung in node.modules.ladder:
            mark, _ = ladder_drawing.mark_of(node, rung, node.modules.modules[rung.module])
            if mark in "✗?":
                lines.extend([(), line(f"{mark} {rung.module}: {explain(node.modules, rung.module)}")])
                lines.append(line(f"  why it matters: {rung.why}"))
        if node.modules.rules_unread:
            lines.extend([(), line(ladder_drawing.unread_rules(node.modules))])
    print_lines(lines, out, ascii_only)


def _all_unread(facts: ModuleFacts) -> str:
    """One sentence where no module's state could be read, all for one reason; "" elsewhere."""
    states = {facts.modules[rung.module].state for rung in facts.ladder}
    (state,) = states if len(states) == 1 else (None,)
    return f"No module's state is known: {state} ({state.source})" if isinstance(state, Unknown) else ""


# One declaration of the module columns: heading, JSON key, and the value of a rung.
_COLUMNS: tuple[tuple[str, str, Callable[[ModuleFacts, Rung], object]], ...] = (
    ("MODULE", "name", lambda facts, rung: rung.module),
    ("STATE", "state", lambda facts, rung: facts.modules[rung.module].state),
    ("REFCNT", "refcnt", lambda facts, rung: facts.modules[rung.module].refcnt),
    ("VERSION", "version", lambda facts, rung: facts.modules[rung.module].version),
    ("FROM", "origin", lambda facts, rung: facts.modules[rung.module].origin),
    ("NEEDS", "needs", lambda facts, rung: rung.needs),
    ("USED BY", "used_by", lambda facts, rung: facts.modules[rung.module].used_by),
    ("", "on_disk", lambda facts, rung: facts.modules[rung.module].on_disk),
    ("", "srcversion", lambda facts, rung: facts.modules[rung.module].srcversion),
    ("", "blacklisted", lambda facts, rung: facts.modules[rung.module].blacklisted),
    ("", "install_line", lambda facts, rung: facts.modules[rung.module].install_line),
    ("", "persistent", lambda facts, rung: facts.modules[rung.module].persistent),
    ("", "parameters", lambda facts, rung: facts.modules[rung.module].parameters),
    ("", "core", lambda facts, rung: rung.core),
    ("", "why", lambda facts, rung: rung.why),
    ("", "explanation", lambda facts, rung: explain(facts, rung.module)),
)


def _cell(value: object) -> str:
    if isinstance(value, Unknown):
        return "-" if value.reason.value == "not there" else f"? ({value.reason.value})"
    if isinstance(value, Enum):
        return str(value.value)
    return ",".join(map(str, value)) or "-" if isinstance(value, tuple) else str(value)


def _table(node: Node, facts: ModuleFacts) -> list[Line]:
    shown = [(heading, value) for heading, _, value in _COLUMNS if heading]
    rows = [["  " + shown[0][0], *(heading for heading, _ in shown[1:])]]
    for rung in facts.ladder:
        mark, _ = ladder_drawing.mark_of(node, rung, facts.modules[rung.module])
        cells = [_cell(value(facts, rung)) for _, value in shown]
        rows.append([f"{mark} {cells[0]}", *cells[1:]])
    widths = [max(width_of(line(row[column])) for row in rows) for column in range(len(shown))]
    return [
        tuple(
            Run(cell + " " * (width - width_of(line(cell)) + 2))
            for cell, width in zip(row, widths, strict=True)
        )
        for row in rows
    ]


def _fields(of: object, leave_out: tuple[str, ...] = ()) -> dict[str, object]:
    assert dataclasses.is_dataclass(of)
    return {one.name: getattr(of, one.name) for one in dataclasses.fields(of) if one.name not in leave_out}


def topology_json(node: Node, topology: Topology, verdict: Verdict, at: float) -> dict[str, Any]:
    """What `gdrtop topo --json` prints; a path's "unknown" is one reason, that of its smi and nccl.

    `at`: seconds since 1970.
    """
    facts = {gpu.bdf: gpu for gpu in node.gpus.gpus} if isinstance(node.gpus, GpuFacts) else {}
    paths: list[dict[str, Any]] = []
    ends = (*topology.gpus, *topology.nics)
    for number, a in enumerate(ends):
        paths.extend(_path_json(topology.path(a.id, b.id)) for b in ends[number + 1 :])
    content: dict[str, Any] = {"verdict": verdict_json(verdict)}
    lost: dict[str, str] = {}
    content["gpus"] = [_gpu_json(node, topology, end, facts.get(end.id)) for end in topology.gpus]
    roles = roles_of(node, topology)
    content["nics"] = [_nic_json(node, end, roles.get(end.id)) for end in topology.nics]
    content["paths"] = paths
    if isinstance(node.gpudirect, Unknown):
        content["gpudirect"], lost["gpudirect"] = None, str(node.gpudirect)
    else:
        content["gpudirect"] = plain_value(node.gpudirect)
    # "None here" and "not known whether any" are two answers.
    for name, found in (("gpus", node.gpus), ("nics", node.rdma)):
        reason = _unlisted(found, node)
        if reason is not None and not content[name]:
            content[name] = None
            lost[name] = str(reason)
    if lost:
        content["unknown"] = lost
    return document("topo", host_name(node), node.origin, at, content)


def _unlisted(found: Maybe[GpuFacts] | Maybe[RdmaFacts], node: Node) -> Unknown | None:
    """Why devices could not be listed; None where they could, or there are no such devices at all."""
    for one in (found, node.pci):
        if isinstance(one, Unknown) and one.reason is not Reason.NOT_THERE:
            return one
    return None


def _gpu_json(node: Node, topology: Topology, end: Endpoint, gpu: Gpu | None) -> dict[str, Any]:
    fields: dict[str, object] = {"index": int(end.label.removeprefix("GPU")), "bdf": end.id}
    if gpu is None:
        fields.update(name=node.gpus, numa_node=end.numa_node, uuid=node.gpus)
    else:
        fields.update(_fields(gpu, ("index", "bdf", "nvml")))
    fields["best_nics"] = topology.best_nics[end.id]
    return object_of(fields)


def _nic_json(node: Node, end: Endpoint, role: NicRole | None) -> dict[str, Any]:
    devices = node.rdma.devices if isinstance(node.rdma, RdmaFacts) else ()
    device = next((one for one in devices if one.name == end.id), None)
    fields: dict[str, object] = {"name": end.label, "bdf": end.bdf, "numa_node": end.numa_node}
    if device is not None:
        fields.update(_fields(device, ("name", "bdf", "numa_node", "sysfs_path")))
    else:
        fields["ports"] = _no_device(node)
    if role is not None:
        fields.update(role=role.role, role_reasons=role.reasons)
    return object_of(fields)


def _path_json(path: Path) -> dict[str, Any]:
    told = object_of(
        {"from": path.a, "to": path.b, "smi": path.smi, "nccl": path.nccl, "nccl_pcie": path.nccl_pcie}
    )
    told.pop("unknown", None)
    told["nvlinks"] = path.nvlinks
    told["gbps"] = None if isinstance(path.gbps, Unknown) else round(path.gbps, 1)
    told["weakest"] = path.weakest
    told["hops"] = [plain_value(hop) for hop in path.hops]
    for word in (path.smi, path.nccl):
        if isinstance(word, Unknown):
            told["unknown"] = str(word)
            break
    return told


def modules_json(node: Node, at: float) -> dict[str, Any]:
    """What `gdrtop modules --json` prints; `at`: seconds since 1970."""
    return document("modules", host_name(node), node.origin, at, _modules(node.modules))


def _modules(facts: Maybe[ModuleFacts]) -> dict[str, Any]:
    if isinstance(facts, Unknown):
        return {"modules": None, "unknown": {"modules": str(facts)}}
    ladder = [object_of({key: value(facts, rung) for _, key, value in _COLUMNS}) for rung in facts.ladder]
    content = object_of({"kernel_release": facts.kernel_release, "memory_peers": facts.memory_peers})
    content["modules"] = ladder
    content["symbols"] = [plain_value(one) for one in facts.symbols]
    content["rules_unread"] = list(facts.rules_unread)
    return content
