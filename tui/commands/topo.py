"""`gdrtop topo`: the topology as text, as JSON, and as a graph for Graphviz and other programs."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO, TypedDict

from probes.base.frozen import frozen
from probes.base.grouping import grouped
from probes.base.text import join_limited, xml_comment
from probes.base.unknown import Maybe, Reason, Unknown, known, map_known
from probes.checks.judgment import Judgment, judge
from probes.checks.statements import device_statements, stated_facts
from probes.facts.gpu.gpus import Gpu, GpuFabric, GpuFacts
from probes.facts.gpudirect import GpuDirectFacts
from probes.facts.node import Node, derivation, probe_node
from probes.facts.rdma.cable_ends import PortCable, read_cables
from probes.facts.rdma.devices import RdmaDevice, RdmaFacts, RdmaPort, port_name
from probes.facts.rdma.optics import Module, ask_modules
from probes.facts.rdma.switch_ports import SwitchPort, read_switch_ports
from probes.host.protocol import Host
from probes.nccl.topology_file import system_of, xml_text
from probes.queries.finding import Finding
from probes.queries.ports import Port, key_texts, ports_of
from probes.queries.usable_here import UsableHere
from probes.snapshot.examination import Examination
from probes.snapshot.nic_roles import NicRole, roles_of
from probes.snapshot.verdict import Verdict
from probes.topology import export
from probes.topology.endpoints import Endpoint, is_down
from probes.topology.export import Graph, Mark, node_link, plain_graph
from probes.topology.hops import Hop, Smi
from probes.topology.nccl_paths import Nccl
from probes.topology.paths import Path, Topology, build
from tui.command_line.arguments import UsageError, add_arguments
from tui.command_line.options import OutputOptions, parsed
from tui.commands.check import examine_host
from tui.runtime.json_values import (
    Changed,
    VerdictObject,
    node_document,
    object_from,
    object_of,
    plain_value,
    write_json,
)
from tui.runtime.open_host import open_host
from tui.runtime.printing import ascii_text, heading, is_plain, print_lines, text_width
from widgets.base.lines import Line, Run, Tone, line, wrapped
from widgets.doctor.findings import highlights_of
from widgets.node import matrix as matrix_drawing
from widgets.node import optics as optics_drawing
from widgets.node import topology as topology_drawing
from widgets.node import verdict as verdict_drawing
from widgets.node.cables import draw_cables
from widgets.node.highlights import UNPROVEN_MARK, Highlights
from widgets.node.path import label_of

if TYPE_CHECKING:
    import networkx as nx
    from typing_extensions import NotRequired


def add_options(parser: argparse.ArgumentParser) -> None:
    add_arguments(
        parser,
        {
            "--format FORMAT": "text (default) or dot",
            "--json": "print JSON (gdrtop schema topo)",
            "--hops": "with --json: also the hops of each path, which are most of it",
            "--ports": "also show where the cable of each port ends, temperatures, and as root the light of "
            "optical modules and the ends on InfiniBand",
            "--switch-ports": "also show the errors that InfiniBand switches count on their ports to this "
            "node; needs root",
            "--nccl-xml": "write this node's NCCL topology file",
        },
        format={"choices": ("text", "dot"), "default": "text"},
    )


def run(options: argparse.Namespace, out: TextIO) -> int:
    """Print the topology of the node that the options name, or write its topology file for NCCL."""
    if options.json and options.format == "dot":
        raise UsageError("--json and --format dot exclude each other")
    if options.hops and not options.json:
        raise UsageError("--hops needs --json")
    for name in ("ports", "switch_ports"):
        if getattr(options, name) and (options.format == "dot" or options.nccl_xml):
            raise UsageError(f"--{name.replace('_', '-')} needs text or --json")
    if not options.nccl_xml:
        write_topology(open_host(options), out, parsed(TopologyOptions, options))
    elif options.json or options.format == "dot":
        raise UsageError(f"--nccl-xml cannot be used with {'--json' if options.json else '--format dot'}")
    else:
        topology = build(probe_node(open_host(options)))
        if topology.unread is not None:
            raise UsageError(f"no topology file: GPUs or NICs are unknown ({topology.unread})")
        comment = xml_comment(derivation(topology.node))  # NCCL skips it (xml.cc)
        out.write(f"{comment}\n{xml_text(system_of(topology))}")
    return 0


@frozen
class TopologyOptions(OutputOptions):
    """What is printed, and how."""

    format: str = "text"  # or "dot"
    hops: bool = False  # of each path, in JSON
    ports: bool = False
    switch_ports: bool = False


_FABRIC = Annotated[GpuFabric, Changed(optional=("state", "clique", "cluster", "problems"))]


class _Gpu(Gpu):
    best_nics: tuple[str, ...]
    usable_here: Maybe[bool]  # whether this session (container, control group, namespace, user) may use it
    not_usable_because: str


class _Nic(RdmaDevice):
    # BDF of the function that reaches GPU memory (ConnectX Data Direct), on nodes with such functions.
    data_direct: Maybe[str]
    role: Literal["compute", "storage", "management", "other", None]  # as far as it can be read
    role_reasons: tuple[str, ...]
    usable_here: Maybe[bool]  # whether this session (container, control group, namespace, user) may use it
    not_usable_because: str


_GPU = Annotated[
    _Gpu,
    Changed(
        without=("nvml",),
        optional=(
            *("driver", "minor", "compute_capability", "memory_total_bytes", "bar1_total_bytes", "c2c_links"),
            *("nvlinks", "nvlink_peers", "fabric", "usable_here", "not_usable_because"),
        ),
        name=Maybe[str],
        fabric=_FABRIC,
    ),
]
_NIC = Annotated[
    _Nic,
    Changed(
        without=("sysfs_path",),
        optional=(
            *("driver", "node_type", "firmware", "hca_type", "board_id", "node_guid", "system_image_guid"),
            *("is_virtual_function", "uverbs", "uverbs_number", "data_direct", "role", "role_reasons"),
            *("usable_here", "not_usable_because"),
        ),
        ports=Maybe[tuple[RdmaPort, ...]],
    ),
]


class _Module(TypedDict):
    """What an optical module reports of itself: a value a lane; alarm_celsius is its own limit."""

    name: str
    state: str
    celsius: float | None
    alarm_celsius: float | None
    supply_millivolts: float | None
    received_dbm: tuple[float, ...]
    sent_dbm: tuple[float, ...]
    bias_milliamperes: tuple[float, ...]
    faults: tuple[str, ...]


class _Sensor(TypedDict):
    label: str  # as the firmware names it: "asic", "Module0"
    celsius: Maybe[float]
    highest_celsius: Maybe[float]  # since the driver was loaded
    limit_celsius: Maybe[float]  # where the firmware warns


class _Port(TypedDict):
    device: str
    port: int
    # Where its cables end: a bond has several. On Ethernet as the switch says by LLDP.
    cables: tuple[Annotated[PortCable, Changed(without=("device", "port"))], ...]
    sensors: Maybe[tuple[_Sensor, ...]]
    module: Maybe[_Module]


class _SwitchPort(TypedDict):
    device: str  # the NIC on this node
    port: int
    guid: Maybe[str]  # of the switch
    number: Maybe[int]  # of the switch's port
    counters: Maybe[Mapping[str, int]]  # errors and PortXmitWait since they were reset, as perfquery has them


_Ends = TypedDict("_Ends", {"from": str, "to": str})


class _Path(_Ends):
    smi: Smi | None
    nccl: Nccl | None
    nccl_pcie: Nccl | None
    nvlinks: int
    gbps: float | None
    weakest: int | None
    detour: NotRequired[bool]  # only where traffic of a pair below one switch goes through the CPU
    doubt: NotRequired[str]  # why data may be wrong, or transfers fail, although the memory registers
    hops: NotRequired[tuple[Hop, ...]]
    unknown: NotRequired[str]


class TopoDocument(TypedDict):
    """`gdrtop topo --json`."""

    verdict: VerdictObject
    gpus: Maybe[tuple[_GPU, ...]]
    nics: Maybe[tuple[_NIC, ...]]
    # With --ports: where cables end, temperatures, and what the optical module reports of itself.
    ports: NotRequired[Maybe[tuple[_Port, ...]]]
    # With --switch-ports: what the InfiniBand switch at the other end of each cable counts on its port.
    switch_ports: NotRequired[Maybe[tuple[_SwitchPort, ...]]]
    # Of InfiniBand ports that have others than 0xffff at index 0: "0: 0x8013 full, 1: 0x7fff limited".
    partition_keys: NotRequired[Mapping[str, str]]
    paths: tuple[_Path, ...]
    graph: Graph
    gpudirect: Maybe[GpuDirectFacts]


def write_topology(host: Host, out: TextIO, options: TopologyOptions) -> None:
    """Print the topology.

    The verdict counts the findings, so that every command reports the same about a node.
    """
    examination = examine_host(host)
    if options.ports and not isinstance(examination.node.rdma, Unknown):
        examination = replace(examination, modules=ask_modules(host, examination.node.rdma))
    judgment = judge(examination)
    verdict, found = judgment.verdict, judgment.findings
    topology = examination.topology
    asked = _asked_switch_ports(host, examination.node) if options.switch_ports else {}
    if options.json:
        highlights, at = highlights_of(examination, found), host.wall_clock()
        content = topology_json(examination.node, topology, judgment, at, highlights, options.hops)
        if keys := key_texts(examination):
            content["partition_keys"] = keys
        if isinstance(asked, Unknown):
            content["switch_ports"] = None
            content["unknown"] = content.get("unknown", {}) | {"switch_ports": str(asked)}
        elif options.switch_ports:
            content["switch_ports"] = [_switch_port_json(*item) for item in asked.items()]
        if options.ports:
            content["ports"] = _ports_json(examination, _cables(host, examination))
        write_json(content, out)
    elif options.format == "dot":
        text = export.dot(marked_graph(topology, found), derivation(topology.node))
        out.write(ascii_text(text) if is_plain(out, options.ascii) else text)
    else:
        lines = _text(examination, found, verdict, text_width(out))
        if options.ports:
            lines.extend([(), *draw_cables(_cables(host, examination), text_width(out))])
            lines.extend([(), *optics_drawing.port_lines(examination, found, text_width(out))])
        if options.switch_ports:
            lines.extend([(), *_switch_ports(asked)])
        print_lines(lines, out, options.ascii)


def _cables(host: Host, examination: Examination) -> tuple[PortCable, ...]:
    rdma = examination.node.rdma
    return () if isinstance(rdma, Unknown) else read_cables(host, rdma, examination.cable_ends)


def _ports_json(examination: Examination, cables: Sequence[PortCable]) -> list[dict[str, Any]] | None:
    """Return cables, sensors and the module of each port; None: which ports there are is unknown."""
    ports = ports_of(examination)
    if isinstance(ports, Unknown):
        return None
    of_ports = grouped(((cable.device, cable.port), cable) for cable in cables)
    return [
        _port_json(examination, port, of_ports.get((port.device.name, port.facts.number), ()))
        for port in ports
    ]


def _port_json(examination: Examination, port: Port, cables: Sequence[PortCable]) -> dict[str, Any]:
    bdf = known(port.device.bdf, "")
    none = Unknown(Reason.NOT_THERE, "hwmon", "this NIC has no sensors of its own")
    sensors = map_known(examination.temperatures, lambda found: found.get(bdf, none))
    module = map_known(examination.modules, lambda found: found.get(bdf, none))
    return object_of(
        {
            "device": port.device.name,
            "port": port.facts.number,
            "cables": [object_of({"netdev": cable.netdev, "end": cable.end}) for cable in cables],
            "sensors": map_known(sensors, lambda found: [object_from(each, _Sensor) for each in found]),
            "module": map_known(module, _module_json),
        }
    )


def _module_json(module: Module) -> dict[str, Any]:
    return object_from(
        module,
        _Module,
        alarm_celsius=module.temperature.high,
        supply_millivolts=next(iter(module.supply.values), None),
        received_dbm=module.received.values,
        sent_dbm=module.sent.values,
        bias_milliamperes=module.bias.values,
    )


def _asked_switch_ports(host: Host, node: Node) -> Maybe[Mapping[tuple[str, int], Maybe[SwitchPort]]]:
    """Ask for the switch port of each port; unknown: which ports the node has is unknown."""
    if isinstance(node.rdma, Unknown):
        reason = _unlisted(node.rdma, node)
        return {} if reason is None else reason
    return read_switch_ports(host, node.rdma)


def _switch_ports(asked: Maybe[Mapping[tuple[str, int], Maybe[SwitchPort]]]) -> list[Line]:
    """Return what the switch ports have counted, or why they did not say."""
    if isinstance(asked, Unknown):
        return [line(f"Switch ports unknown ({asked})")]
    if not asked:
        return [line("Switch ports: this node has no RDMA port")]
    lines = [line("Switch ports at the other end of the cables, and what they have counted")]
    for (device, number), answer in asked.items():
        name = port_name(device, number)
        if isinstance(answer, Unknown):
            lines.append(line(f"  {name:<8} ", Run(f"unknown: {answer}", Tone.DIM)))
            continue
        counts = ", ".join(f"{counter} {count}" for counter, count in answer.errors.items())
        tone = Tone.WARNING if answer.has_errors else Tone.PLAIN
        where = f"port {answer.number} of switch {answer.guid}"
        lines.append(line(f"  {name:<8} {where}: ", Run(counts or "no errors", tone)))
    return lines


def _switch_port_json(port: tuple[str, int], answer: Maybe[SwitchPort]) -> dict[str, Any]:
    given = dict.fromkeys(("guid", "number", "counters"), answer) if isinstance(answer, Unknown) else {}
    return object_from(answer, _SwitchPort, device=port[0], port=port[1], **given)


def _text(examination: Examination, found: Sequence[Finding], verdict: Verdict, width: int) -> list[Line]:
    node, topology = examination.node, examination.topology
    highlights = highlights_of(examination, found)
    roles, unproven = highlights.roles, highlights.unproven
    lines: list[Line] = [heading(node), verdict_drawing.draw(verdict)]
    lines += [*(wrapped(verdict.reason, width, indent="  ") if verdict.reason else ()), ()]
    lines.extend(topology_drawing.draw(node, topology, width, highlights=highlights))
    if topology.gpus and topology.nics:
        lines.extend([(), line("GPU × NIC")])
        lines.extend(matrix_drawing.draw(topology, width, highlights=highlights))
        lines.extend(matrix_drawing.legend(topology, width, highlights))
        if topology.best_nic:
            lines.extend([(), line("Best NIC of each GPU"), *_best_nics(topology, unproven)])
    if roles:
        names = max(map(len, roles))
        lines.extend([(), line("Role of each NIC")])
        lines.extend(
            line(f"  {name:<{names}} {role.role.value}: {', '.join(role.reasons)}")
            for name, role in roles.items()
        )
    if keys := key_texts(examination):
        lines.extend([(), line("Partition keys (P_Keys) by index")])
        by_text = grouped((text, port) for port, text in keys.items())
        lines.extend(line(f"  {join_limited(ports)}: {text}") for text, ports in by_text.items())
    if len(topology.gpus) > 1:
        lines.extend([(), line("GPU × GPU")])
        lines.extend(matrix_drawing.draw(topology, width, topology.gpus, topology.gpus))
    return lines


def _best_nics(topology: Topology, unproven: Mapping[tuple[str, str], str]) -> list[Line]:
    rdma = topology.node.rdma
    devices = {device.name: device for device in rdma.devices} if isinstance(rdma, RdmaFacts) else {}
    lines = []
    for gpu in topology.gpus:
        nic = topology.best_nic.get(gpu.id)
        if nic is None:
            lines.append(line(f"  {gpu.label:<6} none: all NICs are equally close"))
        else:
            path = topology.path(gpu.id, nic)
            gbps = "" if isinstance(path.gbps, Unknown) else f", PCIe at most {path.gbps:.0f} Gb/s each way"
            # NICs that are down come last: if one is the best, all of them are down.
            device = devices.get(nic)
            state = "no port is ACTIVE" if device else str(no_device(topology.node))
            down = f"; {state}" if is_down(device) else ""
            where = f"{label_of(topology, nic):<8} {matrix_drawing.both_words(path)}{gbps}{down}"
            doubt = Run("; data may be wrong" if (gpu.id, nic) in unproven else "", Tone.WARNING)
            lines.append(line(f"  {gpu.label:<6} {where}", doubt))
    lines.extend(
        line("  ", Run(f"{UNPROVEN_MARK} {doubt}", Tone.WARNING))
        for doubt in dict.fromkeys(unproven.values())
    )
    return lines


def topology_json(
    node: Node,
    topology: Topology,
    judgment: Judgment,
    at: float,
    highlights: Highlights | None = None,
    hops: bool = True,
) -> dict[str, Any]:
    """Return the document; a path's "unknown" is one reason, that of its smi and nccl.

    `at`: seconds since 1970; `highlights`: what this session may use and the marks of paths, left out if not
    given; `hops`: whether each path has its hops.
    """
    gpus = {gpu.bdf: gpu for gpu in node.gpus.gpus} if isinstance(node.gpus, GpuFacts) else {}
    roles = roles_of(node, topology) if highlights is None else highlights.roles
    usable = None if highlights is None else highlights.usable
    ends = (*topology.gpus, *topology.nics)
    content: dict[str, Any] = {
        "verdict": plain_value(judgment.verdict),
        "gpus": [_gpu_json(node, topology, end, gpus.get(end.id), usable) for end in topology.gpus],
        "nics": [_nic_json(node, end, roles.get(end.id), usable) for end in topology.nics],
        "paths": [_path_json(topology.path(a.id, b.id), hops, highlights) for a, b in combinations(ends, 2)],
        "graph": node_link(marked_graph(topology, judgment.findings)),
        "gpudirect": plain_value(stated_facts(node.gpudirect, judgment.paths)),
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
    return node_document("topo", node, at, content)


def marked_graph(topology: Topology, found: Sequence[Finding]) -> nx.Graph[str]:
    """Return the graph for export, with the critical findings and warnings about each node."""
    stated = device_statements(found, {end.id: (known(end.bdf, end.id),) for end in topology.nics})
    marks = {device: Mark(row.severity.value, row.findings) for device, row in stated.items()}
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


def _path_json(path: Path, hops: bool, highlights: Highlights | None) -> dict[str, Any]:
    fields = object_of(
        {"from": path.a, "to": path.b, "smi": path.smi, "nccl": path.nccl, "nccl_pcie": path.nccl_pcie}
    )
    fields.pop("unknown", None)
    fields["nvlinks"] = path.nvlinks
    fields["gbps"] = None if isinstance(path.gbps, Unknown) else round(path.gbps, 1)
    fields["weakest"] = path.weakest
    if highlights is not None and (path.a, path.b) in highlights.detours:
        fields["detour"] = True
    if highlights is not None and (path.a, path.b) in highlights.unproven:
        fields["doubt"] = highlights.unproven[path.a, path.b]
    if hops:
        fields["hops"] = [plain_value(hop) for hop in path.hops]
    reasons = [str(word) for word in (path.smi, path.nccl) if isinstance(word, Unknown)]
    return {**fields, "unknown": reasons[0]} if reasons else fields
