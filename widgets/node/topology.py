"""The node as nested boxes: NUMA node ⊃ PCIe switch ⊃ GPU, NIC; and as one line a GPU where room is short."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from probes.base.unknown import Unknown
from probes.facts.gpu.gpus import Gpu, GpuFacts
from probes.facts.node import Node
from probes.facts.pci.functions import PciFacts, PciFunction, PciKind
from probes.facts.rdma.devices import RdmaDevice, RdmaFacts
from probes.snapshot.nic_roles import NicRole
from probes.topology.endpoints import Endpoint
from probes.topology.paths import Topology
from widgets.base.boxes import ROUND, beside, columns_that_fit, frame
from widgets.base.figures import UNKNOWN_MARK
from widgets.base.lines import Line, Run, Tone, fit, joined, width_of, wrapped
from widgets.node.endpoint_lines import NOTHING_LIVE, Detail, Live, bare_nic_line, gpu_line, model, nic_line

UNKNOWN_NUMA = -1


class Style(Enum):
    """How the topology is drawn, from the lowest drawing to the highest."""

    LIST = "list"  # one line a GPU, with its best NIC
    RULES = "rules"  # boxes for switches, a rule for each NUMA node
    BOXES = "boxes"  # boxes for NUMA nodes too


@dataclass(frozen=True)
class Lit:
    """What is selected and what stands out."""

    selected: str = ""
    partners: frozenset[str] = frozenset()
    way: frozenset[str] = frozenset()  # BDFs on the path to the partner
    marks: Mapping[str, Run] = field(default_factory=dict)  # by endpoint or BDF
    measured: Mapping[str, Run] = field(default_factory=dict)  # by GPU: to its best NIC
    detours: frozenset[tuple[str, str]] = frozenset()  # (GPU, NIC) below one switch, through the root complex
    roles: Mapping[str, NicRole] = field(default_factory=dict)  # by NIC
    only: frozenset[str] | None = None  # endpoints that a filter leaves in the list; None: no filter

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


def common_model(node: Node) -> str:
    """The model that all GPUs are of, "H100"; "" where they differ or there are none."""
    gpus = node.gpus.gpus if isinstance(node.gpus, GpuFacts) else ()
    models = {model(gpu.name) for gpu in gpus}
    return models.pop() if len(models) == 1 else ""


def heading(node: Node, topology: Topology) -> str:
    """What the drawing shows and what its arrows mean, for the panel's title."""
    gpus = f"{len(topology.gpus)} × {common_model(node) or 'GPU'}" if topology.gpus else ""
    nics = f"{len(topology.nics)} NIC{'s' if len(topology.nics) != 1 else ''}" if topology.nics else ""
    what = ", ".join(filter(None, (gpus, nics)))
    return f"{what} · Gb/s: GPU over PCIe, NIC over RDMA" if what else ""


