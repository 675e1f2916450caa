"""What `gdrtop bench` prints while tests run, and the summary of their results."""

from __future__ import annotations

from collections.abc import Sequence

from probes.bandwidth.model.planned_test import Series
from probes.bandwidth.model.request import Mode, Request, Scope
from probes.bandwidth.model.result import Result
from probes.bandwidth.model.samples import CONNECTED, WAITING, About, Sample
from probes.bandwidth.results.comparison import conclusions
from tui.bandwidth.events import BandwidthEvent, FactReported, SampleReceived, TestEnded, TestStarted
from widgets.bandwidth.result import draw_result
from widgets.bandwidth.series import draw_commands, peer_command
from widgets.bandwidth.table import RowTable, draw_matrix
from widgets.base.figures import minutes
from widgets.base.lines import Line, Run, Tone, line, wrapped


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
