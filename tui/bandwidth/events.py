"""What happens while tests run, told to whoever shows it."""

from __future__ import annotations

from dataclasses import dataclass

from probes.bandwidth.model.planned_test import PlannedTest, Series
from probes.bandwidth.model.result import Result
from probes.bandwidth.tools.samples import Fact, Sample


@dataclass(frozen=True)
class SeriesStarted:
    """A series begins."""

    series: Series


@dataclass(frozen=True)
class ImpactCheckStarted:
    """Before a test it is looked who would feel it by now."""


@dataclass(frozen=True)
class TestStarted:
    """A test begins: the first is 1."""

    __test__ = False

    number: int
    test: PlannedTest


@dataclass(frozen=True)
class ProcessStarted:
    """A process of the test was started."""

    end: str
    argv: tuple[str, ...]


@dataclass(frozen=True)
class LinePrinted:
    """A line of one end, harmless to show."""

    end: str
    line: str


@dataclass(frozen=True)
class SampleReceived:
    """A row that counts, so many seconds after the test's first row."""

    sample: Sample
    seconds: float


@dataclass(frozen=True)
class FactReported:
    """What a tool said about the run."""

    end: str
    fact: Fact


@dataclass(frozen=True)
class TestEnded:
    """A test is over, and nothing of it is left running."""

    __test__ = False

    number: int
    result: Result


@dataclass(frozen=True)
class SaveFailed:
    """A result could not be kept."""

    why: str


@dataclass(frozen=True)
class SeriesEnded:
    """All is over."""

    results: tuple[Result, ...]
    was_cancelled: bool = False
    refused: str = ""  # why nothing was begun
    aborted: str = (
        ""  # why the tests that are left were not begun, a sentence that names who would feel them
    )


BandwidthEvent = (
    SeriesStarted
    | ImpactCheckStarted
    | TestStarted
    | ProcessStarted
    | LinePrinted
    | SampleReceived
    | FactReported
    | TestEnded
    | SaveFailed
    | SeriesEnded
)
