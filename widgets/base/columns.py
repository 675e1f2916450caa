"""A table whose columns are left out in the order of their importance where there is no room for all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rich.cells import cell_len

from probes.base.frozen import frozen
from widgets.base.lazy_lines import LazyLines
from widgets.base.lines import Line, Run, Tone, fit, width_of

T = TypeVar("T")
_GAP = 2
_USES = 30  # drawings, until columns may become narrower again


@frozen
class Column:
    """A column with one cell a row."""

    title: str
    cells: Sequence[Line]
    importance: int  # 1: shown first, and never left out
    to_right: bool = False  # figures
    least: int = 0  # cells, so that the columns to the right do not move with each figure
    grows: bool = False  # shrinks to `least` before columns are left out, and takes the room that is left


def cells_of(rows: Sequence[T], of: Callable[[T], Run]) -> LazyLines:
    """Return the cells of a column, which are made when they are asked for."""
    return LazyLines(len(rows), lambda number: (of(rows[number]),))


class Rooms:
    """The columns of a table that is drawn again and again, so that not every cell is measured each time.

    All cells are measured if the table has other columns or rows, if a cell that was drawn needed more, and
    in every thirtieth drawing.
    """

    def __init__(self) -> None:
        self._of: object = None
        self._uses = 0
        self._shown: list[_Shown] = []
        self.is_outgrown = False  # a cell that was drawn needed more: draw again

    def of(self, columns: Sequence[Column], ids: Sequence[str], width: int) -> list[_Shown]:
        """Return the columns that there is room for, with their rooms."""
        now = width, [(column.title, column.importance, column.least) for column in columns], list(ids)
        self._uses += 1
        if self.is_outgrown or self._uses >= _USES or now != self._of:
            self._shown = _that_fit([_Shown.of(place, column) for place, column in enumerate(columns)], width)
            self._of, self._uses, self.is_outgrown = now, 0, False
        return self._shown


def draw_columns(
    columns: Sequence[Column],
    ids: Sequence[str],
    width: int,
    selected: str = "",
    rooms: Rooms | None = None,
) -> LazyLines:
    """Draw a heading and one row an id; the first cell of the selected row is marked.

    `rooms`: those of the drawing before; then only the cells of the rows that are asked for are made.
    """
    rooms = rooms or Rooms()
    shown = [(columns[one.place], one) for one in rooms.of(columns, ids, width)]
    total = sum(one.room for _, one in shown) + _GAP * (len(shown) - 1)

    def drawn(number: int) -> Line:
        runs: list[Run] = []
        for column, one in shown:
            cell = column.cells[number - 1] if number else (Run(column.title, Tone.DIM),)
            if runs:
                runs.append(Run(" " * _GAP))
            elif number:
                key = ids[number - 1]
                tone = Tone.CURSOR if key and key == selected else None
                cell = tuple(run._replace(tone=tone or run.tone, id=key) for run in cell)
            cells = width_of(cell)
            room = one.room
            if cells > one.needed:
                rooms.is_outgrown = True
                room = room if column.grows else cells  # until the next drawing: no figure is cut
            runs.extend(_padded(cell, cells, room, column.to_right))
        return fit(tuple(runs), width) if max(total, width_of(tuple(runs))) > width else tuple(runs)

    return LazyLines(len(ids) + 1, drawn)


@dataclass(eq=False)
class _Shown:
    """The column at this place, the cells that it needs, and the room that it gets."""

    place: int
    importance: int
    needed: int
    room: int

    @classmethod
    def of(cls, place: int, column: Column) -> _Shown:
        least = max(column.least, cell_len(column.title), 1)
        needed = max(least, *map(width_of, column.cells), 0)
        return cls(place, column.importance, needed, least if column.grows else needed)


def _that_fit(columns: Sequence[_Shown], width: int) -> list[_Shown]:
    """Return the columns that there is room for, in their order; those that grow share the rest."""
    chosen: list[_Shown] = []
    left = width + _GAP
    for one in sorted(columns, key=lambda one: one.importance):
        if _GAP + one.room <= left or one.importance == 1:
            chosen.append(one)
            left -= _GAP + one.room
    shown = [one for one in columns if one in chosen]
    for one in shown:
        more = max(0, min(left, one.needed - one.room))
        one.room += more
        left -= more
    return shown


def _padded(cell: Line, cells: int, room: int, to_right: bool) -> Line:
    if cells > room:
        return fit(cell, room)
    if cells == room:
        return cell
    pad = Run(" " * (room - cells))
    return (pad, *cell) if to_right else (*cell, pad)
