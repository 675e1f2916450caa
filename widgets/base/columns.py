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
    shown = _that_fit([_Sized.of(column) for column in columns], width)
    total = sum(sized.room for sized in shown) + _GAP * (len(shown) - 1)
    headings: list[Run] = []
    rows: list[list[Run]] = [[] for _ in ids]
    for number, sized in enumerate(shown):
        column, gap = sized.column, Run(" " * _GAP)
        if number:
            headings.append(gap)
        title = (Run(column.title, Tone.DIM),)
        headings.extend(_padded(title, cell_len(column.title), sized.room, column.to_right))
        for row, (cell, cells, key) in enumerate(zip(column.cells, sized.cells, ids, strict=True)):
            if number:
                rows[row].append(gap)
            else:
                is_selected = bool(key) and key == selected
                tone = Tone.CURSOR if is_selected else None
                cell = tuple(run._replace(tone=tone or run.tone, id=key) for run in cell)
            rows[row].extend(_padded(cell, cells, sized.room, column.to_right))
    lines = [tuple(headings), *map(tuple, rows)]
    return [fit(line, width) for line in lines] if total > width else lines


@dataclass(eq=False)
class _Sized:
    """A column, the widths of its cells, and the room that it gets."""

    column: Column
    cells: list[int]
    needed: int
    room: int

    @classmethod
    def of(cls, column: Column) -> _Sized:
        cells = [width_of(cell) for cell in column.cells]
        title = max(column.least, cell_len(column.title), 1)
        needed = max(title, *cells, 0)
        return cls(column, cells, needed, title if column.grows else needed)


def _that_fit(columns: Sequence[_Sized], width: int) -> list[_Sized]:
    """Return the columns that there is room for, in their order; those that grow share the rest."""
    chosen: list[_Sized] = []
    left = width + _GAP
    for sized in sorted(columns, key=lambda sized: sized.column.importance):
        if _GAP + sized.room <= left or sized.column.importance == 1:
            chosen.append(sized)
            left -= _GAP + sized.room
    shown = [sized for sized in columns if sized in chosen]
    for sized in shown:
        more = max(0, min(left, sized.needed - sized.room))
        sized.room += more
        left -= more
    return shown


def _padded(cell: Line, cells: int, room: int, to_right: bool) -> Line:
    if cells > room:
        return fit(cell, room)
    if cells == room:
        return cell
    pad = Run(" " * (room - cells))
    return (pad, *cell) if to_right else (*cell, pad)
