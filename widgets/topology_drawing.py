"""The node as nested boxes: NUMA node ⊃ PCIe switch ⊃ GPU, NIC; and as one line a GPU where room is short."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from probes.gpus import Gpu, GpuFacts
from probes.node import Node
from probes.pci import PciFacts, PciFunction, PciKind
from probes.rdma import RdmaDevice, RdmaFacts
from probes.topology import Endpoint, Topology
from probes.unknown import Unknown
from widgets.boxes import ROUND, beside, columns_that_fit, frame
from widgets.endpoint_lines import NOTHING_LIVE, Live, bare_nic_line, gpu_line, nic_line
from widgets.lines import Line, Run, Tone, joined, width_of, wrapped

UNKNOWN_NUMA = -1


@dataclass(frozen=True)
class Lit:
    """What is selected, its partners, the BDFs on the way between; the findings' marks; what was measured."""

    selected: str = ""
    partners: frozenset[str] = frozenset()
    way: frozenset[str] = frozenset()
    marks: Mapping[str, Run] = field(default_factory=dict)  # by endpoint or BDF
    measured: Mapping[str, Run] = field(default_factory=dict)  # by GPU: to its best NIC

    def tone(self, id: str, otherwise: Tone) -> Tone:  # noqa: A002 - an Endpoint's own word
        """The tone of an endpoint or a switch under this selection."""
        if id == self.selected:
            return Tone.CURSOR
        return Tone.LIT if id in self.partners or id in self.way else otherwise


@dataclass
class _Switch:
    """A PCIe switch, known by its upstream port, and what hangs below it."""

    bdf: str
    switches: dict[str, _Switch] = field(default_factory=dict)
    endpoints: list[Endpoint] = field(default_factory=list)
    nvswitches: list[str] = field(default_factory=list)


def upstream_ports(chain: tuple[str, ...]) -> tuple[str, ...]:
    """The switches above a function: every second bridge below the root port is an upstream port."""
    return chain[1:-2:2]


def endpoint_lines(node: Node, topology: Topology, live: Live, lit: Lit, wide: bool) -> dict[str, list[Line]]:
    """Each endpoint's lines by its id: one, or one for each port of a NIC of several."""
    gpus: dict[str, Gpu] = {}
    if isinstance(node.gpus, GpuFacts):
        gpus = {gpu.bdf: gpu for gpu in node.gpus.gpus}
    devices: dict[str, RdmaDevice] = {}
    if isinstance(node.rdma, RdmaFacts):
        devices = {device.name: device for device in node.rdma.devices}
    names = node.pci.names if isinstance(node.pci, PciFacts) else {}
    gpu_width = max((len(gpu.label) for gpu in topology.gpus), default=0)
    nic_width = max((len(nic.label) for nic in topology.nics), default=0)
    lines: dict[str, list[Line]] = {}
    for end in topology.gpus:
        tone = lit.tone(end.id, Tone.GPU)
        label = f"{end.label:<{gpu_width}}"
        gpu = gpus.get(end.id)
        lines[end.id] = [
            gpu_line(gpu, label, live, tone, wide) if gpu else (Run(label, tone, end.id), Run(" GPU"))
        ]
    for end in topology.nics:
        tone = lit.tone(end.id, Tone.NIC)
        device = devices.get(end.id)
        if device is None:
            lines[end.id] = [bare_nic_line(end.label, names.get(end.id, ""), tone)]
            continue
        ports = device.ports or (None,)
        lines[end.id] = [
            nic_line(
                device,
                port,
                f"{end.label}/{port.number}" if port and len(ports) > 1 else f"{end.label:<{nic_width}}",
                live,
                tone,
                wide,
            )
            for port in ports
        ]
    bdfs = {end.id: end.bdf for end in topology.nics if not isinstance(end.bdf, Unknown)}
    for id, of in lines.items():  # noqa: A001
        mark = lit.marks.get(id) or lit.marks.get(bdfs.get(id, ""))
        if mark is not None:
            of[0] = _marked(of[0], mark)
    return lines


