"""What was read in a text: what it is, what it proves, and what follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from probes.base.frozen import frozen
from probes.messages.message import Meaning, Proof, Weight
from probes.nccl.log.facts import LogFacts, LogFile, LogVerdict, Place
from probes.snapshot.examination import Examination


@frozen
class Statement:
    """Something that the text says, and what it means."""

    id: str  # of the message or check
    program: str  # that said it
    weight: Weight
    title: str
    cause: str = ""
    fix: str = ""
    proves: Proof = Proof.NOTHING
    text: str = ""  # the first line that says so
    place: Place | None = None  # of that line
    count: int = 1  # lines
    source: str = ""  # where the meaning is known from
    more: tuple[str, ...] = ()  # titles of others with the same cause


@frozen
class SeenKind:
    """A kind of text that was recognized."""

    name: str  # "NCCL log", "ibstat"
    lines: int
    is_sure: bool = True  # False: its recognizer has met no real sample yet


@frozen
class Section:
    """Lines that belong together, as a program's output."""

    kind: str
    lines: tuple[str, ...]
    place: Place  # of the first one
    command: str = ""  # that printed them, if its prompt is in the text
    node: Examination | None = None  # on which the text was written, if it is known
    host: str = ""  # by the prompt before

    def at(self, number: int) -> Place:
        """Return the place of a line, counted from 0."""
        return Place(self.place.file, self.place.line + number)

    @property
    def filled(self) -> int:
        """How many lines are not empty, without those of NCCL, which count as such."""
        return sum(bool(line.strip()) and "NCCL " not in line for line in self.lines)


@frozen
class Parsed:
    """What one section says."""

    lines: int = 0  # that were read
    statements: tuple[Statement, ...] = ()
    answers: Mapping[tuple[str, ...], Any] = field(default_factory=dict)  # of a PastedHost
    # That these answers suffice for, also if the node has devices that the text does not show.
    checks: frozenset[str] = frozenset()
    shows: str = ""  # what a table shows that proves nothing of the path, in one sentence
    # That mean something beside those of other tables.
    facts: Mapping[str, Place] = field(default_factory=dict)
    place: Place | None = None  # where the table begins


WITHOUT_GDR = (Proof.HOST.value, Proof.NO_GDR.value, "mixed")
"""The paths on which some data does not use GPUDirect RDMA."""


@frozen
class Proven:
    """What the text proves about the path, and the line that says so."""

    path: str  # a value of Proof, "mixed" or "unknown"
    text: str  # a sentence
    place: Place | None = None


@frozen
class Reading:
    """All that was read."""

    files: tuple[LogFile, ...]
    kinds: tuple[SeenKind, ...]
    proven: Proven
    statements: tuple[Statement, ...]  # the heaviest first
    lines: int
    unread: int  # lines that say something, of no known kind
    unread_lines: tuple[str, ...] = ()  # the first of them
    shown: tuple[str, ...] = ()  # by tables, a sentence each
    log: LogFacts | None = None  # of NCCL
    log_verdict: LogVerdict | None = None

    @property
    def exit_status(self) -> int:
        """0: nothing to warn of; 1: warnings, or data without GPUDirect RDMA; 2: critical; 3: unknown."""
        weights = {statement.weight for statement in self.statements}
        if Weight.CRITICAL in weights:
            return 2
        if Weight.WARNING in weights or self.proven.path in WITHOUT_GDR:
            return 1
        return 0 if self.kinds else 3


def statement_of(meaning: Meaning, text: str, place: Place) -> Statement:
    """Return what a line of the catalogue says."""
    return Statement(
        meaning.id,
        meaning.program,
        meaning.weight,
        meaning.title,
        meaning.cause,
        meaning.fix,
        meaning.proves,
        text,
        place,
        source=meaning.source,
    )
