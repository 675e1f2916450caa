"""A table whose columns are left out in the order of their importance where there is no room for all."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rich.cells import cell_len

from probes.base.frozen import frozen
from widgets.base.lines import LazyLines, Line, Run, Tone, fit, width_of

T = TypeVar("T")
_GAP = 2
HEAD = "head "  # begins the id of a column's head that can be clicked; the title follows
_MOST_DRAWINGS = 30  # with the same widths; then columns may become narrower again


@frozen
class Column:
    """A column with one cell a row."""

    title: str
    cells: Sequence[Line]
    importance: int  # 1: shown first, and never left out
    to_right: bool = False  # figures
    least: int = 0  # cells, so that the columns to the right do not move with each figure
    grows: bool = False  # shrinks to `least` before columns are left out, and takes the room that is left


def cells_of(rows: Sequence[T], cell: Callable[[T], Run]) -> LazyLines:
    """Return the cells of a column, which are made when they are asked for."""
    return LazyLines(len(rows), lambda number: (cell(rows[number]),))


@dataclass(eq=False)
class _ColumnWidth:
    """The column with this index, the cells that it needs, and those that it gets."""

    index: int
    importance: int
    needed: int
    width: int


class ColumnWidths:
    """The widths of a table that is drawn again and again, so that not every cell is measured each time.

    All cells are measured if the table has other columns or rows, if a cell that was drawn needed more, and
    in every thirtieth drawing.
    """

    def __init__(self) -> None:
        self._measured: object = None
        self._drawings = 0
        self._widths: list[_ColumnWidth] = []
        self.is_outgrown = False  # a cell that was drawn needed more: draw again

    def fit(self, columns: Sequence[Column], ids: Sequence[str], width: int) -> list[_ColumnWidth]:
        """Return the columns that there is room for."""
        table = width, [(column.title, column.importance, column.least) for column in columns], set(ids)
        self._drawings += 1
        if self.is_outgrown or self._drawings >= _MOST_DRAWINGS or table != self._measured:
            self._widths = _that_fit(
                [_measured(index, column) for index, column in enumerate(columns)], width
            )
            self._measured, self._drawings, self.is_outgrown = table, 0, False
        return self._widths


def draw_columns(
    columns: Sequence[Column],
    ids: Sequence[str],
    width: int,
    selected: str = "",
    widths: ColumnWidths | None = None,
    hidden: Collection[str] = (),
    sorted_by: str | None = None,
) -> LazyLines:
    """Draw a heading and one row an id; the first cell of the selected row is marked.

    `widths`: those of the drawing before; then only the cells of the rows that are asked for are made.
    `hidden`: titles of columns that are left out. `sorted_by`: the title of the column that is marked because
    the rows are sorted by it; None: heads cannot be clicked.
    """
    columns = [column for column in columns if column.title not in hidden]
    widths = widths or ColumnWidths()
    shown = [(columns[column.index], column) for column in widths.fit(columns, ids, width)]
    total = sum(fitted.width for _, fitted in shown) + _GAP * (len(shown) - 1)

    def draw_row(number: int) -> Line:
        runs: list[Run] = []
        for column, fitted in shown:
            cell = column.cells[number - 1] if number else (_head(column.title, sorted_by),)
            if runs:
                runs.append(Run(" " * _GAP))
            elif number:
                key = ids[number - 1]
                tone = Tone.CURSOR if key and key == selected else None
                cell = tuple(run._replace(tone=tone or run.tone, id=key) for run in cell)
            cells, room = width_of(cell), fitted.width
            if cells > fitted.needed:
                widths.is_outgrown = True
                room = room if column.grows else cells  # until the next drawing: no figure is cut
            padded = _padded(cell, cells, room, column.to_right)
            is_head = not number and sorted_by is not None
            runs.extend(run._replace(id=cell[0].id) for run in padded) if is_head else runs.extend(padded)
        return fit(tuple(runs), width) if max(total, width_of(tuple(runs))) > width else tuple(runs)

    return LazyLines(len(ids) + 1, draw_row, heads=range(1))


def _head(title: str, sorted_by: str | None) -> Run:
    if sorted_by is None:
        return Run(title, Tone.DIM)
    return Run(title, Tone.TITLE if title == sorted_by else Tone.DIM, f"{HEAD}{title}")


def _measured(index: int, column: Column) -> _ColumnWidth:
    least = max(column.least, cell_len(column.title), 1)
    needed = max(least, *map(width_of, column.cells), 0)
    return _ColumnWidth(index, column.importance, needed, least if column.grows else needed)


def _that_fit(columns: Sequence[_ColumnWidth], width: int) -> list[_ColumnWidth]:
    """Return the columns that there is room for, in their order; those that grow share the rest."""
    chosen: list[_ColumnWidth] = []
    left = width + _GAP
    for column in sorted(columns, key=lambda column: column.importance):
        if _GAP + column.width <= left or column.importance == 1:
            chosen.append(column)
            left -= _GAP + column.width
    shown = [column for column in columns if column in chosen]
    for column in shown:
        more = max(0, min(left, column.needed - column.width))
        column.width += more
        left -= more
    return shown


def _padded(cell: Line, cells: int, room: int, to_right: bool) -> Line:
    if cells > room:
        return fit(cell, room)
    pad = (Run(" " * (room - cells)),) if cells < room else ()
    return (*pad, *cell) if to_right else (*cell, *pad)