def _marked(of: Line, mark: Run) -> Line:
    """The line with a mark in place of the space behind its name, so that nothing moves."""
    name, *rest = of
    if rest and rest[0].text.startswith(" "):
        rest[0] = rest[0]._replace(text=rest[0].text[1:])
    return (name, mark, *rest)


def _numa(of: Endpoint | PciFunction) -> int:
    return UNKNOWN_NUMA if isinstance(of.numa_node, Unknown) else of.numa_node


def _unknown_last(numa: int) -> tuple[bool, int]:
    return numa == UNKNOWN_NUMA, numa


def _forest(node: Node, topology: Topology) -> dict[int, _Switch]:
    """For each NUMA node a nameless switch that holds what hangs below it."""
    functions = node.pci.functions if isinstance(node.pci, PciFacts) else {}
    numas: dict[int, _Switch] = {}
    placed: list[tuple[Endpoint | None, PciFunction | None, int]] = []
    for end in (*topology.gpus, *topology.nics):
        placed.append((end, None if isinstance(end.bdf, Unknown) else functions.get(end.bdf), _numa(end)))
    for nvswitch in functions.values():
        if nvswitch.kind is PciKind.NVSWITCH:
            placed.append((None, nvswitch, _numa(nvswitch)))
    for placed_end, function, numa in placed:
        below = numas.setdefault(numa, _Switch(""))
        for bdf in upstream_ports(function.chain) if function else ():
            below = below.switches.setdefault(bdf, _Switch(bdf))
        if placed_end is not None:
            below.endpoints.append(placed_end)
        elif function is not None:
            below.nvswitches.append(function.bdf)
    return numas


def _content(switch: _Switch, lines: dict[str, list[Line]]) -> list[Line]:
    own = [of for end in switch.endpoints for of in lines[end.id]]
    if switch.nvswitches:
        count = len(switch.nvswitches)
        own.append((Run(f"{count} NVSwitch{'es' if count > 1 else ''}"),))
    return own


def _folded(switch: _Switch) -> tuple[list[str], _Switch]:
    """A chain of switches that hold nothing but one another, as one box with all their names."""
    names = [switch.bdf]
    while not switch.endpoints and not switch.nvswitches and len(switch.switches) == 1:
        (switch,) = switch.switches.values()
        names.append(switch.bdf)
    return names, switch


def _least_width(switch: _Switch, lines: dict[str, list[Line]]) -> int:
    _, inner = _folded(switch)
    title = 8 + 8 * len(_folded(switch)[0])
    widths = [width_of(of) for of in _content(inner, lines)]
    widths.extend(_least_width(below, lines) for below in inner.switches.values())
    return max([title, *widths], default=title) + 4


def _draw_switch(switch: _Switch, lines: dict[str, list[Line]], lit: Lit, width: int) -> list[Line]:
    names, inner = _folded(switch)
    tone = Tone.LIT if lit.way.intersection(names) else Tone.DIM
    told = " switch " + " › ".join(name.removeprefix("0000:") for name in names)
    mark = next((lit.marks[name] for name in names if name in lit.marks), Run(""))
    title: Line = (Run(f"{told} ", tone), mark, Run(" " if mark.text else ""))
    body = [*_content(inner, lines), *_draw_switches(inner, lines, lit, width - 4)]
    return frame(title, body, width, tone=tone)


def _draw_switches(switch: _Switch, lines: dict[str, list[Line]], lit: Lit, width: int) -> list[Line]:
    below = list(switch.switches.values())
    if not below:
        return []
    least = max(_least_width(child, lines) for child in below)
    across = columns_that_fit(least, len(below), width)
    each = (width - (across - 1)) // across
    drawn: list[Line] = []
    for start in range(0, len(below), across):
        row = below[start : start + across]
        blocks = [_draw_switch(child, lines, lit, each) for child in row]
        height = max(len(block) for block in blocks)
        blocks = [_stretched(block, height, each) for block in blocks]
        drawn.extend(beside(blocks, [each] * len(row)))
    return drawn


