"""The clipboard of the user's terminal, also behind ssh: OSC 52 of xterm."""

from __future__ import annotations

import base64
import os

_ESCAPE, _BELL, _STRING_END = "\x1b", "\x07", "\x1b\\"
_PIECE = 240  # characters; GNU screen keeps at most 768 bytes of a string (MAXSTR), older ones 256


def clipboard_sequence(text: str) -> str:
    """Return what puts a text into the clipboard; mosh passes on only this form, with "c"."""
    return f"{_ESCAPE}]52;c;{base64.b64encode(text.encode()).decode()}{_BELL}"


def wrapped_for_screen(sequence: str) -> str:
    """Return a sequence that GNU screen passes on to its terminal: a DCS string for each piece."""
    pieces = (sequence[start : start + _PIECE] for start in range(0, len(sequence), _PIECE))
    return "".join(f"{_ESCAPE}P{piece}{_STRING_END}" for piece in pieces)


def clipboard_hint() -> str:
    """Return what this terminal needs to accept a text, in one sentence."""
    if os.environ.get("TMUX"):
        return "tmux passes it on (OSC 52) after: tmux set -s set-clipboard on"
    return "The terminal must allow OSC 52."
