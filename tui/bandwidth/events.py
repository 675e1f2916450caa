"""Events of a series of bandwidth tests, for the screen and the command line."""

from __future__ import annotations

from probes.bandwidth.model.planned_series import PlannedTest, Series
from probes.bandwidth.model.result import Result
from probes.bandwidth.model.samples import Fact, Sample
from probes.base.frozen import frozen


@frozen
class SeriesStarted:
    """A series has started."""

    series: Series


@frozen
class ImpactCheckStarted:
    """gdrtop is checking whom the next test would affect."""


@frozen
class TestStarted:
    """A test has started; the first has the number 1."""

    __test__ = False

    number: int
    test: PlannedTest


@frozen
class ProcessStarted:
    """A process of the test has started."""

    process: str  # "server", "client", or the tool
    argv: tuple[str, ...]


@frozen
class LinePrinted:
    """A process printed a line; control characters are already neutralized."""

    process: str
    line: str


@frozen
class SampleReceived:
    """A row that counts, and the seconds since the first row of the test."""

    sample: Sample
    seconds: float


@frozen
class FactReported:
    """A tool reported something about the run."""

    process: str
    fact: Fact


@frozen
class TestEnded:
    """A test has ended, and none of its processes is left."""

    __test__ = False

    number: int
    result: Result


@frozen
class SaveFailed:
    """A result could not be saved."""

    reason: str


@frozen
class SeriesEnded:
    """The series has ended."""

    results: tuple[Result, ...]
    was_canceled: bool = False
    refused: str = ""  # why nothing was started
    aborted: str = ""  # why the remaining tests were not started: whom they would affect


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
