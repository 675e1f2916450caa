"""A table whose columns are left out in the order of their importance where there is no room for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from widgets.base.lines import Line, Run, Tone, fit, width_of

_GAP = 2


@dataclass(frozen=True)
class Column:
    """A column with one cell a row."""

    title: str
    cells: Sequence[Line]
    importance: int  # 1: shown first, and never left out
    to_right: bool = False  # figures
    least: int = 0  # cells, so that the columns to the right do not move with each figure
    grows: bool = False  # shrinks to `least` before columns are left out, and takes the room that is left


def draw_columns(columns: Sequence[Column], ids: Sequence[str], width: int, selected: str = "") -> list[Line]:
    """Draw a heading and one row an id; the first cell of the selected row is marked."""
    shown, cells = _that_fit(columns, width)
    heading = _row([(Run(column.title, Tone.DIM),) for column in shown], shown, cells, width)
    lines = [heading]
    for row, key in enumerate(ids):
        first, *rest = (column.cells[row] for column in shown)
        is_selected = bool(key) and key == selected
        marked = tuple(run._replace(tone=Tone.CURSOR if is_selected else run.tone, id=key) for run in first)
        lines.append(_row([marked, *rest], shown, cells, width))
    return lines


def _that_fit(columns: Sequence[Column], width: int) -> tuple[list[Column], list[int]]:
    """Return the columns that there is room for, in their order, and their widths."""
    chosen: list[Column] = []
    left = width + _GAP
    for column in sorted(columns, key=lambda column: column.importance):
        need = _GAP + (max(column.least, cell_len(column.title)) if column.grows else _needed(column))
        if need > left and column.importance > 1:
            continue
        chosen.append(column)
        left -= need
    shown = [column for column in columns if column in chosen]
    widths = []
    for column in shown:
        needed = _needed(column)
        if column.grows:
            least = max(column.least, cell_len(column.title))
            more = max(0, min(left, needed - least))
            left -= more
            needed = least + more
        widths.append(needed)
    return shown, widths


def _needed(column: Column) -> int:
    return max(column.least, cell_len(column.title), *map(width_of, column.cells), 0)


def _row(cells: Sequence[Line], columns: Sequence[Column], widths: Sequence[int], width: int) -> Line:
    runs: list[Run] = []
    for number, (cell, column, room) in enumerate(zip(cells, columns, widths, strict=True)):
        if number:
            runs.append(Run(" " * _GAP))
        pad = Run(" " * max(0, room - width_of(cell)))
        runs.extend((pad, *cell) if column.to_right and width_of(cell) <= room else fit(cell, room))
    row = tuple(run for run in runs if run.text)
    return fit(row, width) if width_of(row) > width else row
