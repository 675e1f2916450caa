"""The list of a table's columns with a letter each, shown over Live: by which one the rows are sorted."""

from __future__ import annotations

from textual import events
from textual.app import ComposeResult
from textual.screen import ModalScreen

from tui.screens.key_footer import KeyFooter
from tui.screens.keys import bind, leave_keys
from widgets.base.lines import Line, Run, Tone, fit, rows_of
from widgets.base.lines_view import LinesView
from widgets.live import TABLE_NAMES
from widgets.live.columns import COLUMNS, TableColumn, changed_order, order_text

_TITLE_CELLS = 24
_WORST = "problems first"
_LETTERS = "A letter sorts by its column, again in reverse."


class SortScreen(ModalScreen[str]):
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
        super().__init__()
        self._columns = COLUMNS[table]
        self._title = f"Sort the {TABLE_NAMES[table]}, now {order_text(sort)}"
        self._sort = sort
        names = ["", *(column.key for column in self._columns)]
        self._selected = max(0, names.index(sort.removeprefix("-")) if sort.removeprefix("-") in names else 0)

    def compose(self) -> ComposeResult:
        """Compose one pane and the keys."""
        yield LinesView(self._title)
        yield KeyFooter()

    def on_lines_view_resized(self) -> None:
        """Draw for the pane's width."""
        self._draw()

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
        head = fit((Run(f"{letter}  {name}", tone, str(number)),), _TITLE_CELLS)
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

    def action_leave(self) -> None:
        """Close the list; the order stays."""
        self.dismiss(self._sort)

    def action_close(self) -> None:
        """Close the list; the order stays."""
        self.dismiss(self._sort)


def _name(column: TableColumn) -> str:
    """Return the title, and the name that the title of the pane will have: "°C (temperature)"."""
    return f"{column.title} ({column.name})" if column.name else column.title
