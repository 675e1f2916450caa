"""What `gdrtop bench` prints: results on stdout, messages and questions on stderr, and the progress."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, TextIO

from probes.bandwidth.model.planned_series import Series
from probes.bandwidth.model.request import Mode, Request, Scope
from probes.bandwidth.model.result import Result
from probes.bandwidth.model.samples import CONNECTED, WAITING, About, Sample
from probes.bandwidth.results.comparison import conclusions
from probes.base.text import printable
from tui.bandwidth.events import BandwidthEvent, FactReported, SampleReceived, TestEnded, TestStarted
from tui.command_line.options import OutputOptions
from tui.runtime.json_values import write_json
from tui.runtime.printing import print_lines, text_width
from widgets.bandwidth.result import draw_result
from widgets.bandwidth.series import draw_commands, peer_command
from widgets.bandwidth.table import RowTable, draw_matrix
from widgets.base.figures import minutes
from widgets.base.lines import Line, Run, Tone, line, wrapped


class BenchOutput:
    """Stdout and stderr. If stdout fails, nothing more is written to it, so that a test can end in order."""

    def __init__(self, out: TextIO, options: OutputOptions) -> None:
        self._out, self._as_json, self._ascii = out, options.json, options.ascii
        self.width = text_width(out)
        self.lost: OSError | None = None  # why stdout cannot be written any more

    @property
    def is_truncated(self) -> bool:
        """Return whether something is missing in stdout; a reader that closes the pipe is no error."""
        return self.lost is not None and not isinstance(self.lost, BrokenPipeError)

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


class BenchProgress:
    """A running series as lines of text; `peers_name` is the name of this node, as a peer calls it."""

    def __init__(self, series: Series, request: Request, peers_name: str, width: int) -> None:
        self._series, self._request = series, request
        self._peers_name, self._width = peers_name, width
        self._table: RowTable | None = None

    def lines(self, event: BandwidthEvent, comparisons: Sequence[str] = ()) -> list[Line]:
        """Return the lines of an event; `comparisons` belong to a test that has ended."""
        if isinstance(event, TestStarted):
            self._table = None
            title = line(Run(self._position(event), Tone.TITLE))
            return [(), title, *draw_commands(event.test, self._peers_name)]
        if isinstance(event, SampleReceived):
            return self._row(event.sample)
        if isinstance(event, FactReported) and event.fact.about is About.PHASE:
            is_server = self._request.setup is Mode.SERVER
            phase = event.fact.value
            return [line(f"  {phase} …")] if is_server and phase in (WAITING, CONNECTED) else []
        if isinstance(event, TestEnded):
            tests = self._series.tests
            purpose = tests[0].purpose if len(tests) == 1 else None
            return draw_result(event.result, comparisons, self._width, purpose)
        return []

    def stderr_lines(self, event: BandwidthEvent, is_terminal: bool) -> list[Line]:
        """Return the lines beside JSON output: the progress for a terminal, and always a peer's command."""
        if not isinstance(event, TestStarted) or not (is_terminal or event.test.for_peer):
            return []
        command = peer_command(event.test, self._peers_name)
        return [line(self._position(event)), *([line(f"on the peer: {command}")] if command else [])]

    def _position(self, event: TestStarted) -> str:
        tests = self._series.tests
        left = sum(test.seconds for test in tests[event.number - 1 :])
        return f"[{event.number}/{len(tests)}] {event.test.title} · about {minutes(left)} left"

    def _row(self, sample: Sample) -> list[Line]:
        if self._table is not None:
            return [self._table.row(sample)]
        self._table = RowTable((sample,), self._width, self._request.tool.endswith("_lat"))
        return [self._table.heading(), self._table.row(sample)]

    def summary(self, results: Sequence[Result]) -> list[Line]:
        """Return the matrix of a sweep, and what the results mean together."""
        lines: list[Line] = []
        if self._request.scope is not Scope.PAIR:
            pairs = [test.pair for test in self._series.tests]
            gpus = dict.fromkeys(pair.gpu_label for pair in pairs if pair.gpu_label)
            nics = dict.fromkeys(pair.nic for pair in pairs)
            lines += [(), *draw_matrix(results, self._width, tuple(gpus), tuple(nics))]
        meaning = conclusions(results, self._series.left_out)
        if meaning:
            lines += [(), line(Run("What it means", Tone.TITLE))]
        for text in meaning:
            lines += wrapped(text, self._width, indent="  ")
        return lines
