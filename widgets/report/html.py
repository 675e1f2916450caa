"""The report as one HTML file: no scripts, no requests, its style sheet and pictures inside.

Jinja2 escapes every value. The Content-Security-Policy allows the page's own style sheet, by its hash, and
nothing else.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from hashlib import sha256
from importlib import resources
from xml.etree import ElementTree as ET

from markupsafe import Markup

from probes.bandwidth.model.result import Result
from probes.base.text import printable
from probes.setup.report import Report
from widgets.bandwidth.result import mark_of
from widgets.base.figures import short
from widgets.base.lines import Line, Run, Tone, line
from widgets.doctor.findings import highlights_of
from widgets.node.boxes import Switch, counted_nvswitches, detour_text, switches_by_numa
from widgets.node.endpoint_lines import NO_FIGURES, Detail, EndpointLines
from widgets.node.highlights import Highlights
from widgets.node.topology import numa_title
from widgets.node.topology_list import unknown_last
from widgets.report.page import environment, texts_of

# The colors of the elements are classes of the page's style sheet, and their text is escaped.

CELL = 7.3  # width of a character of the page's 12 px monospace font, in px
LINE_HEIGHT = 16.0
_FONT = {"font-family": "DejaVu Sans Mono, Liberation Mono, Menlo, Consolas, monospace", "font-size": "12"}
# Where the page's style sheet does not apply, such as in a picture cut out of it: fill and stroke by class.
_SHAPES = {
    "box": ("#f4f6f8", "#c9d1d9"),
    "box gpu": ("#ffffff", "#4b7d00"),
    "box nic": ("#ffffff", "#0a5fb4"),
    "box warning": ("#fdf1d3", "#8a5a00"),
    "box bad": ("#fde5e3", "#b3261e"),
    "numa": ("none", "#c9d1d9"),
    "track": ("#f4f6f8", "none"),
    "bar": ("#5b6470", "none"),
    "bar good": ("#1a7f37", "none"),
    "bar warning": ("#8a5a00", "none"),
    "bar bad": ("#b3261e", "none"),
    "limit": ("none", "#1b1f24"),
}
_TEXTS = {
    Tone.DIM: "#5b6470",
    Tone.GPU: "#4b7d00",
    Tone.NIC: "#0a5fb4",
    Tone.GOOD: "#1a7f37",
    Tone.WARNING: "#8a5a00",
    Tone.BAD: "#b3261e",
}
_ROW = 26.0
_BAR = 16.0
_LABEL_CELLS = 34
_BARS = 420.0
_VALUE = 150.0
_CHIP_CELLS = 30
_CHIP = _CHIP_CELLS * CELL + 12
_TITLE = 20.0
_GAP = 8.0
_PAD = 8.0
_MOST_COLUMNS = 2  # NUMA nodes beside each other


class Drawing:
    """An SVG that grows downwards; `text` returns it when it is complete. Lengths are in px."""

    def __init__(self, width: float, label: str) -> None:
        self.width = width
        self._root = ET.Element(
            "svg",
            {"xmlns": "http://www.w3.org/2000/svg", "role": "img", "aria-label": printable(label), **_FONT},
        )

    def box(self, x: float, y: float, width: float, height: float, name: str) -> None:
        """Draw a box with round corners."""
        size = {"x": _px(x), "y": _px(y), "width": _px(width), "height": _px(height), "rx": "4"}
        ET.SubElement(self._root, "rect", {**size, **_shape(name)})

    def rule(self, x: float, top: float, bottom: float, name: str) -> None:
        """Draw a vertical line."""
        ends = {"x1": _px(x), "x2": _px(x), "y1": _px(top), "y2": _px(bottom)}
        ET.SubElement(self._root, "line", {**ends, **_shape(name)})

    def words(self, x: float, y: float, line: Line, width: float = 10_000.0, at_end: bool = False) -> None:
        """Write a line of runs with its base line at `y`; the last run is cut at `width`."""
        text = ET.SubElement(self._root, "text", {"x": _px(x), "y": _px(y)})
        if at_end:
            text.set("text-anchor", "end")
        left = max(1, int(width / CELL))
        for run in line:
            shown = printable(run.text)
            if len(shown) > left:
                shown = shown[: left - 1] + "…" if left > 0 else ""
            if shown:
                piece = ET.SubElement(text, "tspan", {"class": run.tone.value})
                if run.tone in _TEXTS:
                    piece.set("fill", _TEXTS[run.tone])
                piece.text = shown
                left -= len(shown)

    def text(self, height: float) -> str:
        """Return the SVG element of this height."""
        self._root.set("viewBox", f"0 0 {_px(self.width)} {_px(height)}")
        self._root.set("width", _px(self.width))
        self._root.set("height", _px(height))
        return ET.tostring(self._root, encoding="unicode")


def _shape(name: str) -> dict[str, str]:
    fill, stroke = _SHAPES.get(name) or _SHAPES[name.partition(" ")[0]]
    return {"class": name, "fill": fill, "stroke": stroke}


def box_class(tone: Tone) -> str:
    """Return the class of a box by its tone: "box", or "box warning"."""
    return "box" if tone in (Tone.PLAIN, Tone.DIM) else f"box {tone.value}"


def _px(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".")


def draw_bandwidth(results: Sequence[Result]) -> str:
    """Return the SVG; "" if no result is a bandwidth. A tick marks the limit of each path."""
    bars = [(result, result.gbps) for result in results if result.gbps is not None]
    if not bars:
        return ""
    most = max(max(gbps, result.limit_gbps or 0.0) for result, gbps in bars) or 1.0
    labels = max(len(result.title) for result, _ in bars)
    left = min(labels, _LABEL_CELLS) * CELL + 12
    drawing = Drawing(left + _BARS + _VALUE, f"Measured bandwidth of {len(bars)} tests, in Gb/s")
    for number, (result, gbps) in enumerate(bars):
        top = number * _ROW + 4
        mark = mark_of(result)
        drawing.words(left - 8, top + 12, line(result.title), left - 12, at_end=True)
        drawing.box(left, top, _BARS, _BAR, "track")
        drawing.box(left, top, max(1.0, gbps / most * _BARS), _BAR, f"bar {mark.tone.value}")
        limit = ""
        if result.limit_gbps:
            drawing.rule(left + result.limit_gbps / most * _BARS, top - 2, top + _BAR + 2, "limit")
            limit = f" of {short(result.limit_gbps)}"
        figure = (mark, Run(f" {short(gbps)}{limit} Gb/s", Tone.PLAIN))
        drawing.words(left + _BARS + 8, top + 12, figure)
    return drawing.text(len(bars) * _ROW + 4)


def draw_topology(report: Report) -> str:
    """Return the SVG; "" if the node has neither GPUs nor NICs."""
    topology = report.examination.topology
    if not topology.gpus and not topology.nics:
        return ""
    return _Topology(report, highlights_of(report.examination, report.judgment.findings)).draw()


class _Topology:
    """The layout: a box is as wide as two chips and what is nested in it."""

    def __init__(self, report: Report, highlights: Highlights) -> None:
        self._node = report.examination.node
        self._topology = report.examination.topology
        self._highlights = highlights
        self._lines = EndpointLines(self._node, self._topology, NO_FIGURES, highlights, Detail.FULL)
        self._numas = switches_by_numa(self._topology)
        self._across = min(_MOST_COLUMNS, len(self._numas))
        self._each = max(map(self._width, self._numas.values()))
        label = f"Topology of {len(self._topology.gpus)} GPUs and {len(self._topology.nics)} NICs"
        self._drawing = Drawing(self._across * self._each + (self._across - 1) * _GAP, label)

    def draw(self) -> str:
        numas, across, each = self._numas, self._across, self._each
        numbers = sorted(numas, key=unknown_last)
        top = 0.0
        for start in range(0, len(numbers), across):
            row = numbers[start : start + across]
            height = max(self._height(numas[number]) for number in row)
            for place, number in enumerate(row):
                title = numa_title(self._node, number, numas[number], self._highlights)
                self._box(place * (each + _GAP), top, each, height, numas[number], title, "numa")
            top += height + _GAP
        return self._drawing.text(top)

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
        self, x: float, y: float, width: float, height: float, switch: Switch, title: Line, name: str
    ) -> None:
        drawing = self._drawing
        drawing.box(x, y, width, height, name)
        drawing.words(x + _PAD, y + 14, title, width - 2 * _PAD)
        top = y + _TITLE
        for below in switch.boxed():
            lowest = below.folded()[1]
            tall = self._height(lowest)
            inside = width - 2 * _PAD
            heading, tone = self._switch_title(below, inside)
            self._box(x + _PAD, top, inside, tall, lowest, heading, box_class(tone))
            top += tall + _GAP
        for row in self._rows(switch):
            for place, end in enumerate(row):
                if end:
                    self._chip(x + _PAD + place * (_CHIP + _GAP), top, end)
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

    def _chip(self, x: float, y: float, end: str) -> None:
        """Draw a GPU or a NIC: name and speed, and below its addresses; two rows for each port."""
        name, mark = self._lines[end][0][0], self._highlights.marks.get(end)
        tone = name.tone if mark is None else mark.tone
        self._drawing.box(x, y, _CHIP, self._chip_height(end), box_class(tone))
        for number, row in enumerate(self._rows_of_chip(end)):
            self._drawing.words(x + 6, y + 14 + number * LINE_HEIGHT, row, _CHIP - 12)

    def _rows_of_chip(self, end: str) -> list[Line]:
        """Return two rows a port; the address begins with two spaces in the line of an endpoint."""
        rows: list[Line] = []
        for port in self._lines[end]:
            place = next((at for at, run in enumerate(port) if run.text.startswith("  ")), len(port))
            address = "".join(run.text for run in port[place:]).strip()
            head = (
                Run(f" {run.text} ", run.tone) if run == self._highlights.marks.get(end) else run
                for run in port[:place]
            )
            rows.extend((tuple(head), (Run(address, Tone.DIM),)))
        return rows


def html_of(report: Report, version: str) -> str:
    """Return the HTML document; `version`: of gdrtop."""
    style = resources.files("widgets.report").joinpath("page.css").read_text(encoding="utf-8")
    return (
        environment(autoescape=True)
        .get_template("page.html.j2")
        .render(
            texts_of(report, version),
            style=Markup(style),  # the package's own file
            style_hash=base64.b64encode(sha256(style.encode()).digest()).decode(),
            topology=Markup(draw_topology(report)),  # ElementTree has escaped it
            bandwidth=Markup(draw_bandwidth([measured.result for measured in report.measured])),
        )
    )
