"""Print lines to a terminal or a pipe, in ASCII if needed."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, TextIO

from rich.cells import cell_len

from probes.base.origin import Origin, Source
from probes.base.unknown import known
from tui.files.read_file import read_small
from tui.terminal.size import clamped
from widgets.base.figures import local_time
from widgets.base.lines import TONE_STYLES, Line, Run, Tone, line, plain, unwrapped

if TYPE_CHECKING:  # the dashboard paints before it imports facts
    from probes.facts.node import Node

TEXT_WIDTH = 120
NARROWEST = 40
_ASCII = str.maketrans(
    {
        **dict.fromkeys("╭╮╰╯┌┐└┘├┤┬┴┼╋┏┓┗┛", "+"),
        **dict.fromkeys("─═━╌–·", "-"),
        **dict.fromkeys("│║┃▏▎▌▊▐▕", "|"),
        **dict.fromkeys("▁▂▃▄▅▆▇█▋▍▉■", "#"),
        **dict.fromkeys("◄←‹", "<"),
        **dict.fromkeys("→▸›⊃", ">"),
        **dict.fromkeys("▲⊘", "!"),
        **dict.fromkeys("✓◆●•", "*"),  # what is good, too: "+" is the corner of a box, "v" is received
        **dict.fromkeys("✗×", "x"),
        **dict.fromkeys("…↔⇄", "~"),
        **dict.fromkeys("“”", '"'),
        **{"↑": "^", "↓": "v", "°": " ", "µ": "u", "≥": ">=", "≤": "<=", "’": "'", "○": "o"},
    }
)

_SET_BY_PYTHON = ("C.UTF-8", "C.utf8", "UTF-8")  # LC_CTYPE in the C locale (PEP 538)
_MOST_ENVIRONMENT_BYTES = 1 << 22
# The terminal's own colors, as on the screen: Select Graphic Rendition (ECMA-48, 8.3.117).
_SGR = {
    **{"success": "32", "warning": "33", "error": "31", "secondary": "36", "primary": "34", "accent": "32"},
    **{"bold": "1", "dim": "2", "underline": "4", "reverse": "7"},
}
_chosen_color = "auto"


def choose_color(choice: str) -> None:
    """Set --color for all that is printed from now on: "auto", "always" or "never"."""
    global _chosen_color
    _chosen_color = choice


def has_color(out: TextIO) -> bool:
    """Return whether to color text; what is not written to stdout or stderr, such as a file, never is."""
    if _chosen_color != "auto":
        return _chosen_color == "always" and out in (sys.stdout, sys.stderr)
    return out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"


def ascii_text(text: str) -> str:
    """Return the text in ASCII; a character without a counterpart becomes "?"."""
    return text.translate(_ASCII).encode("ascii", "replace").decode("ascii")


def ascii_cells(text: str) -> str:
    """Return the text in ASCII with the same width."""
    return "".join(
        mark if len(mark := ascii_text(character)) == cell_len(character) else mark[:1] * cell_len(character)
        for character in text
    )


def is_plain(out: TextIO, ascii_only: bool) -> bool:
    """Return whether to write ASCII only: on request, to a dumb terminal, or if the locale is not UTF-8."""
    if ascii_only or os.environ.get("TERM") == "dumb":
        return True
    is_chosen = bool(os.environ.get("PYTHONUTF8") or os.environ.get("PYTHONIOENCODING"))
    encoding = (out.encoding or "ascii").lower().replace("-", "")
    locale = _locale()  # where none is set, as in a container, Python's choice counts
    return not encoding.startswith("utf") or not (is_chosen or not locale or "utf" in locale.lower())


def _locale() -> str:
    """Return the locale of the user's text by the rules of POSIX, or "".

    Python writes UTF-8 in the C locale too (PEP 540), and then sets LC_CTYPE (PEP 538).
    """
    character_type = os.environ.get("LC_CTYPE", "")
    if character_type in _SET_BY_PYTHON:
        character_type = _given("LC_CTYPE")
    return os.environ.get("LC_ALL") or character_type or os.environ.get("LANG", "")


def _given(name: str) -> str:
    """Return a variable as gdrtop was started with."""
    try:
        environment = read_small("/proc/self/environ", _MOST_ENVIRONMENT_BYTES, "an environment")
    except OSError:
        return ""
    start = f"{name}=".encode()
    found = (line[len(start) :] for line in environment.split(b"\0") if line.startswith(start))
    return os.fsdecode(next(found, b""))


def print_lines(lines: Sequence[Line], out: TextIO, ascii_only: bool) -> None:
    """Write lines, in color where `has_color`; no control character from the node reaches the terminal.

    In a pipe a sentence is one line, for grep. On a terminal no address or command is broken: people copy it.
    """
    is_ascii, is_colored = is_plain(out, ascii_only), has_color(out)
    for shown in unwrapped(lines, only_words=has_width(out)):
        text = plain(shown)
        if is_colored:
            out.write(_colored(text, shown, is_ascii) + "\n")
        else:
            out.write((ascii_text(text) if is_ascii else text) + "\n")


def _colored(text: str, shown: Line, is_ascii: bool) -> str:
    """Return the `plain` text of a line with the colors of its runs."""
    pieces: list[str] = []
    start = 0
    for tone, runs in groupby(shown, attrgetter("tone")):
        end = start + sum(len(run.text) for run in runs)
        piece, start = text[start:end], end
        piece = ascii_text(piece) if is_ascii else piece
        color, attributes = TONE_STYLES[tone]
        codes = ";".join(_SGR[word] for word in (*attributes.split(), color) if word)
        pieces.append(f"\x1b[{codes}m{piece}\x1b[m" if codes and piece else piece)
    return "".join(pieces)


def text_width(out: TextIO) -> int:
    """Return the width from $COLUMNS or the terminal, else TEXT_WIDTH."""
    if has_width(out):
        import shutil  # it imports compressors, and a pipe has no width

        return max(NARROWEST, clamped(*shutil.get_terminal_size((TEXT_WIDTH, 24)))[0])
    return TEXT_WIDTH


def has_width(out: TextIO) -> bool:
    """Return whether text has to fit a width: on a terminal, or with $COLUMNS."""
    asked = os.environ.get("COLUMNS", "")
    return out.isatty() or (asked.isascii() and asked.isdecimal() and 0 < len(asked) < 5 and int(asked) > 0)


class ProgressLine:
    """A line of a terminal that is written again and again; nothing is written elsewhere.

    If the terminal is gone, the command goes on without it.
    """

    def __init__(self, out: TextIO | None) -> None:
        self._out = out if out is not None and out.isatty() else None
        self._shown = ""

    def show(self, text: str) -> None:
        """Show a text in place of the one before; "" removes that."""
        if self._out is not None and text != self._shown:
            with suppress(OSError):
                self._out.write(f"\r{text:<{len(self._shown)}}" + ("" if text else "\r"))
                self._out.flush()
            self._shown = text


def source_word(origin: Origin) -> str:
    """Return "SIMULATED" or "RECORDED" for a line without a heading; "" for a node that is there now."""
    return {Source.SIMULATED: "SIMULATED", Source.RECORDED: "RECORDED"}.get(origin.source, "")


def heading(node: Node) -> Line:
    """Return the first line of a command about a node."""
    from probes.facts.node import host_name

    return heading_of(known(host_name(node), "?"), node.origin, node.taken_at)


def heading_of(name: str, origin: Origin, taken_at: float) -> Line:
    """Return the first line of a command: which node or how many, where the facts are from, and of when."""
    from widgets.node.verdict import origin_run

    when = local_time(taken_at, "%Y-%m-%d %H:%M:%S %Z")
    return line("gdrtop  ", name, " ", origin_run(origin), Run(f" {when}", Tone.DIM))
