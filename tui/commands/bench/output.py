"""What `gdrtop bench` writes to, and whom it asks: stdout for what is measured, stderr for all else."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, TextIO

from probes.base.text import printable
from tui.commands.json_values import write_json
from tui.runtime.printing import print_lines, text_width
from widgets.base.lines import Line, line


class BenchOutput:
    """Stdout and stderr; where one can no longer be written, no more is, and what runs can end in order."""

    def __init__(self, out: TextIO, as_json: bool, ascii_only: bool) -> None:
        self._out, self._as_json, self._ascii = out, as_json, ascii_only
        self.width = text_width(out)
        self.lost: OSError | None = None  # why stdout cannot be written any more

    def say(self, lines: Sequence[Line]) -> None:
        """What is no part of the JSON, and not told beside it."""
        if self._as_json or self.lost is not None or not lines:
            return
        try:
            print_lines(lines, self._out, self._ascii)
            self._out.flush()
        except OSError as error:
            self.lost = error

    def write(self, content: dict[str, Any]) -> None:
        """The JSON."""
        try:
            write_json(content, self._out)
            self._out.flush()
        except OSError as error:
            self.lost = error

    def note(self, text: str) -> None:
        """What is no part of the JSON, and told beside it."""
        if self._as_json:
            self.say_beside([line(text)])
        else:
            self.say([line(text)])

    def warn(self, text: str) -> None:
        """What is wrong."""
        self.say_beside([line(f"gdrtop: {printable(text)}")])

    def say_beside(self, lines: Sequence[Line]) -> None:
        """On stderr; it may be the pipe that stdout is."""
        try:
            print_lines(lines, sys.stderr, self._ascii)
            sys.stderr.flush()
        except OSError:
            return

    def can_ask(self, answers: TextIO | None) -> bool:
        """Whether somebody would see a question and could answer it."""
        return not self._as_json and answers is not None and answers.isatty() and sys.stderr.isatty()

    def asks(self, answers: TextIO | None, why: Sequence[Line], question: str) -> bool:
        """Whether somebody says yes; `why` stands on stdout, and beside it where that is no terminal."""
        if answers is None or not self.can_ask(answers):
            return False
        if not self._out.isatty():
            self.say_beside(why)
        try:
            sys.stderr.write(f"{question} [y/N] ")
            sys.stderr.flush()
        except OSError:
            return False
        return answers.readline(4096).strip().lower() in ("y", "yes")
