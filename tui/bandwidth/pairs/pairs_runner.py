"""Runs the tests of one round between pairs of nodes, all at the same time, and stops all of their ends.

One thread reads what all processes print, so a node that has hung must not block it: see NodeProcesses.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol, TypeVar

from probes.bandwidth.model.planned_series import PlannedTest
from probes.bandwidth.model.rating import headline
from probes.bandwidth.model.result import Ending
from probes.base.frozen import frozen
from probes.base.grouping import grouped
from probes.base.unknown import Maybe, Reason, Unknown
from probes.fleet.attribution import PairResult
from probes.fleet.pairs import NodeRail, PairSettings, limit_gbps
from probes.host.protocol import Host
from tui.bandwidth.processes import ProcessStarter
from tui.bandwidth.runner import TestRunner
from tui.bandwidth.supervisor import STILL_THERE

Key = TypeVar("Key")
UNCONFIRMED = "cannot tell whether the test has ended there"
"""In `ProcessExit.why` of a process whose node answers no more."""


class NodeProcesses(ProcessStarter, Protocol):
    """Starts the processes of tests on one node, and ends them.

    `start` and `lines(0.0)` must return at once: one thread starts and reads the processes of all nodes. If
    the node does not answer, `start` returns a process that has ended, with the reason. The node itself must
    end a process after its time limit, and when the connection to gdrtop is lost.
    """

    def close(self) -> None:
        """End all processes that still run on the node, and the connection; any number of times."""


STEP_SECONDS = 0.1
OVERDUE_SECONDS = 10.0  # beyond the time limit of the processes: then a node does not answer
_END_SECONDS = 30.0  # for all ends of a round to be stopped


@frozen
class PairTest:
    """One test of a round: both ends, and what runs on them."""

    server: NodeRail
    client: NodeRail
    test: PlannedTest


class PairsRunner:
    """Runs rounds on nodes: by name, the questions to a node and its processes."""

    def __init__(
        self,
        nodes: Mapping[str, tuple[Host, NodeProcesses]],
        settings: PairSettings,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self._nodes, self._settings = nodes, settings
        self._clock, self._pause = clock, pause
        self._stopped = threading.Event()
        self.left_behind: list[str] = []
        """What may still run on a node, a sentence each."""

    def stop(self) -> None:
        """Stop the running round, from any thread or a signal handler."""
        self._stopped.set()

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stopped.is_set()

    def run(self, tests: Sequence[PairTest]) -> tuple[PairResult, ...]:
        """Run the tests of a round; return the results of those that have ended by themselves.

        When this returns or raises, all processes have ended, or `left_behind` has more sentences.
        """
        running = [_RunningTest(test, self._nodes, self._clock) for test in tests]
        try:
            for each in running:
                if self._stopped.is_set():
                    break
                each.start()
            while not self._stopped.is_set():
                going_on = [each for each in running if each.step()]
                if not going_on:
                    break
                self._pause(STEP_SECONDS)
        finally:
            self._end(running)
        return tuple(each.result(self._settings) for each in running if each.is_over)

    def _end(self, running: Sequence[_RunningTest]) -> None:
        by_pair = grouped(((each.test.server.node, each.test.client.node), each) for each in running)
        limit = self._settings.time_limit_s
        self.left_behind += [
            f"{server} or {client} does not answer: {UNCONFIRMED};"
            f" it ends after {limit:.0f} s by its own time limit"
            for server, client in end_together(
                {pair: partial(_end_all, tests) for pair, tests in by_pair.items()}
            )
        ]
        for each in running:
            self.left_behind += [text for text in each.left_behind() if text not in self.left_behind]


def end_together(ends: Mapping[Key, Callable[[], object]]) -> list[Key]:
    """Call all at the same time, because each may take seconds; return those that go on after 30 s."""
    threads = {key: threading.Thread(target=end, daemon=True) for key, end in ends.items()}
    for thread in threads.values():
        thread.start()
    until = time.monotonic() + _END_SECONDS
    for thread in threads.values():
        thread.join(max(0.0, until - time.monotonic()))
    return [key for key, thread in threads.items() if thread.is_alive()]


def _end_all(tests: Sequence[_RunningTest]) -> None:
    for test in tests:
        test.end()


class _RunningTest:
    def __init__(
        self, test: PairTest, nodes: Mapping[str, tuple[Host, NodeProcesses]], clock: Callable[[], float]
    ) -> None:
        self.test = test
        host, processes = nodes[test.client.node]
        others = {test.server.node: nodes[test.server.node][1]}
        self._runner = TestRunner(host, processes, test.test, lambda event: None, others, clock)
        self._clock = clock
        self._began: float | None = None
        self._failure = ""
        self.is_over = False
        """It has ended by itself, or has failed."""

    def start(self) -> None:
        self._began = self._clock()
        self._guarded(self._runner.__enter__)

    def step(self) -> bool:
        """Read what both ends have printed; return whether the test goes on."""
        if self.is_over or self._began is None:
            return False
        if self._clock() - self._began > self.test.test.time_limit_s + OVERDUE_SECONDS:
            self._fail(f"no answer from {self.test.server.node} or {self.test.client.node}")
        elif not self._guarded(lambda: self._runner.step(0.0)):
            self.is_over = True
        return not self.is_over

    def end(self) -> None:
        """Stop both ends; what a lost connection leaves ends by its own time limit."""
        with suppress(OSError):
            self._runner.__exit__(None, None, None)

    def left_behind(self) -> list[str]:
        """Return what could not be stopped, or not be seen to end."""
        names = f"{self.test.server.node} or {self.test.client.node}"
        reasons = self._runner.exit_reasons()
        left = [f"{names}: {why}" for why in reasons if STILL_THERE in why]
        return left + [why for why in reasons if UNCONFIRMED in why]

    def result(self, settings: PairSettings) -> PairResult:
        """Return the result; only after the end."""
        server, client = self.test.server, self.test.client
        return PairResult(
            server=server.pair_end,
            client=client.pair_end,
            rail=client.rail.number,
            memory=client.memory,
            gbps=self._gbps(),
            limit_gbps=limit_gbps(server, client, settings),
        )

    def _gbps(self) -> Maybe[float]:
        source = self.test.test.title
        if self._failure:
            return Unknown(Reason.IO_ERROR, source, self._failure)
        ending, failure = self._runner.outcome()
        figure = headline(self._runner.samples, self.test.test.settings)
        if ending is Ending.DONE and figure is not None and figure.gbps is not None:
            return figure.gbps
        return Unknown(Reason.IO_ERROR, source, failure.text if failure else "it printed no result")

    def _guarded(self, call: Callable[[], object]) -> object:
        """Call it; a lost connection is a failure of this test alone."""
        try:
            return call()
        except OSError as error:
            self._fail(f"connection lost: {error.strerror or error}")
            return None

    def _fail(self, why: str) -> None:
        self._failure, self.is_over = self._failure or why, True
