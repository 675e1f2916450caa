"""Nested boxes of lines, as lstopo draws a machine in text: PCIe switches with their GPUs and NICs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from probes.base.unknown import known
from probes.topology.endpoints import Endpoint
from probes.topology.graph import NVSWITCH, root_port
from probes.topology.paths import Topology
from widgets.base.lines import Line, Run, Tone, cut, fit, width_of
from widgets.node.highlights import Highlights

ROUND = "╭╮╰╯"
SQUARE = "┌┐└┘"
UNKNOWN_NUMA = -1


def frame(
    title: Line, body: Sequence[Line], width: int, corners: str = SQUARE, tone: Tone = Tone.DIM
) -> list[Line]:
    """Draw a box of exactly `width` cells around the body, with the title in its upper edge."""
    inner = width - 4
    title = cut(title, inner)
    rest = width - 4 - width_of(title)
    lines: list[Line] = [
        (
            Run(f"{corners[0]}─" if title else f"{corners[0]}──", tone),
            *title,
            Run("─" * (rest if title else rest - 1) + f"─{corners[1]}", tone),
        )
    ]
    edge = Run("│ ", tone)
    lines.extend((edge, *fit(line, inner), Run(" │", tone)) for line in body)
    lines.append((Run(f"{corners[2]}{'─' * (width - 2)}{corners[3]}", tone),))
    return lines


def beside(
    blocks: Sequence[Sequence[Line]], widths: Sequence[int], gap: int = 1, are_frames: bool = False
) -> list[Line]:
    """Place blocks side by side, and fill the shorter ones with blank lines.

    `are_frames`: each line has its width already.
    """
    height = max((len(block) for block in blocks), default=0)
    space = Run(" " * gap)
    lines: list[Line] = []
    for row in range(height):
        runs: list[Run] = []
        for number, (block, width) in enumerate(zip(blocks, widths, strict=True)):
            if number:
                runs.append(space)
            if row >= len(block):
                runs.append(Run(" " * width))
            else:
                runs.extend(block[row] if are_frames else fit(block[row], width))
        lines.append(tuple(runs))
    return lines


def columns_that_fit(least: int, count: int, width: int, gap: int = 1) -> int:
    """Return how many boxes of at least `least` cells fit side by side, balanced over the rows."""
    most = max(1, min(count, (width + gap) // (least + gap)))
    rows = -(-count // most) if count else 1
    return -(-count // rows) if count else 1


def _shared(least: int, count: int, width: int, gap: int = 1) -> tuple[int, int]:
    """Return how many boxes fit side by side, and the cells of each."""
    across = columns_that_fit(least, count, width, gap)
    return across, (width - gap * (across - 1)) // across


@dataclass
class Switch:
    """A PCIe switch, known by its upstream port, and what is below it."""

    bdf: str
    switches: dict[str, Switch] = field(default_factory=dict)
    endpoints: list[Endpoint] = field(default_factory=list)
    nvswitches: int = 0

    def all_endpoints(self) -> Iterator[Endpoint]:
        """Yield the endpoints below this switch and the switches below it."""
        yield from self.endpoints
        for below in self.switches.values():
            yield from below.all_endpoints()

    def folded(self) -> tuple[list[str], Switch]:
        """Return a chain of switches that only contain each other as one: all names, and the lowest."""
        names, switch = [self.bdf], self
        while not switch.endpoints and not switch.nvswitches and len(switch.switches) == 1:
            (switch,) = switch.switches.values()
            names.append(switch.bdf)
        return names, switch

    @property
    def only_nvswitches(self) -> int:
        """How many NVSwitches are below, if nothing else is; the title of the NUMA node counts those."""
        _, lowest = self.folded()
        return 0 if lowest.endpoints or lowest.switches else lowest.nvswitches

    def boxed(self) -> list[Switch]:
        """Return the switches below that get a box of their own."""
        return [below for below in self.switches.values() if not below.only_nvswitches]


def switches_by_numa(topology: Topology) -> dict[int, Switch]:
    """Return for each NUMA node a nameless switch that contains everything below the NUMA node."""
    numas: dict[int, Switch] = {}

    def below(bdf: str, numa: int) -> Switch:
        switch = numas.setdefault(numa, Switch(""))
        for port in topology.switches.get(bdf, ()):
            switch = switch.switches.setdefault(port, Switch(port))
        return switch

    for end in (*topology.gpus, *topology.nics):
        below(known(end.to_gpus, ""), known(end.numa_node, UNKNOWN_NUMA)).endpoints.append(end)
    for bdf, facts in topology.graph.nodes.items():
        if facts["kind"] == NVSWITCH and "sysfs_path" in facts:
            below(bdf, known(facts["numa_node"], UNKNOWN_NUMA)).nvswitches += 1
    return numas


def counted_nvswitches(count: int) -> str:
    """Return "1 NVSwitch", "4 NVSwitches"; "" for none."""
    return f"{count} NVSwitch{'es' if count > 1 else ''}" if count else ""


def content(switch: Switch, lines: Mapping[str, list[Line]]) -> list[Line]:
    """Return the lines of what is directly below a switch."""
    own = [line for end in switch.endpoints for line in lines[end.id]]
    return [*own, (Run(counted_nvswitches(switch.nvswitches)),)] if switch.nvswitches else own


def least_width(switch: Switch, lines: Mapping[str, list[Line]]) -> int:
    """Return the width of a box that cuts nothing."""
    names, lowest = switch.folded()
    widths = [8 + 8 * len(names), *map(width_of, content(lowest, lines))]
    return max([*widths, *(least_width(below, lines) for below in lowest.boxed())]) + 4


def draw_switches(
    topology: Topology, switch: Switch, lines: Mapping[str, list[Line]], highlights: Highlights, width: int
) -> list[Line]:
    """Draw the switches below a switch, as many boxes in a row as fit."""
    below = switch.boxed()
    if not below:
        return []
    across, each = _shared(max(least_width(child, lines) for child in below), len(below), width)
    drawn: list[Line] = []
    for start in range(0, len(below), across):
        row = below[start : start + across]
        boxes = [_draw_switch(topology, child, lines, highlights, each) for child in row]
        height = max(map(len, boxes))
        even = [_stretched(box, height, each) for box in boxes]
        drawn.extend(beside(even, [each] * len(row), are_frames=True))
    return drawn


def narrowest_cells(switch: Switch, lines: Mapping[str, list[Line]], width: int) -> int:
    """Return the cells for a line in the narrowest place below a switch that is drawn `width` cells wide."""
    own = content(switch, lines)
    cells = [width]
    if not switch.bdf and own:  # directly below root ports
        cells.append(_shared(max(map(width_of, own)), len(own), width, gap=3)[1])
    below = switch.boxed()
    if below:
        inside = _shared(max(least_width(child, lines) for child in below), len(below), width)[1] - 4
        cells.extend(narrowest_cells(child.folded()[1], lines, inside) for child in below)
    return min(cells)


def draw_direct(switch: Switch, lines: Mapping[str, list[Line]], width: int) -> list[Line]:
    """Draw the endpoints that are directly below root ports, as many in a row as fit."""
    own = content(switch, lines)
    if not own:
        return []
    across, each = _shared(max(map(width_of, own)), len(own), width, gap=3)
    rows = (own[start : start + across] for start in range(0, len(own), across))
    return [line for row in rows for line in beside([[cell] for cell in row], [each] * len(row), gap=3)]


def _draw_switch(
    topology: Topology, switch: Switch, lines: Mapping[str, list[Line]], highlights: Highlights, width: int
) -> list[Line]:
    names, lowest = switch.folded()
    detour = detour_text(topology, switch, lowest, highlights, width)
    tone = Tone.WARNING if detour else Tone.LIT if highlights.on_path.intersection(names) else Tone.DIM
    shown = " switch " + " › ".join(name.removeprefix("0000:") for name in names)
    mark = next((highlights.marks[name] for name in names if name in highlights.marks), None)
    mark = mark or _worst_mark(lowest, highlights)
    if detour and not mark.text:
        mark = Run("▲", Tone.WARNING)
    title: Line = (Run(f"{shown} ", tone), mark, Run(f"{detour} " if mark.text else "", Tone.WARNING))
    body = [*content(lowest, lines), *draw_switches(topology, lowest, lines, highlights, width - 4)]
    return frame(title, body, width, tone=tone)


def _worst_mark(switch: Switch, highlights: Highlights) -> Run:
    """Return the worst mark of what is directly below a switch; an empty run for none."""
    marks = [highlights.marks[end.id] for end in switch.endpoints if end.id in highlights.marks]
    return min(marks, key=lambda mark: mark.tone is not Tone.BAD, default=Run(""))


def detour_text(
    topology: Topology, switch: Switch, lowest: Switch, highlights: Highlights, width: int
) -> str:
    """Return how traffic between a GPU and a NIC below this switch leaves the switch; "" if it does not.

    A detour is drawn at the switch where the path would turn.
    """
    ids = {end.id for end in switch.all_endpoints()}
    detours = [pair for pair in highlights.detours if ids.issuperset(pair)]
    below = [{end.id for end in child.all_endpoints()} for child in lowest.switches.values()]
    if all(any(child.issuperset(pair) for child in below) for pair in detours):
        return ""
    root = root_port(topology.parts, min(detours)[0]).removeprefix("0000:")
    text = f" GPU ⇄ NIC traffic leaves here ↑ {root} ↓ and returns" if root else ""
    return text if text and len(text) + 30 <= width else " ↑↓ via CPU"


def _stretched(box: list[Line], height: int, width: int) -> list[Line]:
    """Return the box with the height of its neighbors."""
    if len(box) == height:
        return box
    tone = (box[1] if len(box) > 2 else box[0])[0].tone
    blank: Line = (Run("│", tone), Run(" " * (width - 2)), Run("│", tone))
    return [*box[:-1], *[blank] * (height - len(box)), box[-1]]
