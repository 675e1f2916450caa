"""Texts read as gdrtop read does."""

from __future__ import annotations

from probes.messages.message import Weight
from probes.read.reading import Reading, Statement
from probes.read.text import TextReader


def read(text: str | bytes, size: int = 1 << 20) -> Reading:
    """Read a text in pieces of this size."""
    content = text if isinstance(text, bytes) else text.encode()
    reader = TextReader()
    reader.begin("text")
    for start in range(0, len(content), size):
        reader.feed(content[start : start + size])
    reader.end()
    return reader.reading()


def kinds_of(text: str | bytes) -> set[str]:
    """Return the names of the kinds that are recognized."""
    return {kind.name for kind in read(text).kinds}


def found_in(text: str | bytes) -> dict[str, Statement]:
    """Return the statements by id."""
    return {statement.id: statement for statement in read(text).statements}


def serious_in(text: str | bytes) -> set[str]:
    """Return the ids of warnings and critical statements."""
    return {
        name
        for name, statement in found_in(text).items()
        if statement.weight in (Weight.CRITICAL, Weight.WARNING)
    }