def _stretched(block: list[Line], height: int, width: int) -> list[Line]:
    """The box made as high as its neighbours, so that the row ends even."""
    if len(block) == height:
        return block
    edge = block[1] if len(block) > 2 else block[0]
    tone = edge[0].tone
    blank: Line = (Run("│", tone), Run(" " * (width - 2)), Run("│", tone))
    return [*block[:-1], *[blank] * (height - len(block)), block[-1]]


def _direct_lines(switch: _Switch, lines: dict[str, list[Line]], width: int) -> list[Line]:
    """Endpoints straight on root ports, as many in a row as fit."""
    content = _content(switch, lines)
    if not content:
        return []
    least = max(width_of(of) for of in content)
    across = columns_that_fit(least, len(content), width, gap=3)
    each = (width - 3 * (across - 1)) // across
    return [
        row
        for start in range(0, len(content), across)
        for row in beside(
            [[of] for of in content[start : start + across]],
            [each] * len(content[start : start + across]),
            gap=3,
        )
    ]


def _numa_title(node: Node, number: int) -> Line:
    if number == UNKNOWN_NUMA:
        return (Run(" NUMA node unknown ", Tone.TITLE), Run("(the firmware names none) ", Tone.DIM))
    cpus = ""
    if not isinstance(node.numa, Unknown):
        for numa in node.numa.nodes:
            if numa.number == number and not isinstance(numa.cpulist, Unknown) and numa.cpulist:
                cpus = f"· CPU {numa.cpulist} "
    return (Run(f" NUMA {number} ", Tone.TITLE), Run(cpus, Tone.DIM))


def _distance(node: Node, a: int, b: int) -> Line:
    """The line between two NUMA nodes: what crosses it is SYS."""
    text = "SMP"
    if not isinstance(node.numa, Unknown):
        for numa in node.numa.nodes:
            if numa.number == a and not isinstance(numa.distances, Unknown) and b in numa.distances:
                text = f"SMP · NUMA distance {numa.distances[b]}"
    return (Run(f"   ║ {text}", Tone.DIM),)


def draw(
    node: Node, topology: Topology, width: int, live: Live = NOTHING_LIVE, lit: Lit | None = None
) -> list[Line]:
    """The boxes, `width` cells wide; figures in full where the switches still stand side by side."""
    lit = lit or Lit()
    if not topology.gpus and not topology.nics:
        return _nothing_here(node, width)
    forest = _forest(node, topology)
    wide_lines = endpoint_lines(node, topology, live, lit, wide=True)
    short_lines = endpoint_lines(node, topology, live, lit, wide=False)
    lines = wide_lines if _as_many_across(forest, wide_lines, short_lines, width) else short_lines
    drawn = _draw_forest(node, forest, lines, lit, width)
    if lit.measured:
        with_measured = _draw_forest(node, forest, _measured(lines, lit), lit, width)
        figures = set(lit.measured.values())
        whole = sum(run in figures for of in with_measured for run in of)
        if len(with_measured) == len(drawn) and whole == len(lit.measured):  # it moves and cuts nothing
            drawn = with_measured
    return [*drawn, *_software_devices(node, width)]


def _draw_forest(
    node: Node, forest: dict[int, _Switch], lines: dict[str, list[Line]], lit: Lit, width: int
) -> list[Line]:
    drawn: list[Line] = []
    before: int | None = None
    for number in sorted(forest, key=_unknown_last):
        if before is not None:
            drawn.append(() if number == UNKNOWN_NUMA else _distance(node, before, number))
        below = forest[number]
        body = [*_draw_switches(below, lines, lit, width - 4), *_direct_lines(below, lines, width - 4)]
        drawn.extend(frame(_numa_title(node, number), body, width, ROUND))
        before = number
    return drawn


def _measured(lines: dict[str, list[Line]], lit: Lit) -> dict[str, list[Line]]:
    """The lines, with what was measured behind each GPU's."""
    return {
        id: [(*of[0], Run(" "), lit.measured[id]), *of[1:]] if id in lit.measured else of
        for id, of in lines.items()  # noqa: A001
    }


