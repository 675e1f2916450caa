"""Texts of a log and how many lines have each, in bounded memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from probes.base.text import printable
from probes.nccl.log.facts import Mention, Place

MOST_ROWS = 256


@dataclass
class Tally:
    """A row: what its first line says, and how many lines say so."""

    text: str
    first: Place
    last: Place
    detail: Any
    count: int = 1

    def mention(self) -> Mention:
        """Return the row as a fact."""
        return Mention(self.text, self.count, self.first, self.last)


class Table:
    """Texts by a key; the table ends at a limit."""

    def __init__(self) -> None:
        self.rows: dict[object, Tally] = {}
        self.left_out = 0  # lines of further texts

    def add(self, key: object, text: str, place: Place, detail: object = None) -> bool:
        """Count a text, for a line once; return False if the table is full."""
        row = self.rows.get(key)
        if row is not None:
            row.count += 1
            row.last = place
            return True
        if len(self.rows) >= MOST_ROWS:
            self.left_out += 1
            return False
        self.rows[key] = Tally(printable(text, 400).strip(), place, place, detail)
        return True

    def mentions(self) -> tuple[Mention, ...]:
        """Return the rows as facts."""
        return tuple(row.mention() for row in self.rows.values())

    def first(self) -> Mention | None:
        """Return the first row as a fact; None if there is none."""
        return next((row.mention() for row in self.rows.values()), None)