def endpoint_lines(
    node: Node, topology: Topology, live: Live, lit: Lit, detail: Detail
) -> dict[str, list[Line]]:
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
    with_model = detail >= Detail.UNITS or not common_model(node)
    lines: dict[str, list[Line]] = {}
    for end in topology.gpus:
        tone = lit.tone(end.id, Tone.GPU)
        label = f"{end.label:<{gpu_width}}"
        gpu = gpus.get(end.id)
        lines[end.id] = [
            gpu_line(gpu, label, live, tone, detail, with_model)
            if gpu
            else (Run(label, tone, end.id), Run(" GPU"))
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
                detail,
                lit.roles.get(end.id),
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


def _nvswitches(switch: _Switch) -> str:
    count = len(switch.nvswitches)
    return f"{count} NVSwitch{'es' if count > 1 else ''}" if count else ""


def _content(switch: _Switch, lines: dict[str, list[Line]]) -> list[Line]:
    own = [of for end in switch.endpoints for of in lines[end.id]]
    if switch.nvswitches:
        own.append((Run(_nvswitches(switch)),))
    return own


def _is_nvswitches(switch: _Switch) -> bool:
    """Whether there is nothing but NVSwitches below: the NUMA node's title counts those."""
    _, inner = _folded(switch)
    return bool(inner.nvswitches) and not inner.endpoints and not inner.switches


def _drawn_below(switch: _Switch) -> list[_Switch]:
    """The switches that get a box of their own."""
    return [below for below in switch.switches.values() if not _is_nvswitches(below)]


def _short(bdf: str) -> str:
    return bdf.removeprefix("0000:")


def _folded(switch: _Switch) -> tuple[list[str], _Switch]:
    """A chain of switches that hold nothing but one another, as one box with all their names."""
    names = [switch.bdf]
    while not switch.endpoints and not switch.nvswitches and len(switch.switches) == 1:
        (switch,) = switch.switches.values()
        names.append(switch.bdf)
    return names, switch


def _least_width(switch: _Switch, lines: dict[str, list[Line]]) -> int:
    names, inner = _folded(switch)
    title = 8 + 8 * len(names)
    widths = [width_of(of) for of in _content(inner, lines)]
    widths.extend(_least_width(below, lines) for below in _drawn_below(inner))
    return max([title, *widths], default=title) + 4


def _draw_switch(
    topology: Topology, switch: _Switch, lines: dict[str, list[Line]], lit: Lit, width: int
) -> list[Line]:
    names, inner = _folded(switch)
    detour = _detour_title(topology, switch, inner, lit, width)
    tone = Tone.WARNING if detour else Tone.LIT if lit.way.intersection(names) else Tone.DIM
    shown = " switch " + " › ".join(map(_short, names))
    mark = next((lit.marks[name] for name in names if name in lit.marks), Run(""))
    if detour and not mark.text:
        mark = Run("▲", Tone.WARNING)
    title: Line = (Run(f"{shown} ", tone), mark, Run(f"{detour} " if mark.text else "", Tone.WARNING))
    body = [*_content(inner, lines), *_draw_switches(topology, inner, lines, lit, width - 4)]
    return frame(title, body, width, tone=tone)


def _detour_title(topology: Topology, switch: _Switch, inner: _Switch, lit: Lit, width: int) -> str:
    """How traffic between a GPU and a NIC below this switch leaves it all the same; "" where it does not."""
    ids = {end.id for end in _all_below(switch)}
    bent = [pair for pair in lit.detours if pair[0] in ids and pair[1] in ids]
    below = [{end.id for end in _all_below(child)} for child in inner.switches.values()]
    # Drawn at the switch where the paths would turn.
    if not any(not any(pair[0] in child and pair[1] in child for child in below) for pair in bent):
        return ""
    root = root_port_above(topology, min(bent)[0])
    long = f" GPU ⇄ NIC traffic leaves here ↑ {_short(root)} ↓ and returns" if root else ""
    return long if long and len(long) + 30 <= width else " ↑↓ via CPU"


def root_port_above(topology: Topology, gpu: str) -> str:
    """The root port above a GPU; "" where its place is not known."""
    functions = topology.node.pci.functions if isinstance(topology.node.pci, PciFacts) else {}
    function = functions.get(gpu)
    return function.chain[0] if function is not None and len(function.chain) > 1 else ""


def _all_below(switch: _Switch) -> list[Endpoint]:
    return [*switch.endpoints, *(end for child in switch.switches.values() for end in _all_below(child))]


def _draw_switches(
    topology: Topology, switch: _Switch, lines: dict[str, list[Line]], lit: Lit, width: int
) -> list[Line]:
    below = _drawn_below(switch)
    if not below:
        return []
    least = max(_least_width(child, lines) for child in below)
    across = columns_that_fit(least, len(below), width)
    each = (width - (across - 1)) // across
    drawn: list[Line] = []
    for start in range(0, len(below), across):
        row = below[start : start + across]
        blocks = [_draw_switch(topology, child, lines, lit, each) for child in row]
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


def _numa_title(node: Node, number: int, below: _Switch) -> Line:
    if number == UNKNOWN_NUMA:
        return (Run(" NUMA node unknown ", Tone.TITLE), Run("(the firmware names none) ", Tone.DIM))
    cpus = ""
    if not isinstance(node.numa, Unknown):
        for numa in node.numa.nodes:
            if numa.number == number and not isinstance(numa.cpulist, Unknown) and numa.cpulist:
                cpus = f"· CPU {numa.cpulist} "
    count = sum(len(_folded(one)[1].nvswitches) for one in below.switches.values() if _is_nvswitches(one))
    nvswitches = f"· {count} NVSwitch{'es' if count > 1 else ''} " if count else ""
    return (Run(f" NUMA {number} ", Tone.TITLE), Run(cpus + nvswitches, Tone.DIM))


def _distance(node: Node, a: int, b: int) -> str:
    """How far one NUMA node is from another, as the firmware says; what crosses it is SYS."""
    if not isinstance(node.numa, Unknown):
        for numa in node.numa.nodes:
            if numa.number == a and not isinstance(numa.distances, Unknown) and b in numa.distances:
                return f"NUMA distance {numa.distances[b]}"
    return ""


@dataclass(frozen=True)
class Form:
    """How the topology is drawn, and how much of each endpoint."""

    style: Style
    detail: Detail


def choose(
    node: Node,
    topology: Topology,
    width: int,
    rows: int | None = None,
    live: Live = NOTHING_LIVE,
    lit: Lit | None = None,
) -> Form:
    """The richest form that is no higher than `rows` and cuts nothing; None: any height."""
    lit = lit or Lit()
    levels = {detail: endpoint_lines(node, topology, live, lit, detail) for detail in Detail}
    forest = _forest(node, topology)

    def height(style: Style, detail: Detail) -> int:
        return len(_draw_forest(node, topology, forest, levels[detail], lit, width, style))

    def richest(style: Style) -> Detail | None:
        """The most detail that cuts nothing and needs no more rows than the least."""
        inside = width - (4 if style is Style.BOXES else 0)
        if not _is_whole(forest, levels[Detail.SHORT], inside):
            return None
        least = height(style, Detail.SHORT)
        more = (one for one in sorted(levels, reverse=True) if _is_whole(forest, levels[one], inside))
        return next(one for one in more if height(style, one) <= least)

    boxes, rules = richest(Style.BOXES), richest(Style.RULES)
    if rows is None:
        return Form(Style.BOXES, boxes if boxes is not None else Detail.SHORT)
    for style, detail in ((Style.BOXES, boxes), (Style.RULES, rules)):
        if detail is None or (rules is not None and detail < rules):
            continue
        if height(style, detail) <= rows:
            return Form(style, detail)
    for detail in (Detail.USUAL, Detail.SHORT):
        if not _list_rows(topology, levels[detail], lit, width)[1]:
            return Form(Style.LIST, detail)
    return Form(Style.LIST, Detail.SHORT)


def draw(
    node: Node,
    topology: Topology,
    width: int,
    live: Live = NOTHING_LIVE,
    lit: Lit | None = None,
    form: Form | None = None,
) -> list[Line]:
    """The topology, `width` cells wide; with a filter (`lit.only`) always as a list."""
    lit = lit or Lit()
    if not topology.gpus and not topology.nics:
        return _nothing_here(node, width)
    if lit.only is not None:
        form = choose(node, topology, width, 0, live, lit)
    form = form or choose(node, topology, width, None, live, lit)
    lines = endpoint_lines(node, topology, live, lit, form.detail)
    if form.style is Style.LIST:
        return [*_draw_list(topology, lines, lit, width), *_software_devices(node, width)]
    forest = _forest(node, topology)
    drawn = _draw_forest(node, topology, forest, lines, lit, width, form.style)
    if lit.measured:
        with_measured = _draw_forest(
            node, topology, forest, _with_measured(lines, lit), lit, width, form.style
        )
        figures = set(lit.measured.values())
        whole = sum(run in figures for of in with_measured for run in of)
        if len(with_measured) == len(drawn) and whole == len(lit.measured):  # it moves and cuts nothing
            drawn = with_measured
    return [*drawn, *_software_devices(node, width)]


def draw_list(
    node: Node, topology: Topology, width: int, live: Live = NOTHING_LIVE, lit: Lit | None = None
) -> list[Line]:
    """One line a GPU with its best NIC and the path between; then the NICs that are no GPU's best."""
    return draw(node, topology, width, live, lit, choose(node, topology, width, 0, live, lit))


def _draw_forest(
    node: Node,
    topology: Topology,
    forest: dict[int, _Switch],
    lines: dict[str, list[Line]],
    lit: Lit,
    width: int,
    style: Style,
) -> list[Line]:
    drawn: list[Line] = []
    before: int | None = None
    for number in sorted(forest, key=_unknown_last):
        below = forest[number]
        between = "" if before is None or number == UNKNOWN_NUMA else _distance(node, before, number)
        if style is Style.RULES:
            title: Line = (Run("──", Tone.DIM), *_numa_title(node, number, below))
            if between:
                title = (*title, Run(f"· {between} ", Tone.DIM))
            left = width - width_of(title)
            drawn.append((*title, Run("─" * left, Tone.DIM)) if left >= 0 else fit(title, width))
            inside = width
        else:
            if before is not None:
                is_known = number != UNKNOWN_NUMA
                drawn.append((Run(f"   ║ SMP · {between}".rstrip(" ·"), Tone.DIM),) if is_known else ())
            inside = width - 4
        body = [
            *_draw_switches(topology, below, lines, lit, inside),
            *_direct_lines(below, lines, inside),
        ]
        drawn.extend(
            body if style is Style.RULES else frame(_numa_title(node, number, below), body, width, ROUND)
        )
        before = number
    return drawn


def _with_measured(lines: dict[str, list[Line]], lit: Lit) -> dict[str, list[Line]]:
    """The lines, with what was measured behind each GPU's."""
    return {
        id: [(*of[0], Run(" "), lit.measured[id]), *of[1:]] if id in lit.measured else of
        for id, of in lines.items()  # noqa: A001
    }


def _is_whole(forest: dict[int, _Switch], lines: dict[str, list[Line]], width: int) -> bool:
    """Whether no box and no line is wider than `width`."""
    widths = [_least_width(one, lines) for below in forest.values() for one in _drawn_below(below)]
    widths.extend(width_of(of) for below in forest.values() for of in _content(below, lines))
    return max(widths, default=0) <= width


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


def _draw_list(topology: Topology, lines: dict[str, list[Line]], lit: Lit, width: int) -> list[Line]:
    rows, is_broken = _list_rows(topology, lines, lit, width)
    others = _other_nics(topology, lines, lit, width)
    if not rows and not others:
        return wrapped("No GPU or NIC matches the filter.", width, Tone.DIM)
    return [*_list_heading(rows, is_broken), *rows, *others]


def _list_rows(
    topology: Topology, lines: dict[str, list[Line]], lit: Lit, width: int
) -> tuple[list[Line], bool]:
    """One line a GPU, or two where one does not hold GPU and NIC: then the second value is true."""
    numbers = max((len(_numa_text(end)) for end in topology.gpus), default=1)
    gpu_width = max((width_of(lines[end.id][0]) for end in topology.gpus), default=0)
    heads: list[tuple[Endpoint, Line, list[Line]]] = []
    for end in sorted(topology.gpus, key=lambda gpu: _unknown_last(_numa(gpu))):
        best = topology.best_nics.get(end.id, ())[:1]
        if lit.only is not None and not lit.only.intersection((end.id, *best)):
            continue
        of = lines[end.id][0]
        head: Line = (
            Run(f"{_numa_text(end):>{numbers}} ", Tone.DIM),
            *of,
            Run(" " * (gpu_width - width_of(of))),
        )
        if not best:
            heads.append((end, (*head, Run(" no NIC", Tone.WARNING)), []))
            continue
        path = topology.path(end.id, best[0])
        word = UNKNOWN_MARK if isinstance(path.smi, Unknown) else path.smi.value
        if isinstance(path.smi, Unknown) and not isinstance(path.nccl, Unknown):
            word = path.nccl.value
        is_bent = (end.id, best[0]) in lit.detours
        tone = Tone.WARNING if is_bent else _path_tone(word)
        heads.append((end, (*head, Run(f" {word + ('▲' if is_bent else ''):<5}", tone)), lines[best[0]]))
    is_broken = any(width_of(head) + max(map(width_of, ports), default=0) > width for _, head, ports in heads)
    drawn: list[Line] = []
    for end, head, ports in heads:
        figure = lit.measured.get(end.id)
        tail: Line = () if figure is None else (Run(" "), figure)
        if is_broken:
            drawn.extend([(*head, *tail), *((Run("   └ "), *port) for port in ports)])
            continue
        pad = Run(" " * width_of(head))
        for number, port in enumerate(ports or [()]):
            row: Line = (*(head if not number else (pad,)), *port)
            drawn.append((*row, *tail) if not number and width_of(row) + width_of(tail) <= width else row)
    return drawn, is_broken


def _numa_text(end: Endpoint) -> str:
    return "N?" if isinstance(end.numa_node, Unknown) or end.numa_node < 0 else f"N{end.numa_node}"


def _list_heading(rows: list[Line], is_broken: bool) -> list[Line]:
    """What the columns show, above the first figures of each kind."""
    if not rows or is_broken:
        return (
            [(Run("N", Tone.DIM), Run(" = NUMA node; ↑↓ GPU: PCIe, NIC: RDMA, Gb/s", Tone.DIM))]
            if rows
            else []
        )
    text, at, names = "NUMA, GPU", 0, 0
    for run in rows[0]:
        names += bool(run.id)
        if "↑" in run.text and "↓" in run.text:
            place = at + run.text.index("↑")
            word = "PCIe Gb/s" if names == 1 else "RDMA Gb/s, share"
            text = f"{text:<{place}}{word}" if len(text) < place else text
        at += width_of((run,))
    return [(Run(text, Tone.DIM),)]


def _other_nics(topology: Topology, lines: dict[str, list[Line]], lit: Lit, width: int) -> list[Line]:
    """The NICs that are no GPU's best, as many in a row as fit."""
    best = {nics[0] for nics in topology.best_nics.values() if nics}
    rest = [end for end in topology.nics if end.id not in best and (lit.only is None or end.id in lit.only)]
    cells: list[Line] = [(Run(f"{_numa_text(end)} ", Tone.DIM), *of) for end in rest for of in lines[end.id]]
    if not cells:
        return []
    least = max(map(width_of, cells))
    across = columns_that_fit(least, len(cells), width, gap=2)
    each = (width - 2 * (across - 1)) // across
    return [
        joined([fit(of, min(each, least)) for of in cells[start : start + across]])
        for start in range(0, len(cells), across)
    ]


def _path_tone(word: str) -> Tone:
    return {"PIX": Tone.GOOD, "PXB": Tone.GOOD, "SYS": Tone.BAD}.get(word, Tone.WARNING)
