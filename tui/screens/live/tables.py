"""The columns of Live's tables and the order of their rows: chosen in lists shown over Live, and saved."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Generic, TypeVar

from textual import events
from textual.app import ComposeResult
from textual.screen import ModalScreen, Screen

from tui.screens.key_footer import KeyFooter
from tui.screens.keys import bind, bind_pair, leave_keys, move_keys
from tui.screens.live.state import LiveState
from tui.screens.own_settings import HIDE, SORT, save_setting
from widgets.base.lines import Line, Run, Tone, fit, rows_of, wrapped
from widgets.base.lines_view import LinesView
from widgets.live import TABLE_NAMES
from widgets.live.columns import COLUMNS, TableColumn, changed_order, order_text

R = TypeVar("R")

_ROOM = "Without room for all, the least important ones are left out."
_WORST = "problems first"
_LETTERS = "A letter sorts by its column, again in reverse."


class ColumnListScreen(ModalScreen[R], Generic[R]):
    """A list of the columns of a table of COLUMNS; a subclass draws it, and has the result."""

    BINDINGS = [*leave_keys()]  # noqa: RUF012 - Textual's own type

    def __init__(self, table: str, title: str) -> None:
        super().__init__()
        self._columns = COLUMNS[table]
        self._title = title
        self._selected = 0

    def compose(self) -> ComposeResult:
        yield LinesView(self._title)
        yield KeyFooter()

    def on_lines_view_resized(self) -> None:
        self._draw()

    def _lines(self, width: int) -> list[Line]:
        raise NotImplementedError

    def _draw(self) -> None:
        view = self.query_one(LinesView)
        lines = self._lines(view.room)
        view.show(lines)
        view.scroll_to_row(rows_of(lines).get(str(self._selected), 0))

    def _row(self, number: int, name: str, cells: int, meaning: str) -> Line:
        tone = Tone.CURSOR if number == self._selected else Tone.PLAIN
        return (*fit((Run(name, tone, str(number)),), cells), Run(f" {meaning}", Tone.DIM))

    def _select(self, number: int, last: int) -> None:
        self._selected = max(0, min(last, number))
        self._draw()

    def action_leave(self) -> None:
        self.action_close()

    def action_close(self) -> None:
        raise NotImplementedError


class ColumnsScreen(ColumnListScreen[tuple[str, ...]]):
    """The columns in their order, each with a mark. The result is the names of the hidden ones."""

    BINDINGS = [  # noqa: RUF012 - Textual's own type
        bind("pause", "change", label="Show or hide"),
        bind("open", "close", label="Close and save"),
        bind("columns", "close", show=False),
        *move_keys(),
    ]

    def __init__(self, table: str, hidden: Collection[str]) -> None:
        """List the columns of a table of COLUMNS; `hidden`: names."""
        super().__init__(table, f"Columns of {TABLE_NAMES[table]}")
        self._hidden = {column.key for column in self._columns if column.key in hidden}
        self._selected = [column.is_fixed for column in self._columns].index(False)

    def _lines(self, width: int) -> list[Line]:
        lines: list[Line] = []
        for number, column in enumerate(self._columns):
            mark = "[ ]" if column.key in self._hidden else "[x]"
            meaning = f"{column.meaning} (always shown)" if column.is_fixed else column.meaning
            lines.append(self._row(number, f"{mark} {column.title}", 22, meaning))
        return [*lines, (), *wrapped(_ROOM, width, Tone.DIM)]

    def action_move(self, how: str) -> None:
        self._select(self._selected + self.query_one(LinesView).rows_moved(how), len(self._columns) - 1)

    def action_change(self) -> None:
        """Show or hide the selected column, unless it identifies the row."""
        column = self._columns[self._selected]
        if column.is_fixed:
            self.notify(f"{column.title} identifies the row, so it is always shown.", markup=False)
            return
        self._hidden ^= {column.key}
        self._draw()

    def on_lines_view_picked(self, picked: LinesView.Picked) -> None:
        """Select the clicked column, and show or hide it."""
        self._selected = int(picked.id)
        self.action_change()
        self._draw()

    def action_close(self) -> None:
        self.dismiss(tuple(column.key for column in self._columns if column.key in self._hidden))


class SortScreen(ColumnListScreen[str]):
    """The result is the new order, as in the configuration: "" for the worst first, "share", "-share"."""

    BINDINGS = [  # noqa: RUF012 - Textual's own type
        bind("open", "choose", label="Sort"),
        bind("view", "worst_first", label="Worst first"),
        *bind_pair("select", "step"),
    ]

    def __init__(self, table: str, sort: str) -> None:
        """List the columns of a table of COLUMNS; `sort`: the order now."""
        super().__init__(table, f"Sort the {TABLE_NAMES[table]}, now {order_text(sort)}")
        self._sort = sort
        names = ["", *(column.key for column in self._columns)]
        self._selected = names.index(sort.removeprefix("-")) if sort.removeprefix("-") in names else 0

    def _lines(self, width: int) -> list[Line]:
        rows = [("o", _WORST, "critical findings, then warnings, then the rest")]
        rows += [(column.letter, _name(column), column.meaning) for column in self._columns]
        lines = [self._row(number, f"{row[0]}  {row[1]}", 24, row[2]) for number, row in enumerate(rows)]
        return [*lines, (), (Run(_LETTERS, Tone.DIM),)]

    def on_key(self, event: events.Key) -> None:
        """Sort by the column with this letter."""
        for column in self._columns:
            if event.character == column.letter:
                event.stop()
                self.dismiss(changed_order(self._sort, column.key))
                return

    def on_lines_view_picked(self, picked: LinesView.Picked) -> None:
        """Sort by the clicked column."""
        self._selected = int(picked.id)
        self.action_choose()

    def action_step(self, step: int) -> None:
        self._select(self._selected + step, len(self._columns))

    def action_choose(self) -> None:
        name = self._columns[self._selected - 1].key if self._selected else ""
        self.dismiss(changed_order(self._sort, name))

    def action_worst_first(self) -> None:
        self.dismiss("")

    def action_close(self) -> None:
        """Close the list; the order stays."""
        self.dismiss(self._sort)


def _name(column: TableColumn) -> str:
    """Return the title, and the name that the title of the pane will have: "°C (temperature)"."""
    return f"{column.title} ({column.name})" if column.name else column.title


Draw = Callable[[], None]
"""Draws the screen with the new choice."""


def choose_columns(screen: Screen[None], draw: Draw, state: LiveState, table: str) -> None:
    """Let the user choose the columns of a table, and save them."""
    before = state.hidden[table]

    def apply(hidden: tuple[str, ...] | None) -> None:
        if hidden is not None and frozenset(hidden) != frozenset(before):
            state.hidden[table] = hidden
            draw()
            save_setting(screen.app, f"{HIDE}{table}", ", ".join(hidden), f"Columns of {TABLE_NAMES[table]}")

    screen.app.push_screen(ColumnsScreen(table, before), apply)


def choose_order(screen: Screen[None], draw: Draw, state: LiveState, table: str) -> None:
    """Let the user choose the order of a table's rows, and save it."""

    def apply(sort: str | None) -> None:
        if sort is not None:
            set_order(screen, draw, state, table, sort)

    screen.app.push_screen(SortScreen(table, state.sorts[table]), apply)


def set_order(screen: Screen[None], draw: Draw, state: LiveState, table: str, sort: str) -> None:
    """Sort a table, and save the order."""
    if sort == state.sorts[table]:
        return
    state.sorts[table] = sort
    draw()
    name = TABLE_NAMES[table]
    save_setting(screen.app, f"{SORT}{table}", sort, f"{name[0].upper()}{name[1:]} {order_text(sort)}")
