"""The topology as nested boxes (NUMA node, PCIe switch, GPU and NIC), or as a list if room is short."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import cache

from probes.base.frozen import frozen
from probes.base.origin import Source
from probes.base.text import plural
from probes.base.unknown import Unknown
from probes.facts.node import Node
from probes.facts.rdma.devices import RdmaFacts
from probes.topology.paths import Topology
from widgets.base.lines import Line, Run, Tone, fit, paragraphs, width_of, wrapped
from widgets.node.boxes import (
    ROUND,
    UNKNOWN_NUMA,
    Switch,
    content,
    counted_nvswitches,
    draw_direct,
    draw_switches,
    frame,
    least_width,
    narrowest_cells,
    switches_by_numa,
)
from widgets.node.endpoint_lines import NO_FIGURES, Detail, EndpointLines, LiveFigures, common_model
from widgets.node.highlights import NOT_USABLE_MARK, Highlights, not_usable_legend
from widgets.node.topology_list import Columns, draw_list, measure, unknown_last

# Returns the graphs of a GPU or NIC, of so many cells, one for each of its lines; () for none.
Trends = Callable[[str, int], Sequence[Line]]
LEGEND = "graphs: 2 min, █ = link rate"
_LEAST_CELLS, _MOST_CELLS = 8, 60


def graph_cells(numas: Mapping[int, Switch], lines: Mapping[str, list[Line]], inside: int) -> int:
    """Return the cells of a graph behind each line, if the boxes are `inside` cells wide; 0: no room."""
    narrowest = min((narrowest_cells(switch, lines, inside) for switch in numas.values()), default=0)
    cells = narrowest - _longest(lines) - 1
    return min(_MOST_CELLS, cells) if cells >= _LEAST_CELLS else 0


def with_graphs(lines: Mapping[str, list[Line]], trends: Trends, cells: int) -> dict[str, list[Line]]:
    """Return the lines of each endpoint with its graphs below each other."""
    longest = _longest(lines)
    drawn: dict[str, list[Line]] = {}
    for end, own in lines.items():
        graphs = trends(end, cells)
        drawn[end] = [
            (*fit(line, longest), Run(" ", id=end), *(run._replace(id=end) for run in graphs[number]))
            if number < len(graphs)
            else line
            for number, line in enumerate(own)
        ]
    return drawn


def _longest(lines: Mapping[str, list[Line]]) -> int:
    return max((width_of(line) for own in lines.values() for line in own), default=0)


class Style(Enum):
    """How the topology is drawn, from the lowest drawing to the highest."""

    LIST = "list"  # one line a GPU, with its best NIC
    RULES = "rules"  # boxes for switches, a rule for each NUMA node
    BOXES = "boxes"  # boxes for NUMA nodes too


@frozen
class Form:
    """How the topology is drawn, and how much of each endpoint."""

    style: Style
    detail: Detail
    columns: Columns | None = None  # of a list, as wide as its lines were when the form was chosen
    has_graphs: bool = False  # behind the lines of boxes


def heading(node: Node, topology: Topology, has_graphs: bool = False) -> str:
    """Return what the drawing shows and what its arrows and graphs mean, for the panel's title."""
    gpus = f"{len(topology.gpus)} × {common_model(node) or 'GPU'}" if topology.gpus else ""
    nics = plural(len(topology.nics), "NIC") if topology.nics else ""
    what = ", ".join(filter(None, (gpus, nics)))
    graphs = f" · {LEGEND}" if has_graphs else ""
    return f"{what} · Gb/s: GPU over PCIe, NIC over RDMA{graphs}" if what else ""


