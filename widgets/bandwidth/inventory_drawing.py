"""What can be measured on a node: the tools that are here, what they lack, and how to get the others."""

from __future__ import annotations

from collections.abc import Sequence

from probes.bandwidth.planning.inventory import Available
from probes.base.unknown import Unknown
from widgets.bandwidth.series import draw_purpose
from widgets.base.lines import Line, Run, Tone, wrapped


def draw_inventory(available: Sequence[Available], width: int) -> list[Line]:
    """Each tool with version and path, what it proves and what not; the same words once for a family."""
    lines: list[Line] = []
    cells = max((len(one.tool) for one in available), default=0)
    for number, one in enumerate(available):
        lines += _tool(one, cells, width)
        following = available[number + 1] if number + 1 < len(available) else None
        # What is true of several tools in a row is said behind the last of them.
        if one.way_to_get and (following is None or following.way_to_get != one.way_to_get):
            lines += wrapped(f"to get it: {one.way_to_get}", width, Tone.DIM, "    ")
        if following is None or following.purpose.proves != one.purpose.proves:
            lines += draw_purpose(one.purpose, width, "    ")
    return lines


def _tool(one: Available, cells: int, width: int) -> list[Line]:
    mark = Run("✓", Tone.GOOD) if one.can_run and not one.lacks else Run("–", Tone.DIM)
    if one.can_run and one.lacks:
        mark = Run("▲", Tone.WARNING)
    told = [one.lacks] if one.lacks else []
    if one.can_run:
        assert not isinstance(one.path, Unknown)
        version = "version unknown" if isinstance(one.version, Unknown) else f"version {one.version}"
        gpu = ["GPU memory by DMA-BUF or nvidia-peermem"] if one.dmabuf is True else []
        told = [one.path, version, *gpu, *told]
    text = wrapped(" · ".join(told), width - cells - 3, Tone.PLAIN if one.can_run else Tone.DIM)
    lines: list[Line] = [(mark, Run(" "), Run(f"{one.tool:<{cells}}", Tone.TITLE), Run(" "), *text[0])]
    return [*lines, *((Run(" " * (cells + 3)), *more) for more in text[1:])]
