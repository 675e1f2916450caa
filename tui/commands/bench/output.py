"""Output of `gdrtop bench`: results go to stdout, messages and questions to stderr."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, TextIO

from probes.base.text import printable
from tui.runtime.json_values import write_json
from tui.runtime.printing import print_lines, text_width
from widgets.base.lines import Line, line


class BenchOutput:
    """Stdout and stderr. If stdout fails, nothing more is written to it, so that a test can end in order."""

    def __init__(self, out: TextIO, as_json: bool, ascii_only: bool) -> None:
        self._out, self._as_json, self._ascii = out, as_json, ascii_only
        self.width = text_width(out)
        self.lost: OSError | None = None  # why stdout cannot be written any more

    def show(self, lines: Sequence[Line]) -> None:
        """Print to stdout, unless the output is JSON."""
        if self._as_json or self.lost is not None or not lines:
            return
        try:
            print_lines(lines, self._out, self._ascii)
            self._out.flush()
        except OSError as error:
            self.lost = error

    def write_json(self, content: dict[str, Any]) -> None:
        """Print the JSON object to stdout."""
        try:
            write_json(content, self._out)
            self._out.flush()
        except OSError as error:
            self.lost = error

    def note(self, text: str) -> None:
        """Print to stdout, or to stderr if the output is JSON."""
        (self.show_on_stderr if self._as_json else self.show)([line(text)])

    def warn(self, text: str) -> None:
        """Print an error message to stderr."""
        self.show_on_stderr([line(f"gdrtop: {printable(text)}")])

    def show_on_stderr(self, lines: Sequence[Line]) -> None:
        """Print to stderr, which may be the same closed pipe as stdout."""
        try:
            print_lines(lines, sys.stderr, self._ascii)
            sys.stderr.flush()
        except OSError:
            return

    def can_ask(self, answers: TextIO | None) -> bool:
        """Return whether a person would see a question and can answer it."""
        return not self._as_json and answers is not None and answers.isatty() and sys.stderr.isatty()

    def ask(self, answers: TextIO | None, why: Sequence[Line], question: str) -> bool:
        """Ask a yes-or-no question; return whether the answer is yes.

        `why` has been printed to stdout, and is printed to stderr too if stdout is not a terminal.
        """
        if answers is None or not self.can_ask(answers):
            return False
        if not self._out.isatty():
            self.show_on_stderr(why)
        try:
            sys.stderr.write(f"{question} [y/N] ")
            sys.stderr.flush()
        except OSError:
            return False
        return answers.readline(4096).strip().lower() in ("y", "yes")
