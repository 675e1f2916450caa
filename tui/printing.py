"""Text for a terminal, a pipe or a ticket: lines without tones, in ASCII where nothing else will do."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from typing import TextIO

from probes.node import Node
from probes.platform import PlatformFacts
from probes.unknown import known
from widgets import verdict_drawing
from widgets.lines import Line, line, plain

TEXT_WIDTH = 120
NARROWEST = 40
_ASCII = str.maketrans(
    {
        **dict.fromkeys("╭╮╰╯┌┐└┘├┤", "+"),
        **dict.fromkeys("─═", "-"),
        **dict.fromkeys("│║", "|"),
        "▲": "!",
        "↑": "^",
        "↓": "v",
        "✓": "+",
        "✗": "x",
        "–": "-",
        "●": "*",
        "•": "*",
        "·": "-",
        "…": "~",
        "×": "x",
        "›": ">",
        "°": " ",
        "⊃": ">",
        "◄": "<",
        "→": ">",
        "←": "<",
        "▸": ">",
        "■": "#",
        "µ": "u",
        "≥": ">=",
        "’": "'",
        **dict.fromkeys("▁▂▃▄▅▆▇█", "#"),
    }
)


def _is_plain(out: TextIO, ascii_only: bool) -> bool:
    """Whether only ASCII may be written: asked for, a dumb terminal, or an encoding that has no more."""
    encoding = (out.encoding or "ascii").lower().replace("-", "")
    return ascii_only or os.environ.get("TERM") == "dumb" or not encoding.startswith("utf")


def print_lines(lines: Sequence[Line], out: TextIO, ascii_only: bool) -> None:
    """Writes lines without tones; no control character of the node reaches the terminal."""
    cut = _is_plain(out, ascii_only)
    for of in lines:
        text = plain(of)
        if cut:
            text = text.translate(_ASCII).encode("ascii", "replace").decode("ascii")
        out.write(text + "\n")


def text_width(out: TextIO) -> int:
    """Columns of the terminal; $COLUMNS goes before, and TEXT_WIDTH stands for no terminal."""
    asked = os.environ.get("COLUMNS", "")
    if out.isatty() or (asked.isascii() and asked.isdecimal() and 0 < len(asked) < 5 and int(asked)):
        return max(NARROWEST, shutil.get_terminal_size((TEXT_WIDTH, 24)).columns)
    return TEXT_WIDTH


def heading(node: Node) -> Line:
    """The program, the node's name, and where its facts are from."""
    host = known(node.platform.hostname, "?") if isinstance(node.platform, PlatformFacts) else "?"
    return line("gdrtop  ", host, " ", verdict_drawing.origin_run(node.origin))
