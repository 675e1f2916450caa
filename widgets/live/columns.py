"""The columns of Live's tables: their names in the configuration, what they mean, and the order of the rows.

It imports nothing of the probes, because the configuration is checked before the first screen.
"""

from __future__ import annotations

from collections.abc import Iterable

from probes.base.data_files import read_toml
from probes.base.frozen import frozen
from widgets.base.columns import HEAD


@frozen
class TableColumn:
    """A column that there may be: without its figures, or without room, it is not drawn."""

    title: str
    letter: str  # sorts the rows by it, after `o`
    meaning: str
    name: str = ""  # in the configuration, if the title cannot be typed
    is_fixed: bool = False  # it identifies the row, so it is always shown

    @property
    def key(self) -> str:
        """Return the name in the configuration."""
        return self.name or self.title


COLUMNS = {
    table: tuple(TableColumn(**row) for row in rows)
    for table, rows in read_toml(__name__, "columns.toml").items()
}


def names_in(text: str) -> list[str]:
    """Return the names in a setting: "CNP/s, RNR/s"."""
    return [name for part in text.split(",") if (name := part.strip())]


def titles_of(table: str, names: Iterable[str]) -> frozenset[str]:
    """Return the titles of columns that these names hide; those that identify a row stay."""
    wanted = frozenset(names)
    return frozenset(
        column.title for column in COLUMNS[table] if column.key in wanted and not column.is_fixed
    )


def order_text(sort: str) -> str:
    """Return an order of the configuration as shown: "problems first", "by share", "by share, reversed"."""
    if not sort:
        return "problems first"
    name = sort.removeprefix("-")
    return f"by {name}{', reversed' if sort.startswith('-') else ''}"


def changed_order(sort: str, name: str) -> str:
    """Return the order after a column was chosen; the same column again reverses it, "" is worst first."""
    return f"-{name}" if name and sort == name else name


def sort_clicked(table: str, head: str) -> str:
    """Return the name of the column whose head has this id, "" if it is no head."""
    title = head.removeprefix(HEAD) if head.startswith(HEAD) else None
    return next((column.key for column in COLUMNS[table] if column.title == title), "")


def sorted_title(table: str, sort: str) -> str:
    """Return the title of the column that a table is sorted by; "" for none."""
    name = sort.removeprefix("-")
    return next((column.title for column in COLUMNS[table] if column.key == name), "")
