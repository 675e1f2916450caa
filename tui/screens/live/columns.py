"""The list of a table's columns, shown over Live: which of them are shown."""

from __future__ import annotations

from collections.abc import Collection

from textual.app import ComposeResult
from textual.screen import ModalScreen

from tui.screens.key_footer import KeyFooter
from tui.screens.keys import bind, leave_keys, move_keys
from widgets.base.lines import Line, Run, Tone, fit, rows_of, wrapped
from widgets.base.lines_view import LinesView
from widgets.live import TABLE_NAMES
from widgets.live.columns import COLUMNS

_END = 1 << 20
_TITLE_CELLS = 22
_KEYS = (("Space", "Show or hide"), ("Esc", "Close and save"))
_ROOM = "Without room for all, the least important ones are left out."


class ColumnsScreen(ModalScreen[tuple[str, ...]]):
    """The columns in their order, each with a mark. The result is the names of the hidden ones."""

    BINDINGS = [  # noqa: RUF012 - Textual's own type
        bind("pause", "change", label="Show or hide"),
        bind("open", "close", label="Close"),
        *leave_keys("columns"),
        *move_keys(),
    ]

    def __init__(self, table: str, hidden: Collection[str]) -> None:
        """List the columns of a table of COLUMNS; `hidden`: names."""
        super().__init__()
        self._columns = COLUMNS[table]
        self._title = f"Columns of {TABLE_NAMES[table]}"
        self._hidden = {column.key for column in self._columns if column.key in hidden}
        self._selected = next(column.key for column in self._columns if not column.is_fixed)

    def compose(self) -> ComposeResult:
        """Compose one pane, and the footer of this list."""
        yield LinesView(self._title)
        yield KeyFooter()

    def on_lines_view_resized(self) -> None:
        """Draw for the pane's width."""
        self._draw()

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

    def action_leave(self) -> None:
        """Close the list."""
        self.action_close()

    def action_close(self) -> None:
        """Close the list."""
        self.dismiss(tuple(column.key for column in self._columns if column.key in self._hidden))
