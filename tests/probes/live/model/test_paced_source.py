"""Sources that are read together, and what one of them costs the others if it does not answer."""

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from probes.base.unknown import Maybe, Unknown
from probes.live.model.paced_source import PacedSource, Question, read_together
from probes.simulation.host import SimulatedHost


class Sources:
    """Two sources that answer the name of their thread, or not while they hang."""

    def __init__(self) -> None:
        self.host = SimulatedHost("hgx-h100")  # its own: threads of another test may still end
        self.gate = threading.Event()
        self.hangs = ""
        self.both = [PacedSource[str](name, 1.0) for name in ("first", "second")]

    def ask(self, name: str) -> Callable[[], Maybe[str]]:
        def answer() -> str:
            if name == self.hangs:
                self.gate.wait(60)
            return f"{name} in thread {threading.get_ident()}"

        return answer

    def read(self, now: float) -> list[str]:
        """Return the answers, "unknown" for a source that has none, and "late" behind the last ones.

        On a busy machine a thread may begin later than a reading waits for it: then it is read once more.
        """
        questions = [Question(source, self.ask(source.name)) for source in self.both]
        until = time.monotonic() + 20
        while True:
            read_together(self.host, now, *questions)
            waiting = [source for source in self.both if source.name != self.hangs and source.asked_at != now]
            if not waiting or time.monotonic() > until:
                break
        return [
            ("unknown" if isinstance(source.answer, Unknown) else source.answer) + " late" * source.is_late
            for source in self.both
        ]


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sources]:
    monkeypatch.setattr("probes.live.model.paced_source.PATIENCE_SECONDS", 0.25)
    pair = Sources()
    yield pair
    pair.gate.set()


def test_sources_of_one_reading_share_a_thread(sources: Sources) -> None:
    first, second = sources.read(1.0)
    assert first.removeprefix("first") == second.removeprefix("second")
    assert str(threading.get_ident()) not in first


def test_a_source_that_hangs_costs_no_answer_of_the_next(sources: Sources) -> None:
    sources.hangs = "first"
    for now in (1.0, 2.0, 3.0):
        first, second = sources.read(now)
        assert first == "unknown late"
        assert second.startswith("second in thread")
        assert sources.both[1].asked_at == now


def test_a_source_that_hangs_costs_no_answer_of_the_one_before(sources: Sources) -> None:
    sources.hangs = "second"
    for now in (1.0, 2.0, 3.0):
        first, second = sources.read(now)
        assert first.startswith("first in thread")
        assert second == "unknown late"
        assert sources.both[0].asked_at == now


def test_a_thread_that_begins_late_and_hangs_delays_only_one_source(
    sources: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("probes.live.model.paced_source.PATIENCE_SECONDS", 0.0)
    sources.hangs = "first"
    first, second = sources.read(1.0)
    assert second.startswith("second in thread")
    assert first == "unknown late"


@pytest.mark.parametrize("name", ["first", "second"])
def test_a_source_that_hangs_for_minutes_is_asked_again(sources: Sources, name: str) -> None:
    sources.hangs = name
    other = sources.both[name == "first"]
    for now in (1.0, 62.5, 63.5, 125.0):  # given up after a minute, and asked again in a thread of its own
        sources.read(now)
        assert other.asked_at == now
        assert not other.is_late
