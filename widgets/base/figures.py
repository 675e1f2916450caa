"""Figures as short text: an unknown figure is `?`, never 0."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import TypeVar

from probes.base.text import minutes as minutes  # drawings import it with the rest
from probes.base.unknown import Maybe, Unknown
from widgets.base.lines import Line, Run, Tone

T = TypeVar("T")
UNKNOWN_MARK = "?"


def figure_run(value: Maybe[T], text: Callable[[T], str] = str) -> Run:
    """Return the text of a figure for a table; a dim `?` for an unknown one."""
    return Run(UNKNOWN_MARK, Tone.DIM) if isinstance(value, Unknown) else Run(text(value))


def short(value: Maybe[float]) -> str:
    """Format a number with two significant digits, as far as needed: 0.04, 0.4, 4.2, 42, 421."""
    if isinstance(value, Unknown):
        return UNKNOWN_MARK
    if value >= 9.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 0.05 or value == 0 else f"{value:.2f}"


def gbps(value: Maybe[float]) -> str:
    """Format a rate in 10^9 bits a second: "372 Gb/s", from 1000 on "2.97 Tb/s"."""
    if not isinstance(value, Unknown) and value >= 1000:
        return f"{value / 1000:.2f} Tb/s"
    return f"{short(value)} Gb/s"


def in_gbps(bytes_per_second: Maybe[float]) -> Maybe[float]:
    """Convert NVML's PCIe rates to 10^9 bits a second, the unit of NICs and links."""
    return bytes_per_second if isinstance(bytes_per_second, Unknown) else bytes_per_second * 8e-9


def gibibytes(value: Maybe[int]) -> str:
    """Format a size in GiB: "80 GiB"; a small one in MiB."""
    if isinstance(value, Unknown):
        return UNKNOWN_MARK
    if 0 < value < 1 << 30:
        return f"{value / (1 << 20):.0f} MiB"
    return f"{short(value / (1 << 30))} GiB"


def local_time(seconds: float, form: str = "%H:%M:%S %Z") -> str:
    """Format seconds since 1970 as local time with its zone: "14:03:11 EST"."""
    return time.strftime(form, time.localtime(seconds))


def ago(seconds: float) -> str:
    """Format a time that has passed: "just now", "12 min ago", "2 h ago", "3 d ago"."""
    whole = max(0, int(seconds))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if whole >= size:
            return f"{whole // size} {unit} ago"
    return "just now"


def share(value: Maybe[float], most: Maybe[float]) -> str:
    """Format a rate as a share of the line rate: "93%"; "" if either is unknown or the line rate is 0."""
    if isinstance(value, Unknown) or isinstance(most, Unknown) or most <= 0:
        return ""
    return f"{value / most * 100:.0f}%"


def used_of(used_bytes: Maybe[int], total_bytes: Maybe[int]) -> str:
    """Format memory in use and in total, in GiB: "39/80G"."""
    used = UNKNOWN_MARK if isinstance(used_bytes, Unknown) else f"{used_bytes / (1 << 30):.0f}"
    total = UNKNOWN_MARK if isinstance(total_bytes, Unknown) else f"{total_bytes / (1 << 30):.0f}"
    return f"{used}/{total}G"


def percent(value: Maybe[int]) -> str:
    """Format a percentage: "92%"."""
    return f"{UNKNOWN_MARK}%" if isinstance(value, Unknown) else f"{value}%"


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
