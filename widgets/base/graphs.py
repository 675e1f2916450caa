"""Graphs of one row in the theme's load colors; the height of the blocks shows the same without colors."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from widgets.base.figures import sparkline
from widgets.base.lines import Line, Run, Tone

_LOADS = (Tone.LOW_LOAD, Tone.LOAD, Tone.HIGH_LOAD)


def graph(values: Sequence[float | None], top: float | None = None) -> Line:
    """Return one block a value, scaled to the largest (or `top`); a missing value is a dim dot."""
    marks = sparkline(values, top)
    highest = top if top is not None else max((value for value in values if value is not None), default=0.0)
    tones = [_tone(value, highest) for value in values]
    runs = groupby(zip(marks, tones, strict=True), key=lambda pair: pair[1])
    return tuple(Run("".join(mark for mark, _ in pairs), tone) for tone, pairs in runs)


def _tone(value: float | None, highest: float) -> Tone:
    if value is None or highest <= 0:
        return Tone.DIM
    return _LOADS[max(0, min(2, int(3 * value / highest)))]
