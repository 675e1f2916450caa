"""A tool on a simulated node prints by the node's clock, and is ended like a real one."""

import signal
from collections.abc import Sequence

import pytest

from tui.bandwidth.processes import ProcessExit
from tui.bandwidth.simulated_processes import SimulatedProcessStarter


class Clock:
    """Goes on only where somebody waits."""

    def __init__(self) -> None:
        self.now = 100.0

    def wait(self, seconds: float) -> None:
        self.now += seconds


class Played:
    """Prints a line each second and ends after the last; a deaf one only by SIGKILL."""

    def __init__(self, clock: Clock, lines: Sequence[str], deaf: bool) -> None:
        self._clock, self._lines, self._deaf = clock, lines, deaf
        self._began, self._given = clock.now, 0
        self.signals: list[tuple[float, int]] = []
        self._ended_by = 0

    def lines(self) -> tuple[str, ...]:
        if self._ended_by:
            return ()
        told = tuple(self._lines[self._given : int(self._clock.now - self._began + 1e-6)])
        self._given += len(told)
        return told

    @property
    def exit_status(self) -> int | None:
        if self._ended_by:
            return -self._ended_by
        return 0 if self._given == len(self._lines) else None

    def cpu_seconds(self, seconds: float) -> float:
        return 2 * seconds

    def end(self, signal: int) -> None:
        self.signals.append((self._clock.now, signal))
        if not self._deaf or signal == 9:
            self._ended_by = signal


class Node:
    def __init__(self, lines: Sequence[str], deaf: bool = False) -> None:
        self.clock, self._lines, self._deaf = Clock(), lines, deaf
        self.begun: list[tuple[str, ...]] = []

    def monotonic(self) -> float:
        return self.clock.now

    def begin_test(self, argv: Sequence[str]) -> Played:
        self.begun.append(tuple(argv))
        self.played = Played(self.clock, self._lines, self._deaf)
        return self.played

    @property
    def processes(self) -> SimulatedProcessStarter:
        return SimulatedProcessStarter(self, self.clock.wait)


def test_lines_come_one_by_one_and_then_the_end() -> None:
    node = Node(["one", "\x1b[31mtwo\x1b[2J\x07"])
    process = node.processes.start(["ib_write_bw", "-d", "mlx5_0"], 30.0)
    assert node.begun == [("ib_write_bw", "-d", "mlx5_0")]
    assert process.lines(0.5) == []
    assert node.clock.now == pytest.approx(100.5)
    assert process.ended is None
    assert process.lines(30.0) == ["one"]
    assert node.clock.now == pytest.approx(101.0, abs=0.1)
    assert process.ended is None
    assert process.lines(30.0) == ["two�"]
    assert process.ended is not None
    assert process.ended == ProcessExit(0, process.ended.seconds, cpu_seconds=2 * process.ended.seconds)
    assert process.ended.seconds == pytest.approx(2.0, abs=0.1)
    assert process.lines(30.0) == []


def test_what_was_printed_is_taken_before_it_has_ended() -> None:
    node = Node(["one", "two", "three"])
    process = node.processes.start(["tool"], 30.0)
    node.clock.wait(2.5)
    process.end()
    assert process.ended is None
    assert process.lines(0.0) == ["one", "two"]
    assert process.ended == ProcessExit(-signal.SIGTERM, 2.5, "canceled", 5.0)


def test_its_time_is_limited() -> None:
    node = Node(["line"] * 100)
    process = node.processes.start(["tool"], 3.5)
    lines = []
    while process.ended is None:
        lines += process.lines(1.0)
    assert lines == ["line"] * 3
    assert process.ended.exit_status == -signal.SIGTERM
    assert process.ended.why == "stopped after its time limit of 3.5 s"


def test_who_ignores_the_first_signal_is_killed_after_the_grace() -> None:
    node = Node(["line"] * 100, deaf=True)
    process = node.processes.start(["tool"], 30.0)
    process.end()
    (terminated, first), (killed, second) = node.played.signals
    assert (first, second) == (signal.SIGTERM, signal.SIGKILL)
    assert killed - terminated == pytest.approx(2.0, abs=0.1)
    process.lines(0.0)
    assert process.ended == ProcessExit(-signal.SIGKILL, 0.0, "canceled", 0.0)


def test_ending_twice_and_after_the_end_signals_nobody_again() -> None:
    node = Node(["line"])
    process = node.processes.start(["tool"], 30.0)
    process.end()
    process.end()
    assert len(node.played.signals) == 1
    done = node.processes.start(["tool"], 30.0)
    assert done.lines(5.0) == ["line"]
    done.end()
    assert node.played.signals == []
    assert done.ended is not None
    assert done.ended.exit_status == 0