def choose(
    node: Node,
    topology: Topology,
    width: int,
    rows: int | None = None,
    live: LiveFigures = NO_FIGURES,
    highlights: Highlights | None = None,
) -> Form:
    """Return the richest form that is no higher than `rows` and cuts nothing; None: any height.

    It is a list if a filter is set (`highlights.only`).
    """
    highlights = highlights or Highlights()
    if rows is not None:
        rows -= len(not_usable_legend(topology, width, highlights))

    @cache
    def lines_of(detail: Detail) -> EndpointLines:
        return EndpointLines(node, topology, live, highlights, detail)

    def listed() -> Form:
        for detail in (Detail.USUAL, Detail.SHORT):
            columns = measure(lines_of(detail), width)
            if not columns.is_broken or detail is Detail.SHORT:
                break
        return Form(Style.LIST, detail, columns)

    names = sum(len(end.label) for end in (*topology.gpus, *topology.nics))
    # Of hundreds of GPUs and NICs, not even the names have room.
    if highlights.only is not None or (rows is not None and names > rows * width):
        return listed()
    numas = switches_by_numa(topology)

    def height(style: Style, detail: Detail) -> int:
        return len(_draw_boxes(node, topology, numas, lines_of(detail), highlights, width, style))

    # Rules with the least detail are the lowest of all boxes.
    if rows is not None and height(Style.RULES, Detail.SHORT) > rows:
        return listed()

    def richest(style: Style) -> Detail | None:
        """Return the most detail that cuts nothing and needs no more rows than the least."""
        inside = _inside(style, width)
        if not _is_whole(numas, lines_of(Detail.SHORT), inside):
            return None
        least = height(style, Detail.SHORT)
        more = (level for level in sorted(Detail, reverse=True) if _is_whole(numas, lines_of(level), inside))
        return next(level for level in more if height(style, level) <= least)

    boxes, rules = richest(Style.BOXES), richest(Style.RULES)
    if rows is None:
        return Form(Style.BOXES, boxes if boxes is not None else Detail.SHORT)
    for style, detail in ((Style.BOXES, boxes), (Style.RULES, rules)):
        if detail is None or (rules is not None and detail < rules):
            continue
        if height(style, detail) <= rows:
            return Form(style, detail)
    return listed()


def draw(
    node: Node,
    topology: Topology,
    width: int,
    live: LiveFigures = NO_FIGURES,
    highlights: Highlights | None = None,
    form: Form | None = None,
    trends: Trends | None = None,
) -> Sequence[Line]:
    """Draw the topology, `width` cells wide, in the form chosen for the same width and filter.

    Without a form: in the richest one of any height. `trends`: graphs, drawn if the form has them.
    """
    highlights = highlights or Highlights()
    if not topology.gpus and not topology.nics:
        return _nothing_here(node, width)
    form = form or choose(node, topology, width, None, live, highlights)
    lines = EndpointLines(node, topology, live, highlights, form.detail)
    below = [*not_usable_legend(topology, width, highlights), *_apart(node, width)]
    if form.style is Style.LIST:
        columns = form.columns or measure(lines, width)
        return draw_list(lines, width, columns).followed_by(below)
    numas = switches_by_numa(topology)

    def boxes(lines: Mapping[str, list[Line]]) -> list[Line]:
        if trends is not None and form.has_graphs:
            cells = graph_cells(numas, lines, _inside(form.style, width))
            lines = with_graphs(lines, trends, cells) if cells else lines
        return _draw_boxes(node, topology, numas, lines, highlights, width, form.style)

    drawn = boxes(lines)
    if highlights.measured:
        figures = {end: run._replace(id=end) for end, run in highlights.measured.items()}
        with_figures = {
            end: [(*first, Run(" ", id=end), figures[end]), *more] if end in figures else [first, *more]
            for end, (first, *more) in lines.items()
        }
        measured = boxes(with_figures)
        drawn_figures = set(figures.values())
        whole = sum(run in drawn_figures for line in measured for run in line)
        if len(measured) == len(drawn) and whole == len(highlights.measured):  # moves and cuts nothing
            drawn = measured
    return [*drawn, *below]


def has_room_for_graphs(
    node: Node, topology: Topology, width: int, live: LiveFigures, highlights: Highlights, form: Form
) -> bool:
    """Return whether a drawing in this form has graphs."""
    if form.style is Style.LIST:
        return False
    lines = EndpointLines(node, topology, live, highlights, form.detail)
    return graph_cells(switches_by_numa(topology), lines, _inside(form.style, width)) > 0


def _inside(style: Style, width: int) -> int:
    """Return the cells inside the boxes of NUMA nodes."""
    return width - (4 if style is Style.BOXES else 0)


