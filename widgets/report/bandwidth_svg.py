"""Measured bandwidth as a picture: a bar for each test, with the limit of its path."""

from __future__ import annotations

from collections.abc import Sequence

from probes.bandwidth.model.result import Result
from widgets.bandwidth.result import mark_of
from widgets.base.figures import short
from widgets.base.lines import Run, Tone, line
from widgets.report.svg import CELL, Drawing

_ROW = 26.0
_BAR = 16.0
_LABEL_CELLS = 34
_BARS = 420.0
_VALUE = 150.0


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
