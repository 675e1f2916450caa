"""What `gdrtop bench` tells while tests run, and what they come to."""

from __future__ import annotations

from collections.abc import Sequence

from probes.bandwidth.model.planned_test import Series
from probes.bandwidth.model.request import Mode, Request, Scope
from probes.bandwidth.model.result import Result
from probes.bandwidth.results.comparison import conclusions
from probes.bandwidth.tools.samples import CONNECTED, WAITING, About, Sample
from tui.bandwidth.events import BandwidthEvent, FactReported, SampleReceived, TestEnded, TestStarted
from widgets.bandwidth.matrix import draw_matrix
from widgets.bandwidth.result import draw_result
from widgets.bandwidth.series import draw_commands, peer_command
from widgets.bandwidth.table import RowTable
from widgets.base.figures import minutes
from widgets.base.lines import Line, Run, Tone, line, wrapped


class BenchProgress:
    """One series as it comes, as lines; `peers_name` is this node's name, as a peer would call it."""

    def __init__(self, series: Series, request: Request, peers_name: str, width: int) -> None:
        self._series, self._choice = series, request
        self._peers_name, self._width = peers_name, width
        self._table: RowTable | None = None

    def lines(self, event: BandwidthEvent, comparisons: Sequence[str] = ()) -> list[Line]:
        """What an event tells; `comparisons` are those of a test that has ended."""
        if isinstance(event, TestStarted):
            self._table = None
            told = [(), line(Run(self._place(event), Tone.TITLE))]
            return [*told, *draw_commands(event.test, self._width, self._peers_name)]
        if isinstance(event, SampleReceived):
            return self._row(event.sample)
        if isinstance(event, FactReported) and event.fact.about is About.PHASE:
            return self._phase(event.fact.value)
        if isinstance(event, TestEnded):
            tests = self._series.tests
            purpose = tests[0].purpose if len(tests) == 1 else None
            return draw_result(event.result, comparisons, self._width, purpose)
        return []

    def beside(self, event: BandwidthEvent, is_watched: bool) -> list[Line]:
        """What stands beside the JSON: how far it is where somebody sees it, a peer's command always."""
        if not isinstance(event, TestStarted) or not (is_watched or event.test.for_peer):
            return []
        told = peer_command(event.test, self._peers_name)
        return [line(self._place(event)), *([line(f"at the peer: {told}")] if told else [])]

    def _place(self, began: TestStarted) -> str:
        tests = self._series.tests
        left = sum(test.seconds for test in tests[began.number - 1 :])
        return f"[{began.number}/{len(tests)}] {began.test.title} · about {minutes(left)} left"

    def _phase(self, phase: str) -> list[Line]:
        """Only where somebody at a peer is waited for."""
        is_server = self._choice.setup is Mode.SERVER
        return [line(f"  {phase} …")] if is_server and phase in (WAITING, CONNECTED) else []

    def _row(self, sample: Sample) -> list[Line]:
        if self._table is not None:
            return [self._table.row(sample)]
        self._table = RowTable((sample,), self._width, self._choice.tool.endswith("_lat"))
        return [self._table.heading(), self._table.row(sample)]

    def summary(self, results: Sequence[Result]) -> list[Line]:
        """A sweep's matrix, and what results mean together."""
        lines: list[Line] = []
        if self._choice.scope is not Scope.PAIR:
            pairs = [test.pair for test in self._series.tests]
            gpus = dict.fromkeys(pair.gpu_label for pair in pairs if pair.gpu_label)
            nics = dict.fromkeys(pair.nic for pair in pairs)
            lines += [(), *draw_matrix(results, self._width, tuple(gpus), tuple(nics))]
        told = conclusions(results, self._series.left_out)
        if told:
            lines += [(), line(Run("What it means", Tone.TITLE))]
        for sentence in told:
            lines += wrapped(sentence, self._width, indent="  ")
        return lines
