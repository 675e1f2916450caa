"""One test under way: its ends meet, print, and are ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import ExitStack

from probes.bandwidth.model.planned_test import PlannedProcess, PlannedTest
from probes.bandwidth.model.result import Ending
from probes.bandwidth.tools.failures import CAUSE, SYMPTOM, Failure, Output
from probes.bandwidth.tools.registry import explain, tool_of
from probes.bandwidth.tools.samples import WAITING, About, Fact, Sample
from probes.base.unknown import Unknown
from probes.facts.system.tcp_ports import listening
from probes.host.protocol import Host
from tui.bandwidth.events import BandwidthEvent, FactReported, LinePrinted, ProcessStarted, SampleReceived
from tui.bandwidth.processes import ProcessStarter, ToolProcess
from tui.bandwidth.supervisor import STILL_THERE

_STEP_SECONDS = 0.05
_LISTENS_SECONDS = 10.0  # from a server's banner to its open port; CUDA's start may lie between
_SETTLES_SECONDS = 0.5  # the same at a peer, whose ports cannot be seen
_GRACE_SECONDS = 5.0  # for the other ends, once one has ended
_LAST_WORDS_SECONDS = 1.5  # the same, once one has failed: the other may say why
_MOST_TRIES = 5
_KEPT_LINES = 2000  # of the beginning, and of the end
_MOST_FACTS = 100


class _Running:
    """One end that was started."""

    def __init__(self, end: PlannedProcess, process: ToolProcess) -> None:
        self.end, self.process = end, process
        self.parser = tool_of(end.command.tool).parser(end.command.tool)
        self.waits_since: float | None = None
        self.ended_at: float | None = None
        self.tries = 1


class TestRunner:
    """Starts the ends, and takes what they print; left, nothing of them runs any more."""

    __test__ = False

    def __init__(
        self,
        host: Host,
        processes: ProcessStarter,
        test: PlannedTest,
        hear: Callable[[BandwidthEvent], object],
    ) -> None:
        self._host, self._processes, self._test, self._hear = host, processes, test, hear
        self._running: list[_Running] = []
        self._first_lines: list[str] = []
        self._last_lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._first_row_at: float | None = None
        self._is_complete = self._is_cancelled = False
        self._not_begun: Failure | None = None
        self.samples: list[Sample] = []
        self.facts: list[Fact] = []
        self._troubles: list[Failure] = []

    def __enter__(self) -> TestRunner:
        port = self._test.tcp_port
        taken = listening(self._host) if port else {}
        if not isinstance(taken, Unknown) and port in taken:
            # Else the client would go to whoever listens there.
            told = f"another process now listens on TCP port {port}: set the test up again"
            self._not_begun = Failure(told, taken[port], CAUSE)
        else:
            self._start(self._test.processes[0])
        return self

    def __exit__(self, *_: object) -> None:
        # The client first: it tells its server that it goes.
        with ExitStack() as ending:  # all are ended, also where one cannot be
            for one in self._running:
                ending.callback(one.process.end)

    def cancel(self) -> None:
        """Somebody wants no more of it."""
        self._is_cancelled = True

    def goes_on(self) -> bool:
        """Takes what has come in a moment; whether there is more to wait for."""
        for number, one in enumerate(self._running):
            # Waits at one end alone, so that two ends do not wait for each other.
            self._take(one, _STEP_SECONDS if number == len(self._running) - 1 else 0.0)
        if not self._running:
            return False
        now = self._host.monotonic()
        after = self._test.end_after_s
        if after is not None and self._first_row_at is not None and now - self._first_row_at >= after:
            self._is_complete = True
            return False
        if self._may_start_next(now):
            self._start(self._test.processes[len(self._running)])
        return not self._is_over(now)

    # Starting

    def _start(self, end: PlannedProcess, tries: int = 1) -> None:
        argv = end.command.argv
        self._hear(ProcessStarted(end.name, argv))
        running = _Running(end, self._processes.start(argv, self._test.time_limit_s))
        running.tries = tries
        self._running.append(running)

    def _may_start_next(self, now: float) -> bool:
        """Whether another end is to come, and the one before it waits for it."""
        last = self._running[-1]
        if len(self._running) == len(self._test.processes) or last.ended_at is not None:
            return False
        if last.waits_since is None:
            return False
        waited = now - last.waits_since
        if last.end.host or not self._test.tcp_port:
            return waited >= _SETTLES_SECONDS
        ports = listening(self._host)
        if isinstance(ports, Unknown):
            return waited >= _SETTLES_SECONDS
        return self._test.tcp_port in ports or waited >= _LISTENS_SECONDS

    def _try_again(self, one: _Running, now: float) -> bool:
        """A client that came before its far server listened comes again."""
        place = self._running.index(one)
        if place == 0 or not self._running[place - 1].end.host or one.tries >= _MOST_TRIES:
            return False
        server = self._running[place - 1]
        if server.ended_at is not None or self.samples or one.ended_at is None:
            return False
        if not any("Couldn't connect" in line for line in self._lines[-20:]):
            return False
        if now - one.ended_at >= _SETTLES_SECONDS:
            one.process.end()
            del self._running[place]
            # What it said of a server that was not there yet is no reason for what comes later.
            self._first_lines.clear()
            self._last_lines.clear()
            self._start(one.end, one.tries + 1)
        return True

    @property
    def _lines(self) -> list[str]:
        return [*self._first_lines, *self._last_lines]

    # Listening

    def _take(self, one: _Running, seconds: float) -> None:
        for line in one.process.lines(seconds):
            self._hear(LinePrinted(one.end.name, line))
            (self._first_lines if len(self._first_lines) < _KEPT_LINES else self._last_lines).append(line)
            for told in one.parser.feed(line):
                self._hear_told(one, told)
        if one.ended_at is None and one.process.ended is not None:
            one.ended_at = self._host.monotonic()

    def _hear_told(self, one: _Running, told: Output) -> None:
        now = self._host.monotonic()
        if isinstance(told, Fact):
            if told.about is About.PHASE and told.value == WAITING:
                one.waits_since = now
            if len(self.facts) < _MOST_FACTS and self._measures(one):
                self.facts.append(told)
            self._hear(FactReported(one.end.name, told))
        elif isinstance(told, Sample) and self._measures(one):
            if self._first_row_at is None:
                self._first_row_at = now
            self.samples.append(told)
            self._hear(SampleReceived(told, now - self._first_row_at))
        elif isinstance(told, Failure) and len(self._troubles) < _MOST_FACTS:
            self._troubles.append(told)

    def _measures(self, one: _Running) -> bool:
        """The last end's rows count: both ends of a test may print the same ones."""
        return one.end is self._test.processes[-1]

    # Ending

    def _is_over(self, now: float) -> bool:
        ended = [one.ended_at for one in self._running if one.ended_at is not None]
        if not ended:
            return False
        if any(self._try_again(one, now) for one in self._running if one.ended_at is not None):
            return False
        everybody = len(ended) == len(self._running)
        # A server that has ended before its client was begun will see none.
        return everybody or now - max(ended) >= (
            _LAST_WORDS_SECONDS if self._has_failed() else _GRACE_SECONDS
        )

    def _has_failed(self) -> bool:
        ended = [one.process.ended for one in self._running if one.ended_at is not None]
        return any(one is not None and one.exit_status != 0 for one in ended)

    def ending(self) -> tuple[Ending, Failure | None]:
        """How it ended, and why where it failed or left something behind; after the meeting was left."""
        if self._not_begun is not None:
            return Ending.FAILED, self._not_begun
        if self._is_cancelled:
            return Ending.CANCELLED, self._left_behind()
        if self._is_complete:
            return Ending.DONE, self._left_behind()
        trouble = self._trouble()
        if trouble is not None:
            return Ending.FAILED, trouble
        trouble = self._without_figure()
        return (Ending.DONE, None) if trouble is None else (Ending.FAILED, trouble)

    def _without_figure(self) -> Failure | None:
        """Return what is missing: tools end with status 0 even if they measured nothing, or one direction."""
        settings = self._test.settings
        if not settings.measures:
            return None
        reported = min(self._troubles, key=lambda failure: failure.rank, default=None)
        measured = {sample.what for sample in self.samples}
        missing = [test for test in settings.required_tests if test not in measured]
        if missing:
            why = next((fact.value for fact in self.facts if fact.about is About.WAIVED), "")
            text = f"{missing[0]} gave no figure{f': waived: {why}' if why else ''}"
            return reported or Failure(text, "", SYMPTOM)
        if not self.samples:
            return reported or Failure("it ended without a figure", "", SYMPTOM)
        return None

    def _left_behind(self) -> Failure | None:
        """A process that could not be ended: nobody may take the node for idle."""
        for one in self._running:
            ended = one.process.ended
            if ended is not None and STILL_THERE in ended.why:
                return Failure(f"{one.end.name}: {ended.why}", "", CAUSE)
        return None

    def _trouble(self) -> Failure | None:
        statuses: list[int] = []
        for one in self._running:
            ended = one.process.ended
            if ended is not None and ended.exit_status is None:
                return Failure(f"{one.end.name}: {ended.why}", "", CAUSE)
            # What was ended here after the other end had gone ended well enough.
            if ended is not None and one.ended_at is not None and ended.exit_status:
                if ended.why:
                    found = explain(self._test.tool, self._lines, None, self._test.memory)
                    return found or Failure(ended.why, "", CAUSE)
                statuses.append(ended.exit_status)
        return explain(self._test.tool, self._lines, statuses[0] if statuses else 0, self._test.memory)
