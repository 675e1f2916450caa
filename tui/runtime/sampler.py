"""Reads the node in a thread of its own, so that a read that hangs never freezes the screen."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, Union

from probes.host.progress import Progress, follow

if TYPE_CHECKING:  # what the thread needs it loads itself, once the screen has been painted
    from probes.facts.node import Node
    from probes.snapshot.examination import Examination
    from probes.snapshot.nic_roles import NicRole
    from probes.snapshot.rates import Reading
    from probes.snapshot.verdict import Verdict
    from probes.topology.paths import Topology


@dataclass(frozen=True)
class Probed:
    """The whole node as just probed, and what follows from it."""

    node: Node
    topology: Topology
    roles: Mapping[str, NicRole] = field(default_factory=dict)  # by NIC id; empty: not asked


@dataclass(frozen=True)
class Sampled:
    """One reading and the verdict with it."""

    reading: Reading
    verdict: Verdict
    taken_at: float  # seconds since 1970, the host's clock


@dataclass(frozen=True)
class Failed:
    """Sampling itself failed: what happened, in a sentence."""

    what: str


@dataclass(frozen=True)
class Replayed:
    """A recording at a moment: what is new there, or with `anew` all that the screens show."""

    moment: int
    anew: bool
    reports: tuple[Probed | Sampled, ...]  # in the order of time; the last one is Sampled


@dataclass(frozen=True)
class Examined:
    """What the doctor looked at; or why it could not."""

    examination: Examination | None
    failure: str = ""
    looked_again: bool = False  # it was made to see what an action has changed
    detours: frozenset[tuple[str, str]] = frozenset()  # (GPU, NIC) whose traffic passes the root complex


@dataclass(frozen=True)
class RecordingState:
    """How far a recording of this node has come."""

    moments: int
    size_bytes: int


@dataclass(frozen=True)
class RecordingEnded:
    """A recording has ended: where the file is, or why there is none."""

    what: str
    failed: bool = False


Report = Union[Probed, Sampled, Failed, Replayed, Examined, RecordingState, RecordingEnded]  # noqa: UP007
"""What a source gives; written so for Python 3.10."""


class ReadingSource(Protocol):
    """Where readings come from: a node, or a recording of one."""

    def take(self, probe: bool) -> Iterator[Report]:
        """One reading, the last of what is given; with `probe` after a probe of the whole node."""

    def examine(self) -> Examination:
        """All that the doctor looks at, as of now or of the moment shown."""

    def release(self) -> None:
        """Gives back what keeps the NVIDIA driver from being unloaded."""


def _detours_of(examination: Examination | None) -> frozenset[tuple[str, str]]:
    """The pairs of GPU and NIC below one switch whose traffic leaves it all the same."""
    if examination is None:  # a source without a node
        return frozenset()
    from probes.queries.acs_redirects import detours

    return detours(examination)


class Sampler:
    """Has a reading taken when asked, in a thread of its own.

    A daemon thread, not a pool's: leaving the program must not wait for a read that never ends.
    """

    def __init__(self, open_source: Callable[[], ReadingSource], report: Callable[[Report], object]) -> None:
        self._open_source = open_source
        self._report = report
        self._wanted = threading.Event()
        self._probe_wanted = False
        self._reading_wanted = False
        self._examination_wanted = False
        self._look_wanted = False
        self._rest_wanted = False
        self._rests = threading.Event()
        self._asked_at: float | None = None
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def start(self) -> None:
        """Starts the thread and asks for the first reading."""
        self._thread.start()
        self.ask()

    def stop(self) -> None:
        """Ends the thread after the read under way, if that ever ends."""
        self._stopped = True
        self._wanted.set()

    def ask(self, probe: bool = False) -> None:
        """Asks for a reading, with `probe` of the whole node; while one is under way, for nothing more."""
        self._probe_wanted = self._probe_wanted or probe
        if not self._reading_wanted:
            self._reading_wanted = True
            self._asked_at = self._asked_at or time.monotonic()
            self._wanted.set()

    def ask_examination(self) -> None:
        """Asks for an examination by the doctor."""
        self._examination_wanted = True
        self._asked_at = self._asked_at or time.monotonic()
        self._wanted.set()

    def look_again(self) -> None:
        """Asks for a probe of the whole node and then an examination, to see what an action has changed."""
        self._look_wanted = True
        self._wanted.set()

    def rest(self, seconds: float) -> bool:
        """Takes no reading until `resume`, and holds nothing of the driver; from any thread but its own.

        Whether that was so within `seconds`: a read under way may never end.
        """
        self._rest_wanted = True
        self._wanted.set()
        return self._rests.wait(seconds)

    def resume(self) -> None:
        """Reads on after a rest."""
        self._rest_wanted = False
        self._rests.clear()
        self._asked_at = time.monotonic() if self._reading_wanted or self._examination_wanted else None
        self._wanted.set()

    def silent_for(self) -> float:
        """Seconds since the question that is still unanswered; 0 when all are answered, or at rest."""
        asked_at = self._asked_at
        return 0.0 if asked_at is None or self._rests.is_set() else time.monotonic() - asked_at

    def _run(self) -> None:
        follow(Progress())
        try:
            source = self._open_source()
        except Exception as error:  # the screen must say so and live on
            self._report(Failed(f"{type(error).__name__}: {error}"))
            return
        while True:
            self._wanted.wait()
            self._wanted.clear()
            if self._stopped:
                return
            if self._rest_wanted:
                if not self._rests.is_set():
                    source.release()
                    self._rests.set()
                continue
            self._rests.clear()
            look, self._look_wanted = self._look_wanted, False
            if look:  # the probe first, so that the examination is of the node as it is now
                self._probe_wanted = self._reading_wanted = True
            elif self._examination_wanted:
                self._examine(source)
            if self._reading_wanted:
                self._read(source)
            if look:
                self._examine(source, looked_again=True)

    def _examine(self, source: ReadingSource, looked_again: bool = False) -> None:
        self._examination_wanted = False
        try:
            examination = source.examine()
            examined = Examined(examination, "", looked_again, _detours_of(examination))
        except Exception as error:  # whatever a probe did, the screen says so and lives on
            examined = Examined(None, f"{type(error).__name__}: {error}", looked_again)
        self._asked_at = None
        self._report(examined)

    def _read(self, source: ReadingSource) -> None:
        probe, self._probe_wanted = self._probe_wanted, False
        last: Report | None = None
        try:
            for report in source.take(probe):
                if last is not None:
                    self._report(last)
                last = report
        except Exception as error:  # whatever a probe did, the screen says so and lives on
            if last is not None:
                self._report(last)
            last = Failed(f"{type(error).__name__}: {error}")
        # Answered before it is told: who hears of it may ask again at once.
        self._asked_at, self._reading_wanted = None, False
        if last is not None:
            self._report(last)
