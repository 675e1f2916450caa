"""Runs one test: starts its processes, reads what they print, and stops them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack

from probes.bandwidth.model.planned_series import PlannedProcess, PlannedTest
from probes.bandwidth.model.result import Ending
from probes.bandwidth.model.samples import WAITING, About, Fact, Sample
from probes.bandwidth.tools.failures import CAUSE, SYMPTOM, Failure, Output
from probes.bandwidth.tools.tool import explain, tool_of
from probes.base.unknown import Unknown
from probes.facts.network.routes import listening
from probes.host.protocol import Host
from tui.bandwidth.events import BandwidthEvent, FactReported, LinePrinted, ProcessStarted, SampleReceived
from tui.bandwidth.processes import ProcessStarter, ToolProcess
from tui.bandwidth.supervisor import STILL_THERE

_STEP_SECONDS = 0.05
_LISTEN_SECONDS = 10.0  # from a server's banner to its open port: CUDA may initialize in between
_SETTLE_SECONDS = 0.5  # the same for a server whose ports cannot be read
_EXIT_SECONDS = 5.0  # for the other process to exit, once one has exited
_FAILED_EXIT_SECONDS = 1.5  # the same, once one has failed: the other may print why
_MOST_ATTEMPTS = 5
_KEPT_LINES = 2000  # from the start, and from the end
_MOST_FACTS = 100


class _Running:
    def __init__(self, planned: PlannedProcess, process: ToolProcess, attempt: int) -> None:
        self.planned, self.process, self.attempt = planned, process, attempt
        tool = planned.command.tool
        self.parser = tool_of(tool).parser(tool)
        self.waiting_since: float | None = None  # for the next process
        self.ended_at: float | None = None


class TestRunner:
    """A context manager: on exit, all processes of the test are stopped."""

    __test__ = False

    def __init__(
        self,
        host: Host,
        starter: ProcessStarter,
        test: PlannedTest,
        on_event: Callable[[BandwidthEvent], object],
        starters: Mapping[str, ProcessStarter] | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """`starters`: by the host of a process; `starter` starts all others. `clock`: default the host's."""
        self._host, self._starter, self._test, self._on_event = host, starter, test, on_event
        self._starters, self._clock = starters or {}, clock or host.monotonic
        self._running: list[_Running] = []
        self._first_lines: list[str] = []
        self._last_lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._first_row_at: float | None = None
        self._is_complete = self._is_canceled = False
        self._not_started: Failure | None = None
        self._failures: list[Failure] = []
        self.samples: list[Sample] = []
        self.facts: list[Fact] = []

    def __enter__(self) -> TestRunner:
        port = self._test.tcp_port
        listeners = listening(self._host) if port else {}
        if not isinstance(listeners, Unknown) and port in listeners:
            # The client would connect to this other server.
            message = f"another process is now listening on TCP port {port}: plan the test again"
            self._not_started = Failure(message, listeners[port], CAUSE)
        else:
            self._start(self._test.processes[0])
        return self

    def __exit__(self, *_: object) -> None:
        # The client first: it says goodbye to its server.
        with ExitStack() as stack:  # if one cannot be stopped, the others still are
            for running in self._running:
                stack.callback(running.process.end)

    def cancel(self) -> None:
        """Note that the user has canceled the test."""
        self._is_canceled = True

    def step(self, seconds: float = _STEP_SECONDS) -> bool:
        """Read what the processes have printed, for so many seconds; return whether the test goes on."""
        for number, running in enumerate(self._running):
            # Only reading from the last process blocks, so that no process waits for another's output.
            for line in running.process.lines(seconds if number == len(self._running) - 1 else 0.0):
                self._on_event(LinePrinted(running.planned.name, line))
                (self._first_lines if len(self._first_lines) < _KEPT_LINES else self._last_lines).append(line)
                for output in running.parser.feed(line):
                    self._handle(running, output)
            if running.ended_at is None and running.process.ended is not None:
                running.ended_at = self._clock()
        if not self._running:
            return False
        now = self._clock()
        end_after = self._test.end_after_s
        if end_after is not None and self._first_row_at is not None and now - self._first_row_at >= end_after:
            self._is_complete = True
            return False
        if self._may_start_next(now):
            self._start(self._test.processes[len(self._running)])
        return not self._has_ended(now)

    # Starting processes

    def _start(self, planned: PlannedProcess, attempt: int = 1) -> None:
        argv = planned.command.argv
        self._on_event(ProcessStarted(planned.name, argv))
        starter = self._starters.get(planned.host, self._starter)
        self._running.append(_Running(planned, starter.start(argv, self._test.time_limit_s), attempt))

    def _may_start_next(self, now: float) -> bool:
        """Return whether another process is planned and the last one waits for it."""
        last = self._running[-1]
        if len(self._running) == len(self._test.processes) or last.ended_at is not None:
            return False
        if last.waiting_since is None:
            return False
        waited = now - last.waiting_since
        ports = listening(self._host) if not last.planned.host and self._test.tcp_port else None
        if ports is None or isinstance(ports, Unknown):
            return waited >= _SETTLE_SECONDS
        return self._test.tcp_port in ports or waited >= _LISTEN_SECONDS

    def _retry(self, client: _Running, now: float) -> bool:
        """Start a client again that connected before its remote server was listening."""
        index = self._running.index(client)
        server = self._running[index - 1]
        if index == 0 or not server.planned.host or client.attempt >= _MOST_ATTEMPTS:
            return False
        if server.ended_at is not None or self.samples or client.ended_at is None:
            return False
        if not any("Couldn't connect" in line for line in self._lines[-20:]):
            return False
        if now - client.ended_at >= _SETTLE_SECONDS:
            client.process.end()
            del self._running[index]
            # What it printed about the missing server must not explain a later failure.
            self._first_lines.clear()
            self._last_lines.clear()
            self._start(client.planned, client.attempt + 1)
        return True

    @property
    def _lines(self) -> list[str]:
        return [*self._first_lines, *self._last_lines]

    # Reading

    def _handle(self, running: _Running, output: Output) -> None:
        now = self._clock()
        # Both processes may print the same rows: those of the last one count.
        counts = running.planned is self._test.processes[-1]
        if isinstance(output, Fact):
            if output.about is About.PHASE and output.value == WAITING:
                running.waiting_since = now
            if len(self.facts) < _MOST_FACTS and counts:
                self.facts.append(output)
            self._on_event(FactReported(running.planned.name, output))
        elif isinstance(output, Sample) and counts:
            if self._first_row_at is None:
                self._first_row_at = now
            self.samples.append(output)
            self._on_event(SampleReceived(output, now - self._first_row_at))
        elif isinstance(output, Failure) and len(self._failures) < _MOST_FACTS:
            self._failures.append(output)

    # The end

    def _has_ended(self, now: float) -> bool:
        ended = [running for running in self._running if running.ended_at is not None]
        if not ended or any(self._retry(running, now) for running in ended):
            return False
        # A server that exits before its client was started will never get one.
        if len(ended) == len(self._running):
            return True
        failed = any(running.process.ended.exit_status != 0 for running in ended if running.process.ended)
        last = max(running.ended_at or 0.0 for running in ended)
        return now - last >= (_FAILED_EXIT_SECONDS if failed else _EXIT_SECONDS)

    def outcome(self) -> tuple[Ending, Failure | None]:
        """Return how the test ended, and the failure or what is left of it; only after the context's exit."""
        if self._not_started is not None:
            return Ending.FAILED, self._not_started
        if self._is_canceled:
            return Ending.CANCELED, self._left_behind()
        if self._is_complete:
            return Ending.DONE, self._left_behind()
        failure = self._exit_failure() or self._missing_result()
        return (Ending.DONE, None) if failure is None else (Ending.FAILED, failure)

    def cpu_seconds(self) -> float | None:
        """Return the CPU time of the processes on this node; None if one is unknown; only after the exit."""
        ends = [running.process.ended for running in self._running if not running.planned.host]
        times = [None if end is None else end.cpu_seconds for end in ends]
        known_times = [time for time in times if time is not None]
        return sum(known_times) if known_times and len(known_times) == len(times) else None

    def exit_reasons(self) -> tuple[str, ...]:
        """Return why processes ended, if there is more to say than their exit status."""
        ends = [running.process.ended for running in self._running]
        return tuple(end.why for end in ends if end is not None and end.why)

    def _missing_result(self) -> Failure | None:
        """Tools may exit with status 0 though they measured nothing, or only one of two directions."""
        settings = self._test.settings
        reported = min(self._failures, key=lambda failure: failure.rank, default=None)
        measured = {sample.what for sample in self.samples}
        missing = next((name for name in settings.required_tests if name not in measured), "")
        if missing:
            waived = next((fact.value for fact in self.facts if fact.about is About.WAIVED), "")
            text = f"{missing} printed no result{f' (waived: {waived})' if waived else ''}"
            return reported or Failure(text, "", SYMPTOM)
        if not self.samples:
            return reported or Failure("the tool exited without a result", "", SYMPTOM)
        return None

    def _left_behind(self) -> Failure | None:
        """Return that a process could not be stopped: the node is not idle."""
        for running in self._running:
            ended = running.process.ended
            if ended is not None and STILL_THERE in ended.why:
                return Failure(f"{running.planned.name}: {ended.why}", "", CAUSE)
        return None

    def _exit_failure(self) -> Failure | None:
        status = 0
        for running in self._running:
            ended = running.process.ended
            if ended is not None and ended.exit_status is None:
                return Failure(f"{running.planned.name}: {ended.why}", "", CAUSE)
            # A process that was stopped here after the other had exited has not failed.
            if ended is not None and running.ended_at is not None and ended.exit_status:
                if ended.why:
                    return self._explain(None) or Failure(ended.why, "", CAUSE)
                status = status or ended.exit_status
        return self._explain(status)

    def _explain(self, status: int | None) -> Failure | None:
        return explain(self._test.tool, self._lines, status, self._test.memory)
