"""The reading thread: readings rest while the driver is unloaded; a look again begins with a probe."""

import threading
from collections.abc import Iterator
from typing import Any

from tui.runtime.reading_thread import Examined, Failed, ReadingThread, Report


class NotedSource:
    """Notes what is asked of it; every reading fails, which is one report too."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def read(self, probe: bool) -> Iterator[Report]:
        self.asked.append("probe" if probe else "reading")
        yield Failed("made up")

    def examine(self, probe: bool = False) -> Any:
        self.asked.append("examination")
        return None

    def release(self) -> None:
        self.asked.append("let go")


class Told:
    """Reports, waited for."""

    def __init__(self) -> None:
        self.reports: list[Report] = []
        self._came = threading.Condition()

    def take(self, report: Report) -> None:
        with self._came:
            self.reports.append(report)
            self._came.notify_all()

    def wait_for(self, count: int) -> None:
        with self._came:
            assert self._came.wait_for(lambda: len(self.reports) >= count, 30)


def started() -> tuple[ReadingThread, NotedSource, Told]:
    source, told = NotedSource(), Told()
    thread = ReadingThread(lambda: source, told.take)
    thread.start()
    told.wait_for(1)
    return thread, source, told


def test_a_recheck_probes_first() -> None:
    thread, source, told = started()
    thread.recheck()
    told.wait_for(3)
    thread.stop()
    assert source.asked == ["reading", "probe", "examination"]
    assert isinstance(told.reports[-1], Examined)
    assert told.reports[-1].is_recheck


def test_at_rest_nothing_is_read_and_requests_are_answered_later() -> None:
    thread, source, told = started()
    assert thread.rest(30)
    thread.ask(probe=True)
    thread.ask_examination()
    assert thread.silent_for() == 0.0
    assert source.asked == ["reading", "let go"]
    thread.resume()
    told.wait_for(3)
    assert sorted(source.asked[2:]) == ["examination", "probe"]
    assert thread.rest(30)
    thread.stop()
    assert source.asked[-1] == "let go"
