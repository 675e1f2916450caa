"""Read what programs print: lines with their colors as tones, without all other control sequences."""

from __future__ import annotations

import codecs
import os
import re
import select
from collections.abc import Iterator

from probes.base.text import REPLACEMENT
from widgets.base.lines import Line, Run, Tone

# ECMA-48: CSI … final byte; OSC, DCS, SOS, PM, APC … up to ST or BEL; two-byte escapes; the same as C1.
_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)(?P<parameters>[0-?]{0,64})[ -/]{0,8}(?P<final>[@-~])"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]{0,4096}(?:\x07|\x1b\\|\x9c|$)"
    r"|\x1b[ -/]{0,8}[0-~]"
)
_COLOR = re.compile(r"\x1b\[([0-9;]{0,32})m")
# ECMA-48 SGR: the eight colors, plain and bright.
_TONES = {
    **{1: Tone.TITLE, 2: Tone.DIM, 31: Tone.BAD, 32: Tone.GOOD, 33: Tone.WARNING, 34: Tone.NIC, 36: Tone.NIC},
    **{90: Tone.DIM, 91: Tone.BAD, 92: Tone.GOOD, 93: Tone.WARNING, 94: Tone.NIC, 96: Tone.NIC},
}
_PIECE_BYTES = 1 << 16


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


class PtyReader:
    """Own the master's descriptor; lines are sanitized and at most `limit` characters long."""

    def __init__(self, master: int, limit: int) -> None:
        self._master = os.fdopen(master, "rb", buffering=0)
        self._splitter = LineSplitter(codecs.getincrementaldecoder("utf-8")("replace"), limit)

    def fileno(self) -> int:
        """Return the master's descriptor, for select; -1 after `close`."""
        return -1 if self._master.closed else self._master.fileno()

    def read(self, seconds: float) -> Iterator[str] | None:
        """Return the complete lines so far, or None if nothing came within this time.

        After every program has ended, None means that all output was read: poll(2) and read(2) of a master
        first fetch what is in flight (n_tty_poll in drivers/tty/n_tty.c).
        """
        ready = select.select([self._master], [], [], seconds)[0]
        piece = self._piece() if ready else b""
        return self._splitter.feed(piece) if piece else None

    def _piece(self) -> bytes:
        try:
            return self._master.read(_PIECE_BYTES) or b""
        except OSError:  # EIO: no process has the other end open
            return b""

    def rest(self) -> Iterator[str]:
        """Return what follows the last complete line; only once."""
        return self._splitter.rest()

    def close(self) -> None:
        """Close the master; the kernel then hangs up the terminal."""
        self._master.close()


def toned(text: str) -> Line:
    """Return a line of text with SGR sequences as runs; colors other than the common ones are plain."""
    runs: list[Run] = []
    tone = Tone.PLAIN
    end = 0
    for match in _COLOR.finditer(text):
        if match.start() > end:
            runs.append(Run(text[end : match.start()], tone))
        end = match.end()
        tone = _tone_after(tone, match[1])
    if end < len(text):
        runs.append(Run(text[end:], tone))
    return tuple(runs)


def _tone_after(tone: Tone, parameters: str) -> Tone:
    codes = [int(code[:4] or 0) for code in parameters.split(";")]
    if codes and codes[0] in (38, 48):  # one of 256 colors or more: no tone matches
        return tone
    for code in codes:
        if code in (0, 22, 39):
            tone = Tone.PLAIN
        # A color says more than bold does.
        elif code in _TONES and not (code == 1 and tone is not Tone.PLAIN):
            tone = _TONES[code]
    return tone
