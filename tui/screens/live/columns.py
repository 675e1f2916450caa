"""The list of a table's columns over Live: which of them are shown, and by which one the rows are sorted."""

from __future__ import annotations

from collections.abc import Collection

from textual import events
from textual.app import ComposeResult
from textual.screen import ModalScreen, ScreenResultType

from tui.screens.key_footer import KeyFooter
from tui.screens.keys import bind, leave_keys, move_keys
from widgets.base.lines import Line, Run, Tone, fit, rows_of, wrapped
from widgets.base.lines_view import LinesView
from widgets.live import TABLE_NAMES
from widgets.live.columns import COLUMNS, TableColumn, changed_order, order_text

_END = 1 << 20
_TITLE_CELLS, _SORT_CELLS = 22, 24
_KEYS = (("Space", "Show or hide"), ("Esc", "Close and save"))
_ROOM = "Without room for all, the least important ones are left out."
_WORST = "problems first"
_LETTERS = "A letter sorts by its column, again in reverse."


class ColumnList(ModalScreen[ScreenResultType]):
    """One pane with the columns of a table of COLUMNS."""

    def __init__(self, table: str, title: str) -> None:
        super().__init__()
        self._columns = COLUMNS[table]
        self._title = title

    def compose(self) -> ComposeResult:
        """Compose the pane, and the footer of this list."""
        yield LinesView(self._title)
        yield KeyFooter()

    def on_lines_view_resized(self) -> None:
        """Draw for the pane's width."""
        self._draw()

    def _draw(self) -> None:
        raise NotImplementedError

    def action_close(self) -> None:
        """Close the list."""
        raise NotImplementedError

    def action_leave(self) -> None:
        """Close the list."""
        self.action_close()


class ColumnsScreen(ColumnList[tuple[str, ...]]):
    """The columns in their order, each with a mark. The result is the names of the hidden ones."""

    BINDINGS = [  # noqa: RUF012 - Textual's own type
        bind("pause", "change", label="Show or hide"),
        bind("open", "close", label="Close"),
        *leave_keys("columns"),
        *move_keys(),
    ]

    def __init__(self, table: str, hidden: Collection[str]) -> None:
        """List the columns of a table of COLUMNS; `hidden`: names."""
        super().__init__(table, f"Columns of {TABLE_NAMES[table]}")
        self._hidden = {column.key for column in self._columns if column.key in hidden}
        self._selected = next(column.key for column in self._columns if not column.is_fixed)

    def _draw(self) -> None:
        view = self.query_one(LinesView)
        lines: list[Line] = []
        for column in self._columns:
            mark = "[ ]" if column.key in self._hidden else "[x]"
            tone = Tone.CURSOR if column.key == self._selected else Tone.PLAIN
            meaning = f"{column.meaning} (always shown)" if column.is_fixed else column.meaning
            name = fit((Run(f"{mark} {column.title}", tone, column.key),), _TITLE_CELLS)
            lines.append((*name, Run(f" {meaning}", Tone.DIM)))
        lines += [(), *((Run(f"{key:<7}", Tone.TITLE), Run(what)) for key, what in _KEYS)]
        lines += wrapped(_ROOM, view.room, Tone.DIM)
        view.show(lines)
        view.scroll_to_row(rows_of(lines).get(self._selected, 0))

    def action_move(self, how: str) -> None:
        """Move the selection."""
        names = [column.key for column in self._columns]
        page = max(1, self.query_one(LinesView).size.height - 1)
        steps = {"up": -1, "down": 1, "page_up": -page, "page_down": page, "first": -_END, "last": _END}
        row = names.index(self._selected) + steps[how]
        self._selected = names[max(0, min(len(names) - 1, row))]
        self._draw()

    def action_change(self) -> None:
        """Show or hide the selected column, unless it identifies the row."""
        column = next(column for column in self._columns if column.key == self._selected)
        if column.is_fixed:
            self.notify(f"{column.title} identifies the row, so it is always shown.", markup=False)
            return
        self._hidden ^= {column.key}
        self._draw()

    def on_lines_view_picked(self, picked: LinesView.Picked) -> None:
        """Select the clicked column, and show or hide it."""
        self._selected = picked.id
        self.action_change()
        self._draw()

    def action_close(self) -> None:
        """Close the list."""
        self.dismiss(tuple(column.key for column in self._columns if column.key in self._hidden))


class SortScreen(ColumnList[str]):
    """The result is the new order, as in the configuration: "" for the worst first, "share", "-share"."""

    BINDINGS = [  # noqa: RUF012 - Textual's own type
        bind("open", "choose", label="Sort"),
        bind("view", "worst_first", label="Worst first"),
        bind("select", "step(1)", "down,j"),
        bind("select", "step(-1)", "up,k", show=False),
        *leave_keys(),
    ]

    def __init__(self, table: str, sort: str) -> None:
        """List the columns of a table of COLUMNS; `sort`: the order now."""
        super().__init__(table, f"Sort the {TABLE_NAMES[table]}, now {order_text(sort)}")
        self._sort = sort
        names = ["", *(column.key for column in self._columns)]
        self._selected = max(0, names.index(sort.removeprefix("-")) if sort.removeprefix("-") in names else 0)

    def _draw(self) -> None:
        view = self.query_one(LinesView)
        lines: list[Line] = [self._row(0, "o", _WORST, "critical findings, then warnings, then the rest")]
        lines += [
            self._row(number, column.letter, _name(column), column.meaning)
            for number, column in enumerate(self._columns, 1)
        ]
        lines += [(), (Run(_LETTERS, Tone.DIM),)]
        view.show(lines)
        view.scroll_to_row(rows_of(lines).get(str(self._selected), 0))

    def _row(self, number: int, letter: str, name: str, meaning: str) -> Line:
        tone = Tone.CURSOR if number == self._selected else Tone.PLAIN
        head = fit((Run(f"{letter}  {name}", tone, str(number)),), _SORT_CELLS)
        return (*head, Run(f" {meaning}", Tone.DIM))

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
        """Select the next or previous column."""
        self._selected = max(0, min(len(self._columns), self._selected + step))
        self._draw()

    def action_choose(self) -> None:
        """Sort by the selected column."""
        name = self._columns[self._selected - 1].key if self._selected else ""
        self.dismiss(changed_order(self._sort, name))

    def action_worst_first(self) -> None:
        """Show the worst rows first."""
        self.dismiss("")

    def action_close(self) -> None:
        """Close the list; the order stays."""
        self.dismiss(self._sort)


def _name(column: TableColumn) -> str:
    """Return the title, and the name that the title of the pane will have: "°C (temperature)"."""
    return f"{column.title} ({column.name})" if column.name else column.title