def _draw_boxes(
    node: Node,
    topology: Topology,
    numas: dict[int, Switch],
    lines: Mapping[str, list[Line]],
    highlights: Highlights,
    width: int,
    style: Style,
) -> list[Line]:
    drawn: list[Line] = []
    inside = _inside(style, width)
    before: int | None = None
    for number in sorted(numas, key=unknown_last):
        is_brief = style is Style.RULES
        title = numa_title(node, number, numas[number], highlights, is_brief)
        between = "" if before is None or number == UNKNOWN_NUMA else _distance(node, before, number)
        body = [
            *draw_switches(topology, numas[number], lines, highlights, inside),
            *draw_direct(numas[number], lines, inside),
        ]
        if is_brief:
            title = (Run("──", Tone.DIM), *title)
            left = width - width_of(title)
            drawn.append((*title, Run("─" * left, Tone.DIM)) if left >= 0 else fit(title, width))
            drawn.extend(body)
        else:
            if before is not None:
                is_known = number != UNKNOWN_NUMA
                drawn.append((Run(f"   ║ SMP · {between}".rstrip(" ·"), Tone.DIM),) if is_known else ())
            drawn.extend(frame(title, body, width, ROUND))
        before = number
    return drawn


def numa_title(
    node: Node, number: int, below: Switch, highlights: Highlights, is_brief: bool = False
) -> Line:
    """Return the number of a NUMA node and the session's mark, and its CPUs and NVSwitches if not brief."""
    if number == UNKNOWN_NUMA:
        return (Run(" NUMA node unknown ", Tone.TITLE), Run("(none in the firmware tables) ", Tone.DIM))
    cpus = ""
    for numa in () if isinstance(node.numa, Unknown) else node.numa.nodes:
        if numa.number == number and not isinstance(numa.cpulist, Unknown) and numa.cpulist:
            cpus = f"· CPU {numa.cpulist} "
    count = counted_nvswitches(sum(switch.only_nvswitches for switch in below.switches.values()))
    is_other = number in highlights.usable.other_numa_nodes
    mark = Run(f"{NOT_USABLE_MARK} " if is_other else "", Tone.WARNING)
    rest = "" if is_brief else cpus + (f"· {count} " if count else "")
    return (Run(f" NUMA {number} ", Tone.TITLE), mark, Run(rest, Tone.DIM))


def _distance(node: Node, a: int, b: int) -> str:
    """Return the distance of two NUMA nodes as the firmware reports it; what crosses it is SYS."""
    for numa in () if isinstance(node.numa, Unknown) else node.numa.nodes:
        if numa.number == a and not isinstance(numa.distances, Unknown) and b in numa.distances:
            return f"NUMA distance {numa.distances[b]}"
    return ""


def _is_whole(numas: dict[int, Switch], lines: Mapping[str, list[Line]], width: int) -> bool:
    """Return whether no box and no line is wider than `width`."""
    widths = [least_width(switch, lines) for below in numas.values() for switch in below.boxed()]
    widths.extend(width_of(line) for below in numas.values() for line in content(below, lines))
    return max(widths, default=0) <= width


def _apart(node: Node, width: int) -> list[Line]:
    """Name the devices that are no ends of paths: what manages NVSwitches, and software RDMA (rxe, siw)."""
    texts: list[str] = []
    known_by = {} if isinstance(node.pci, Unknown) else node.pci.management
    if known_by:
        managing = node.rdma.management if isinstance(node.rdma, RdmaFacts) else ()
        names = ", ".join([device.name for device in managing] or list(known_by))
        reasons = "; ".join(dict.fromkeys(known_by.values()))
        texts.append(f"NVSwitch management (carries no data): {names} · {reasons}")
    devices = node.rdma.devices if isinstance(node.rdma, RdmaFacts) else ()
    if unplaced := [device.name for device in devices if isinstance(device.bdf, Unknown)]:
        texts.append(f"RDMA devices without a PCI function: {', '.join(unplaced)}")
    pci = None if isinstance(node.pci, Unknown) else node.pci
    if pci is not None and pci.other_gpus and not pci.gpus and pci.nics:
        texts.append(f"This node has {pci.other_gpus}.")
    return paragraphs(texts, width, Tone.DIM)


def _nothing_here(node: Node, width: int) -> list[Line]:
    if isinstance(node.pci, Unknown):
        text = f"The PCI devices could not be read: {node.pci} ({node.pci.source})."
        return [*wrapped(text, width), *_apart(node, width)]
    count = len(node.pci.functions)
    text = f"This node has no NVIDIA GPU and no RDMA NIC among its {count} PCI functions."
    if node.pci.other_gpus:
        text += f" It has {node.pci.other_gpus}."
    hint = wrapped("To try gdrtop on a simulated node: gdrtop --demo", width, Tone.DIM)
    hint = [(), *hint] if node.origin.source is Source.LIVE else []
    return [*wrapped(text, width), *hint, *_apart(node, width)]
