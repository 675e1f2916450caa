"""Split what a terminal sends into keys, control sequences and pasted text, in linear time.

Textual's parser tries every prefix of a sequence, and reports what it does not know as keys: a late or broken
reply of a terminal would press hundreds of them. It raises on some numbers, too. Here it gets keys, and each
control sequence (ECMA-48) whole. What it does not know is dropped, and so is what is too long.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from textual import events
from textual._xterm_parser import XTermParser
from textual.message import Message

_ESCAPE = "\x1b"
# Whole: CSI with its final byte (besides, a key of the Linux console and a mouse click of X10); SS3 and a
# character; an escape and a character.
_SEQUENCE = re.compile(
    r"\x1b(?:\[(?:\[[\s\S]|M[\s\S]{3}|(?![\[M])[0-?]*[ -/]*[@-~])|O[\s\S]|[^\x1b\[O\]PX^_])"
)
_BEGUN = re.compile(r"\x1b(?:\[(?:\[|M[\s\S]{0,2}|[0-?]*[ -/]*)|[O\]PX^_])?\Z")
_STRING = re.compile(r"\x1b[\]PX^_]")  # OSC, DCS, SOS, PM, APC: gdrtop asks for no answer that is one
# The rest of a string or of a CSI that is too long; it ends at a control character (Ctrl-C) at the latest.
_STRING_REST = re.compile(r"[^\x00-\x1f\x7f\x9c]*(\x07|\x1b\\|\x9c)?")
_CSI_REST = re.compile(r"[ -?]*([@-~])?")
_PASTE_BEGIN, _PASTE_END = "\x1b[200~", "\x1b[201~"
# Ctrl-C and each key of the kitty protocol show that the end of a paste was lost.
_AFTER_PASTE = re.compile(r"\x1b\[201~|\x03|\x1b\[[\d;:]{1,32}u")
_MOST_SEQUENCE = 32  # characters; Textual's parser gives up after as many
_MOST_PASTED = 4096  # characters: the longest path (PATH_MAX), and no input asks for more
_ESCAPE_SECONDS = 0.1  # then an escape was a key of its own
# Terminals send a sequence or a paste at once; after a pause of the network, the rest of it is lost.
_LOST_SECONDS, _PASTE_LOST_SECONDS = 1.0, 3.0


class InputParser:
    """Yield Textual's messages of the input; `now` is in seconds of a clock that only goes forward."""

    def __init__(self, debug: bool = False) -> None:
        self._debug = debug
        self._parser = XTermParser(debug)
        self._begun = ""  # a sequence without its end
        self._rest: re.Pattern[str] | None = None  # of what is being dropped
        self._pasted: str | None = None
        self._came_at = 0.0

    @property
    def waits(self) -> bool:
        """Return whether `tick` has to be called soon: an escape may be a key of its own."""
        return bool(self._begun) and (self._pasted is None or self._begun == _ESCAPE)

    def tick(self, now: float) -> Iterator[Message]:
        """Take a sequence that has no end after a while as keys."""
        if self.waits and now - self._came_at >= _ESCAPE_SECONDS:
            begun, self._begun, self._rest = self._begun, "", None
            yield from self._end_paste()
            yield from self._parse(begun)

    def feed(self, text: str, now: float) -> Iterator[Message]:
        """Take a piece of the input."""
        pause, self._came_at = now - self._came_at, now
        if pause > _LOST_SECONDS:
            self._rest = None
        if pause > _PASTE_LOST_SECONDS:
            yield from self._end_paste()
        text, self._begun = self._begun + text, ""
        place = 0
        while place < len(text):
            if self._rest is not None:
                place = self._drop(self._rest, text, place)
            elif self._pasted is not None:
                place = self._add_pasted(self._pasted, text, place)
                if place < len(text):
                    yield from self._end_paste()
                    place += len(_PASTE_END) * text.startswith(_PASTE_END, place)
            elif text[place] != _ESCAPE:
                end = text.find(_ESCAPE, place)
                end = len(text) if end < 0 else end
                yield from self._parse(text[place:end])
                place = end
            elif found := _SEQUENCE.match(text, place):
                place = found.end()
                if found[0] == _PASTE_BEGIN:
                    self._pasted = ""
                elif found[0] != _PASTE_END and len(found[0]) <= _MOST_SEQUENCE:
                    yield from self._parse(found[0])
            elif len(text) - place <= _MOST_SEQUENCE and _BEGUN.match(text, place):
                self._begun = text[place:]
                return
            elif text.startswith(_ESCAPE, place + 1):
                yield from self._parse(_ESCAPE)
                place += 1
            else:
                self._rest = _STRING_REST if _STRING.match(text, place) else _CSI_REST
                place += 2

    def _drop(self, rest: re.Pattern[str], text: str, place: int) -> int:
        """Drop the rest of a sequence, and return where it ends."""
        found = rest.match(text, place)
        assert found is not None
        if rest is _STRING_REST and text[found.end() :] == _ESCAPE:  # perhaps the first half of its end
            self._begun = _ESCAPE
            return len(text)
        if found[1] or found.end() < len(text):
            self._rest = None
        return found.end()

    def _add_pasted(self, pasted: str, text: str, place: int) -> int:
        """Keep what is pasted, and return where it ends."""
        found = _AFTER_PASTE.search(text, place)
        end = found.start() if found else len(text)
        if not found and (begun := _BEGUN.search(text, max(place, end - _MOST_SEQUENCE))):
            end = begun.start()
            self._begun = text[end:]
        self._pasted = (pasted + text[place : min(end, place + _MOST_PASTED)])[:_MOST_PASTED]
        return end if found else len(text)

    def _end_paste(self) -> Iterator[Message]:
        if self._pasted is not None:
            pasted, self._pasted = self._pasted, None
            yield events.Paste(pasted.replace("\x00", ""))

    def _parse(self, text: str) -> list[Message]:
        """Return what Textual makes of keys, or of one sequence."""
        parser = self._parser
        try:
            messages = list(parser.feed(text))
            if parser._timeout_time is not None:  # it waits for more
                parser._timeout_time = 0.0
                keys = list(parser.tick())
                if not text.startswith("\x1b[") or len(text) == 2:  # a sequence that it does not know
                    messages += keys
        except Exception:  # as of a number that is no character
            self._parser = XTermParser(self._debug)
            for name in ("mouse_pixels", "terminal_size", "terminal_pixel_size"):
                setattr(self._parser, name, getattr(parser, name))
            return []
        return messages
