"""NCCL's XML: the topology that it found or was given, and the graphs that it chose."""

from __future__ import annotations

import re
from collections.abc import Iterator

from probes.base.text import join_limited, plural
from probes.base.unknown import Unknown
from probes.messages.message import Proof
from probes.nccl.topology_file import GPU_CLASS, Element, bus_id, endpoints_of, file_tree, parse_system
from probes.read.findings import statement
from probes.read.reading import Parsed, Section, Statement
from probes.read.topology_matrix import Matrix, distances
from probes.topology.nccl_paths import Nccl, pci_path

SYSTEM_SIGN = r"\s*<system version="
GRAPHS_SIGN = r"\s*<graphs version="
_GRAPH = re.compile(r"<graph ((?:\w{1,20}=\"[^\"]{0,40}\"\s*){1,20})")
_ATTRIBUTE = re.compile(r"(\w{1,20})=\"([^\"]{0,40})\"")
_KINDS = {"0": "ring", "1": "tree", "2": "collnet", "3": "NVLS", "4": "NVLS tree", "5": "collnet direct"}
_TO_SMI = {Nccl.PIX: "PIX", Nccl.PXB: "PXB", Nccl.PHB: "PHB", Nccl.SYS: "SYS"}
_MOST_PAIRS = 64  # GPUs, and NICs, that are compared


def read_system(section: Section) -> Parsed:
    """Read a topology: NCCL_TOPO_DUMP_FILE or a file for NCCL_TOPO_FILE."""
    text = "\n".join(section.lines)
    end = text.find("</system>")
    text = text[: end + len("</system>")] if end >= 0 else text
    read = sum(bool(line.strip()) for line in text.split("\n"))
    system = parse_system(text, section.place.file)
    if isinstance(system, Unknown):
        return Parsed(shows=f"This NCCL topology cannot be read: {system.detail}.")
    nets = [(element, net) for element in system.walk() for net in element.named("net")]
    has_gpus = any(True for element in system.walk() for _ in element.named("gpu"))
    matrix = _matrix(system, has_gpus)
    parsed = distances(matrix, section.place, read) if matrix.nics else Parsed(read)
    if not has_gpus:
        shows = f"A topology file, which NCCL takes instead of what it finds. {parsed.shows}".strip()
        return Parsed(read, parsed.statements, shows=shows)
    support = list(_support([net for _, net in nets], section))
    # Distances do not matter to NICs that cannot reach GPU memory anyway.
    is_out = any(statement.proves is Proof.NO_GDR for statement in support)
    statements = [*support, *(() if is_out else parsed.statements)]
    found = [net.get("name") for _, net in nets]
    shows = f"NCCL found {join_limited(found)}." if found else "NCCL found no NIC."
    return Parsed(read, tuple(statements), shows=f"{shows} {parsed.shows}".strip())


def _matrix(system: Element, has_gpus: bool) -> Matrix:
    """Return the words between GPUs and NICs by the places in the file, as NCCL has them."""
    seats = file_tree("", system).seats
    names: dict[str, str] = {}  # of a bus ID
    nets: dict[str, str] = {}
    for element in endpoints_of(system):
        bus = bus_id(element)
        if element.get("class").startswith(GPU_CLASS):
            devs = [gpu.get("dev") for gpu in element.named("gpu")]
            if devs and devs[0].isdecimal():
                names.setdefault(bus, f"GPU{devs[0][:3]}")
            elif not has_gpus:  # else the job does not use it
                names.setdefault(bus, f"GPU{len(names)}")
        else:
            devices = [net.get("name") for nic in element.named("nic") for net in nic.named("net")]
            nets.setdefault(bus, join_limited(filter(None, devices), 2) or bus)
    gpus = list(names.items())[:_MOST_PAIRS]
    nics = list(nets.items())[:_MOST_PAIRS]
    cells = {
        (gpu, nic): _TO_SMI[pci_path(seats[gpu_bus], seats[nic_bus])]
        for gpu_bus, gpu in gpus
        for nic_bus, nic in nics
        if gpu_bus in seats and nic_bus in seats
    }
    return Matrix((*(name for _, name in gpus), *(name for _, name in nics)), cells, {})


def _support(nets: list[Element], section: Section) -> Iterator[Statement]:
    """Say whether NCCL can register GPU memory with the NICs that it found (gdr, src/graph/topo.cc)."""
    without = [net.get("name") for net in nets if net.get("gdr") == "0"]
    if without:
        name = "topology-without-gdr" if len(without) == len(nets) else "topology-partly-without-gdr"
        count = plural(len(nets), "NIC")
        yield statement(name, section.place, nics=join_limited(without), all=count)


def read_graphs(section: Section) -> Parsed:
    """Read the graphs of NCCL_GRAPH_DUMP_FILE; typeinter is the distance between GPU and NIC."""
    shown: list[str] = []
    statements: list[Statement] = []
    has_net = any("<net " in line for line in section.lines)
    for line in section.lines:
        match = _GRAPH.search(line)
        if match is None:
            continue
        values = dict(_ATTRIBUTE.findall(match[1]))
        kind = _KINDS.get(values.get("id", ""), "graph")
        words = f"{kind} with {plural(_number(values, 'nchannels'), 'channel')}"
        words += f", {values.get('typeintra', '?')} between GPUs"
        if has_net:
            words += f", {values.get('typeinter', '?')} to the NICs"
        shown.append(words)
        if has_net and values.get("typeinter") in ("PHB", "SYS"):
            distance = values["typeinter"]
            statements.append(statement("graph-far-nics", section.place, kind=kind, distance=distance))
    shows = f"NCCL's graphs: {'; '.join(shown[:8])}." if shown else ""
    return Parsed(section.filled, tuple(statements), shows=shows)


def _number(values: dict[str, str], name: str) -> int:
    text = values.get(name, "")
    return int(text) if text.isdecimal() and len(text) < 7 else 0
