"""What a program prints, made harmless: lines, with colours kept and every other control sequence gone."""

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
_COLOUR = re.compile(r"\x1b\[[0-9;]{0,32}m")


class LineSplitter:
    """Bytes in pieces of any size to whole lines; what a carriage return overwrites is gone."""

    def __init__(self, decoder: codecs.IncrementalDecoder, limit: int) -> None:
        self._decoder, self._limit = decoder, limit
        self._pending = ""

    def feed(self, piece: bytes) -> Iterator[str]:
        """The lines that are whole now."""
        *lines, self._pending = (self._pending + self._decoder.decode(piece)).split("\n")
        for line in lines:
            yield harmless(line, self._limit)
        # A program that never ends its line must not fill the memory.
        if len(self._pending) > 4 * self._limit:
            yield harmless(self._pending, self._limit)
            self._pending = ""

    def rest(self) -> Iterator[str]:
        """What stands behind the last line's end; once."""
        pending, self._pending = self._pending + self._decoder.decode(b"", True), ""
        if pending:
            yield harmless(pending, self._limit)


def harmless(line: str, limit: int) -> str:
    """One line of at most `limit` characters, with no control sequence left but SGR (colours)."""
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
    """A harmless line as plain text: for files, and for programs that explain it."""
    return _COLOUR.sub("", line)
