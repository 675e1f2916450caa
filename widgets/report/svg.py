"""Inline SVG: elements whose colors are classes of the page's style sheet, and whose text is escaped."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from probes.base.text import printable
from widgets.base.lines import Line, Tone

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
        ET.SubElement(
            self._root,
            "line",
            {"x1": _px(x), "x2": _px(x), "y1": _px(top), "y2": _px(bottom), **_shape(name)},
        )

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
