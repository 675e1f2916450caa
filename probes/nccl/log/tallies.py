"""Count the lines of a table's row, and of warnings that differ only in numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from probes.nccl.log.facts import Mention, Place


def with_skipped(seen: Mention, alike: Alike) -> Mention:
    """Add the lines that were only counted."""
    last = Place(alike.file, alike.line)
    is_later = last.file != seen.last.file or last.line > seen.last.line
    return replace(seen, count=seen.count + alike.skipped, last=last if is_later else seen.last)


@dataclass
class Alike:
    """Lines that differ only in numbers."""

    read: int = 0
    skipped: int = 0
    problem: object = None  # the key of their problem; None: its table is full
    file: str = ""  # of the last line that was skipped
    line: int = 0


@dataclass
class Tally:
    """A row: what its first line says, and how many lines say so."""

    text: str
    first: Place
    last: Place
    count: int = 1

    def mention(self) -> Mention:
        """Return the row as a fact."""
        return Mention(self.text, self.count, self.first, self.last)
