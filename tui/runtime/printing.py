"""Print lines to a terminal, a pipe or a ticket, in ASCII where needed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from typing import TextIO

from rich.cells import cell_len

from probes.base.unknown import known
from probes.facts.node import Node
from probes.facts.system.platform import PlatformFacts
from widgets.base.lines import Line, line, plain
from widgets.node import verdict as verdict_drawing

TEXT_WIDTH = 120
NARROWEST = 40
_ASCII = str.maketrans(
    {
        **dict.fromkeys("╭╮╰╯┌┐└┘├┤", "+"),
        **dict.fromkeys("┬┴┼┤├╋┏┓┗┛", "+"),
        **dict.fromkeys("─═━╌", "-"),
        **dict.fromkeys("│║┃▏▎▌▊▐▕", "|"),
        **dict.fromkeys("‹", "<"),
        "★": "*",
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
        **dict.fromkeys("▁▂▃▄▅▆▇█▋▍▉", "#"),
    }
)


def ascii_text(text: str) -> str:
    """The text in ASCII; what has no likeness there is "?"."""
    return text.translate(_ASCII).encode("ascii", "replace").decode("ascii")


def ascii_cells(text: str) -> str:
    """The text in ASCII, in as many cells."""
    return "".join(
        mark if len(mark := ascii_text(character)) == cell_len(character) else mark[:1] * cell_len(character)
        for character in text
    )


def is_plain(out: TextIO, ascii_only: bool) -> bool:
    """Whether only ASCII may be written: asked for, a dumb terminal, or another encoding than UTF-8."""
    encoding = (out.encoding or "ascii").lower().replace("-", "")
    return ascii_only or os.environ.get("TERM") == "dumb" or not encoding.startswith("utf")


def print_lines(lines: Sequence[Line], out: TextIO, ascii_only: bool) -> None:
    """Write lines without tones. No control character of the node reaches the terminal."""
    is_ascii = is_plain(out, ascii_only)
    for of in lines:
        text = plain(of)
        out.write((ascii_text(text) if is_ascii else text) + "\n")


def text_width(out: TextIO) -> int:
    """Columns of $COLUMNS or the terminal; TEXT_WIDTH where there is none."""
    asked = os.environ.get("COLUMNS", "")
    if out.isatty() or (asked.isascii() and asked.isdecimal() and 0 < len(asked) < 5 and int(asked)):
        return max(NARROWEST, shutil.get_terminal_size((TEXT_WIDTH, 24)).columns)
    return TEXT_WIDTH


def heading(node: Node) -> Line:
    """The program, the node's name, and where its facts are from."""
    host = known(node.platform.hostname, "?") if isinstance(node.platform, PlatformFacts) else "?"
    return line("gdrtop  ", host, " ", verdict_drawing.origin_run(node.origin))
