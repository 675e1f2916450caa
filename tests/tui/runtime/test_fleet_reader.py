"""The reader of a fleet: one reading at a time, kept for the next screen, failures as text."""

import threading
from collections.abc import Callable

import pytest

from probes.fleet.summary import NodeSummary
from tests.support.fleet_screens import FIRST, SECOND, Found
from tui.runtime.fleet_reader import FleetReader, Progress


def test_only_one_reading_runs_at_a_time_and_the_next_screen_gets_it() -> None:
    go, begun = threading.Event(), threading.Semaphore(0)
    readings = [FIRST, SECOND]

    def read(progress: Progress, _: object) -> Found:
        begun.release()
        assert go.wait(60)
        return readings.pop(0)

    reader = FleetReader(read)
    assert reader.seconds_since is None
    reader.start()
    assert begun.acquire(timeout=60)
    reader.start()  # does nothing
    assert reader.is_reading
    reader.detach()  # the screen closes meanwhile
    go.set()
    reader.wait(60)
    assert len(readings) == 1
    reading = reader.take()
    assert reading is not None
    assert reading.fleet is not None
    assert len(reading.fleet.summaries) == 5
    assert reader.take() is None
    assert reader.seconds_since is not None


def test_a_reading_is_not_lost_to_the_next_one() -> None:
    times = iter((1.0, 2.0))
    reader = FleetReader(lambda *_: FIRST, lambda: next(times))
    for _ in range(2):
        reader.start()
        reader.wait(60)
    taken = [reader.take() for _ in range(3)]
    assert [reading and reading.at for reading in taken] == [1.0, 2.0, None]


def test_progress_and_the_end_are_notified_and_an_error_is_text() -> None:
    seen: list[tuple[int, int]] = []

    def read(progress: Progress, _: object) -> Found:
        progress(1, 2)
        progress(1, 2)
        raise OSError("no processes left")

    reader = FleetReader(read)
    reader.attach(lambda: seen.append(reader.progress))
    reader.start()
    reader.wait(60)
    assert seen == [(1, 2), (1, 2)]  # once for the progress, once for the end
    reading = reader.take()
    assert reading is not None
    assert reading.fleet is None
    assert reading.failure == "OSError: no processes left"
    assert not reader.is_reading


def test_the_next_reading_is_due_by_the_last_answer_and_not_by_a_node_that_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr("tui.runtime.fleet_reader.time.monotonic", lambda: now[0])

    def read(progress: Progress, found: Callable[[NodeSummary], object]) -> Found:
        found(FIRST[0][0])
        now[0] += 60.0  # the limit of the node that hangs
        return FIRST

    reader = FleetReader(read)
    reader.start()
    reader.wait(60)
    assert reader.seconds_since == 60.0
    assert not reader.take_found()  # they are in the reading
