"""Nested boxes of lines, as lstopo draws a machine in text."""

from __future__ import annotations

from collections.abc import Sequence

from widgets.base.lines import Line, Run, Tone, cut, fit, width_of

ROUND = "╭╮╰╯"
SQUARE = "┌┐└┘"


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
