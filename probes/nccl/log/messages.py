"""The messages of a log: of many that are alike, only the first are looked up."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace

from probes.messages.catalogue import catalogue, explain
from probes.messages.message import Context, Weight
from probes.nccl.log.facts import Mention, Place, Problem
from probes.nccl.log.problems import ProblemLine, problem_of
from probes.nccl.log.tables import Table

MOST_ALIKE = 1000  # alike, but for numbers, that are looked up; further ones are only counted
ALIKE_BYTES = 130  # of a message, which decide that it is like another one
_MOST_KINDS = 4096
_MOST_REPORTERS = 8
_NUMBERS = b"0123456789abcdef"  # decimal and hexadecimal
_DIGITS = re.compile(r"\d+")
_COMPLETED = re.compile(r"last completed (?:NCCL )?work: (-?\d{1,20})")  # of PyTorch's watchdog


@dataclass
class Alike:
    """Lines that differ only in numbers."""

    read: int = 0
    skipped: int = 0
    problem: object = None  # the key of their problem; None: its table is full
    file: str = ""  # of the last line that was skipped
    line: int = 0

    def added_to(self, seen: Mention) -> Mention:
        """Add the lines that were only counted."""
        last = Place(self.file, self.line)
        is_later = last.file != seen.last.file or last.line > seen.last.line
        return replace(seen, count=seen.count + self.skipped, last=last if is_later else seen.last)


class MessageTable:
    """What lines say that may tell of a problem."""

    def __init__(self) -> None:
        self.ids: set[str] = set()  # of the messages that were read
        self._table = Table()
        self._left_out = 0
        self._alike: dict[bytes, Alike] = {}
        self._newest: Alike | None = None
        self._nothing: set[bytes] = set()  # lines that are no message, but for their numbers
        self._reporters: dict[object, dict[str, None]] = {}
        self._slowest: tuple[int, str, Place] | None = None

    @property
    def left_out(self) -> int:
        """Lines beyond the limits of the tables."""
        return self._left_out + self._table.left_out

    def is_flood(self, text: bytes, file: str, line: int) -> bool:
        """Return whether too many lines like this one were read; they are only counted."""
        key = text[:ALIKE_BYTES].translate(None, _NUMBERS)
        alike = self._alike.get(key)
        if alike is None:
            if len(self._alike) >= _MOST_KINDS:
                self._left_out += 1
                return True
            alike = self._alike[key] = Alike()
        self._newest = alike
        if alike.read < MOST_ALIKE:
            alike.read += 1
            return False
        alike.skipped += 1
        alike.file, alike.line = file, line
        self._left_out += alike.problem is None
        return True

    def add(self, line: ProblemLine, text: str, place: Place, reporter: str = "") -> None:
        """Count a line, with who reports it."""
        kind, what = line.kind, text
        if line.found is not None:
            self.ids.add(line.found.message.id)
            meaning = explain(line.found)
            kind, what = meaning.id, meaning.title
        key = (kind, _DIGITS.sub("#", what)[:120])
        known = self._table.rows.get(key)
        is_again = known is not None and known.last == place  # the line has two words that gdrtop looks for
        is_listed = is_again or self._table.add(key, text, place, line)
        alike, self._newest = self._newest, None
        if alike is not None and is_listed:
            alike.problem = key
        if is_listed and reporter:
            reporters = self._reporters.setdefault(key, {})
            if len(reporters) < _MOST_REPORTERS:
                reporters[reporter] = None

    def ask(
        self,
        text: str,
        place: Place,
        reporter: str,
        weights: Collection[Weight],
        programs: Collection[str] = (),
    ) -> None:
        """Count a line that need not be a message, if it is one of these weights."""
        begin = text[:ALIKE_BYTES].encode("utf-8", "replace")
        alike = begin.translate(None, _NUMBERS)
        if alike in self._nothing:
            return
        found = catalogue().find(text)
        if found is not None and (not programs or found.message.program in programs):
            self.ids.add(found.message.id)
            is_said = not found.message.is_general and explain(found).weight in weights
        else:
            is_said = False
        if not is_said:
            if len(self._nothing) < _MOST_KINDS:
                self._nothing.add(alike)
        elif not self.is_flood(begin, place.file, place.line):
            self.add(ProblemLine(found), text, place, reporter)

    def of_torch(self, text: str, place: Place, rank: str) -> None:
        """Count a line of PyTorch."""
        completed = _COMPLETED.search(text)
        if completed is not None and rank:
            work = int(completed[1])
            if self._slowest is None or work < self._slowest[0]:
                self._slowest = (work, rank, place)
        self.ask(text, place, rank, tuple(Weight))

    def problems(self, context: Context) -> list[Problem]:
        """Return what the lines mean, in their order."""
        found: list[Problem] = []
        skipped: dict[object, list[Alike]] = {}
        for alike in self._alike.values():
            if alike.skipped:
                skipped.setdefault(alike.problem, []).append(alike)
        for key, row in self._table.rows.items():
            seen = row.mention()
            for alike in skipped.get(key, ()):
                seen = alike.added_to(seen)
            problem = problem_of(row.detail, context, seen, tuple(self._reporters.get(key, ())))
            if self._slowest is not None and _COMPLETED.search(seen.text):
                work, rank, place = self._slowest
                lowest = f"The lowest last completed work in the log is {work}, on {rank} ({place})."
                problem = replace(problem, cause=f"{problem.cause} {lowest}".strip())
            found.append(problem)
        names = dict.fromkeys(problem.seen.first.file for problem in found)
        files = {name: number for number, name in enumerate(names)}
        return sorted(found, key=lambda each: (files[each.seen.first.file], each.seen.first.line))
