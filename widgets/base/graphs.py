"""Graphs in the theme's load colors; the height of the blocks shows the same without colors."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter

from widgets.base.lines import Line, Run, Tone

BLOCKS = "▁▂▃▄▅▆▇█"
_FILLED = " " + BLOCKS
_LOADS = (Tone.LOW_LOAD, Tone.LOAD, Tone.HIGH_LOAD)


def _highest(values: Sequence[float | None], top: float | None) -> float:
    """Return what the full height stands for: `top`, else the largest value."""
    return top if top is not None else max((value for value in values if value is not None), default=0.0)


def graph(values: Sequence[float | None], top: float | None = None) -> Line:
    """Return one block a value, scaled to the largest (or `top`); a missing value is a dim dot."""
    highest = _highest(values, top)
    marks = [_mark(value, highest) for value in values]
    runs = groupby(marks, itemgetter(1))
    return tuple(Run("".join([block for block, _ in run]), tone) for tone, run in runs)


def tall_graph(values: Sequence[float | None], rows: int, top: float | None = None) -> list[Line]:
    """Return a graph of so many rows, scaled as by `graph`; a missing value is a dim dot below."""
    highest = _highest(values, top)
    steps = len(BLOCKS) * rows
    heights = [
        -1 if value is None else max(1, int(min(1.0, value / highest) * steps)) if highest > 0 else 1
        for value in values
    ]
    lines: list[Line] = []
    for row in range(rows - 1, -1, -1):
        below = row * len(BLOCKS)
        blocks = [_FILLED[max(0, min(height - below, len(BLOCKS)))] for height in heights]
        lines.append((Run("".join(blocks), _LOADS[row * len(_LOADS) // rows]),))
    if -1 not in heights:
        return lines
    # Where nothing is known, the lowest row has dots.
    marks = (
        (("·", Tone.DIM) if height < 0 else (block, _LOADS[0]))
        for height, block in zip(heights, blocks, strict=True)
    )
    runs = groupby(marks, itemgetter(1))
    return [*lines[:-1], tuple(Run("".join([block for block, _ in run]), tone) for tone, run in runs)]


def _mark(value: float | None, highest: float) -> tuple[str, Tone]:
    if value is None:
        return "·", Tone.DIM
    if highest <= 0:
        return BLOCKS[0], Tone.DIM
    share = value / highest
    if share >= 1:
        return BLOCKS[-1], _LOADS[-1]
    return (BLOCKS[int(share * 7.999)], _LOADS[int(share * 3)]) if share > 0 else (BLOCKS[0], _LOADS[0])