def _as_many_across(
    forest: dict[int, _Switch], wide: dict[str, list[Line]], short: dict[str, list[Line]], width: int
) -> bool:
    """Whether as many of the outermost switches stand side by side with the one as with the other."""

    def across(below: _Switch, lines: dict[str, list[Line]]) -> int:
        switches = list(below.switches.values())
        if not switches:
            return 1
        return columns_that_fit(max(_least_width(s, lines) for s in switches), len(switches), width - 4)

    fits = all(width_of(of) <= width - 8 for ends in wide.values() for of in ends)
    return fits and all(across(below, wide) >= across(below, short) for below in forest.values())


def _software_devices(node: Node, width: int) -> list[Line]:
    """RDMA devices without a known PCI function (rxe, siw): they have no place in the boxes."""
    if not isinstance(node.rdma, RdmaFacts):
        return []
    names = [device.name for device in node.rdma.devices if isinstance(device.bdf, Unknown)]
    if not names:
        return []
    return wrapped(f"RDMA devices without a PCI function: {', '.join(names)}", width, Tone.DIM)


def _nothing_here(node: Node, width: int) -> list[Line]:
    if isinstance(node.pci, Unknown):
        told = f"The PCI devices could not be read: {node.pci} ({node.pci.source})."
    else:
        told = (
            f"No NVIDIA GPU and no RDMA NIC among the {len(node.pci.functions)} PCI functions of this node."
        )
    return [
        *wrapped(told, width),
        (),
        *wrapped("To see gdrtop at work on a simulated node: gdrtop --demo", width, Tone.DIM),
        *_software_devices(node, width),
    ]


def draw_list(
    node: Node, topology: Topology, width: int, live: Live = NOTHING_LIVE, lit: Lit | None = None
) -> list[Line]:
    """One line a GPU with its best NIC and the path between; then the NICs that are no GPU's best."""
    lit = lit or Lit()
    if not topology.gpus and not topology.nics:
        return _nothing_here(node, width)
    lines = endpoint_lines(node, topology, live, lit, wide=False)
    drawn: list[Line] = []
    shown: set[str] = set()
    gpu_width = max((width_of(lines[end.id][0]) for end in topology.gpus), default=0)
    for number in sorted({_numa(end) for end in (*topology.gpus, *topology.nics)}, key=_unknown_last):
        drawn.append(_numa_title(node, number))
        for end in topology.gpus:
            if _numa(end) != number:
                continue
            best = topology.best_nics.get(end.id, ())
            pad = Run(" " * (gpu_width - width_of(lines[end.id][0])))
            if not best:
                drawn.append((*lines[end.id][0], pad, Run("  no NIC", Tone.WARNING)))
                continue
            path = topology.path(end.id, best[0])
            word = f" {'?' if isinstance(path.smi, Unknown) else path.smi.value:<4} "
            head: Line = (*lines[end.id][0], pad, Run(word, _path_tone(word)))
            partner = lines[best[0]][0]
            shown.add(best[0])
            measured = lit.measured.get(end.id)
            tail: Line = () if measured is None else (Run(" "), measured)
            if width_of(head) + width_of(partner) <= width:
                whole: Line = (*head, *partner, *tail)
                drawn.append(whole if width_of(whole) <= width else (*head, *partner))
            else:
                drawn.extend([(*head, *tail), (Run("     └ "), *partner)])
    rest = [end for end in topology.nics if end.id not in shown]
    if rest:
        drawn.append((Run(" Other NICs", Tone.TITLE),))
        for end in rest:
            numa = _numa(end)
            where = Run(f"  NUMA {'?' if numa < 0 else numa}", Tone.DIM)
            drawn.extend(joined([of, (where,)], "") for of in lines[end.id])
    return [*drawn, *_software_devices(node, width)]


def _path_tone(word: str) -> Tone:
    return {"PIX": Tone.GOOD, "PXB": Tone.GOOD, "SYS": Tone.BAD}.get(word.strip(), Tone.WARNING)
