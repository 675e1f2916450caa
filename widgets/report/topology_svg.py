"""The topology as a picture: NUMA nodes side by side, PCIe switches as nested boxes, GPUs beside NICs."""

from __future__ import annotations

from probes.setup.report import Report
from widgets.base.lines import Line, Run, Tone, line
from widgets.node.endpoint_lines import NO_FIGURES, Detail, EndpointLines
from widgets.node.highlights import Highlights
from widgets.node.switch_boxes import Switch, counted_nvswitches, detour_text, switches_by_numa
from widgets.node.topology import numa_title
from widgets.node.topology_list import unknown_last
from widgets.report.page import highlights_of
from widgets.report.svg import CELL, LINE_HEIGHT, Drawing, box_class

_CHIP_CELLS = 30
_CHIP = _CHIP_CELLS * CELL + 12
_TITLE = 20.0
_GAP = 8.0
_PAD = 8.0
_MOST_COLUMNS = 2  # NUMA nodes beside each other


def draw_topology(report: Report) -> str:
    """Return the SVG; "" if the node has neither GPUs nor NICs."""
    topology = report.examination.topology
    if not topology.gpus and not topology.nics:
        return ""
    return _Topology(report, highlights_of(report)).draw()


class _Topology:
    """The layout: a box is as wide as two chips and what is nested in it."""

    def __init__(self, report: Report, highlights: Highlights) -> None:
        self._node = report.examination.node
        self._topology = report.examination.topology
        self._highlights = highlights
        self._lines = EndpointLines(self._node, self._topology, NO_FIGURES, highlights, Detail.FULL)
        marks = highlights.marks
        ends = (*self._topology.gpus, *self._topology.nics)
        self._marks = {end.id: marks.get(end.id) or marks.get(str(end.bdf)) for end in ends}

    def draw(self) -> str:
        numas = switches_by_numa(self._topology)
        numbers = sorted(numas, key=unknown_last)
        across = min(_MOST_COLUMNS, len(numbers))
        each = max(self._width(numas[number]) for number in numbers)
        label = f"Topology of {len(self._topology.gpus)} GPUs and {len(self._topology.nics)} NICs"
        drawing = Drawing(across * each + (across - 1) * _GAP, label)
        top = 0.0
        for start in range(0, len(numbers), across):
            row = numbers[start : start + across]
            height = max(self._height(numas[number]) for number in row)
            for place, number in enumerate(row):
                title = numa_title(self._node, number, numas[number], self._highlights)
                self._box(drawing, place * (each + _GAP), top, each, height, numas[number], title, "numa")
            top += height + _GAP
        return drawing.text(top)

    def _rows(self, switch: Switch) -> list[list[str]]:
        """Return the endpoints directly below: a GPU and a NIC in each row, or two of a kind."""
        gpus = [end.id for end in switch.endpoints if end.is_gpu]
        nics = [end.id for end in switch.endpoints if not end.is_gpu]
        if not gpus or not nics:
            ends = gpus or nics
            return [ends[at : at + 2] for at in range(0, len(ends), 2)]
        rows = max(len(gpus), len(nics))
        return [[*(gpus[at : at + 1] or [""]), *nics[at : at + 1]] for at in range(rows)]

    def _chip_height(self, end: str) -> float:
        return 2 * LINE_HEIGHT * len(self._lines[end]) + 6 if end else 0.0

    def _width(self, switch: Switch) -> float:
        inside = [self._width(below.folded()[1]) for below in switch.boxed()]
        return max([2 * _CHIP + _GAP, *inside]) + 2 * _PAD

    def _height(self, switch: Switch) -> float:
        rows = [max(map(self._chip_height, row)) + _GAP for row in self._rows(switch)]
        below = [self._height(child.folded()[1]) + _GAP for child in switch.boxed()]
        counted = _TITLE if switch.nvswitches else 0.0
        return _TITLE + sum(rows) + sum(below) + counted + _PAD

    def _box(
        self,
        drawing: Drawing,
        x: float,
        y: float,
        width: float,
        height: float,
        switch: Switch,
        title: Line,
        name: str,
    ) -> None:
        drawing.box(x, y, width, height, name)
        drawing.words(x + _PAD, y + 14, title, width - 2 * _PAD)
        top = y + _TITLE
        for below in switch.boxed():
            lowest = below.folded()[1]
            tall = self._height(lowest)
            inside = width - 2 * _PAD
            heading, tone = self._switch_title(below, inside)
            self._box(drawing, x + _PAD, top, inside, tall, lowest, heading, box_class(tone))
            top += tall + _GAP
        for row in self._rows(switch):
            for place, end in enumerate(row):
                if end:
                    self._chip(drawing, x + _PAD + place * (_CHIP + _GAP), top, end)
            top += max(map(self._chip_height, row)) + _GAP
        if switch.nvswitches:
            drawing.words(x + _PAD, top + 12, line(counted_nvswitches(switch.nvswitches)))

    def _switch_title(self, switch: Switch, width: float) -> tuple[Line, Tone]:
        names, lowest = switch.folded()
        detour = detour_text(self._topology, switch, lowest, self._highlights, int(width / CELL))
        marks = self._highlights.marks
        mark = next((marks[name] for name in names if name in marks), Run(""))
        if detour and not mark.text:
            mark = Run("▲", Tone.WARNING)
        shown = " › ".join(name.removeprefix("0000:") for name in names)
        tone = Tone.WARNING if detour else mark.tone if mark.text else Tone.DIM
        runs = (Run(f"switch {shown} ", Tone.DIM), mark, Run(detour, Tone.WARNING))
        return tuple(run for run in runs if run.text), tone

    def _chip(self, drawing: Drawing, x: float, y: float, end: str) -> None:
        """Draw a GPU or a NIC: name and speed, and below its addresses; two rows for each port."""
        name, mark = self._lines[end][0][0], self._marks.get(end)
        tone = name.tone if mark is None else mark.tone
        drawing.box(x, y, _CHIP, self._chip_height(end), box_class(tone))
        for number, row in enumerate(self._rows_of_chip(end)):
            drawing.words(x + 6, y + 14 + number * LINE_HEIGHT, row, _CHIP - 12)

    def _rows_of_chip(self, end: str) -> list[Line]:
        """Return two rows a port; the address begins with two spaces in the line of an endpoint."""
        rows: list[Line] = []
        for port in self._lines[end]:
            place = next((at for at, run in enumerate(port) if run.text.startswith("  ")), len(port))
            address = "".join(run.text for run in port[place:]).strip()
            head = (
                Run(f" {run.text} ", run.tone) if run == self._marks[end] else run for run in port[:place]
            )
            rows.extend((tuple(head), (Run(address, Tone.DIM),)))
        return rows
