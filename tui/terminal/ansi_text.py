"""Sanitize program output: split it into lines, keep colors, remove all other control sequences."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator

from probes.base.text import REPLACEMENT

# ECMA-48: CSI … final byte; OSC, DCS, SOS, PM, APC … up to ST or BEL; two-byte escapes; the same as C1.
_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)(?P<parameters>[0-?]{0,64})[ -/]{0,8}(?P<final>[@-~])"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]{0,4096}(?:\x07|\x1b\\|\x9c|$)"
    r"|\x1b[ -/]{0,8}[0-~]"
)
_COLOR = re.compile(r"\x1b\[[0-9;]{0,32}m")


class LineSplitter:
    """Turn bytes in pieces of any size into lines, without what a carriage return has overwritten."""

    def __init__(self, decoder: codecs.IncrementalDecoder, limit: int) -> None:
        self._decoder, self._limit = decoder, limit
        self._pending = ""

    def feed(self, piece: bytes) -> Iterator[str]:
        """Return the complete lines so far."""
        *lines, self._pending = (self._pending + self._decoder.decode(piece)).split("\n")
        for line in lines:
            yield sanitized(line, self._limit)
        # A line that never ends must not fill the memory.
        if len(self._pending) > 4 * self._limit:
            yield sanitized(self._pending, self._limit)
            self._pending = ""

    def rest(self) -> Iterator[str]:
        """Return what follows the last complete line; only once."""
        pending, self._pending = self._pending + self._decoder.decode(b"", True), ""
        if pending:
            yield sanitized(pending, self._limit)


def sanitized(line: str, limit: int) -> str:
    """Return a line of at most `limit` characters, without control sequences other than SGR (colors)."""
    line = line.rstrip("\r").rpartition("\r")[2][: 4 * limit]
    kept: list[str] = []
    end = 0
    for match in _SEQUENCE.finditer(line):
        kept.append(_plain(line[end : match.start()]))
        end = match.end()
        if match["final"] == "m" and re.fullmatch(r"[0-9;]{0,32}", match["parameters"] or ""):
            kept.append(f"\x1b[{match['parameters'] or ''}m")
    kept.append(_plain(line[end:]))
    return _cut("".join(kept), limit)


def _plain(text: str) -> str:
    text = text.expandtabs()
    return text if text.isprintable() else "".join(c if c.isprintable() else REPLACEMENT for c in text)


def _cut(text: str, limit: int) -> str:
    """Cut to `limit` characters, never inside a sequence."""
    if len(text) <= limit:
        return text
    return re.sub(r"\x1b(?:\[[0-9;]*)?$", "", text[: limit - 1]) + "…"


def without_colors(line: str) -> str:
    """Return a sanitized line as plain text."""
    return _COLOR.sub("", line)
