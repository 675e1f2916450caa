"""Read the node in its own thread, so that a read that hangs never freezes the screen."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from queue import SimpleQueue
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Protocol, Union

from probes.host.probe_thread import Progress, follow

if TYPE_CHECKING:  # imported by the thread, after the first paint
    from probes.checks.judgment import Judgment
    from probes.facts.node import Node
    from probes.live.model.sample import LiveSample
    from probes.snapshot.examination import Examination
    from probes.snapshot.nic_roles import NicRole
    from probes.snapshot.rates import Reading
    from probes.topology.paths import Topology
    from tui.files.since_ok import SinceOk


class Probed(NamedTuple):
    """The whole node, its topology and the roles of its NICs."""

    node: Node
    topology: Topology
    roles: Mapping[str, NicRole] = MappingProxyType({})  # by NIC id; empty if they were not probed


class Sampled(NamedTuple):
    """One reading, and the judgment with it."""

    reading: Reading
    judgment: Judgment
    taken_at: float  # seconds since 1970, by the host's clock
    live: LiveSample | None = None
    needs_check: bool = False  # something has happened that may change the findings


class Failed(NamedTuple):
    """Sampling failed; `what` is a sentence."""

    what: str


class Replayed(NamedTuple):
    """A recording at a moment: what is new there, or with `is_full` all that the screens show."""

    moment: int
    is_full: bool
    reports: tuple[Probed | Sampled, ...]  # in the order of time, ending with a Sampled


class Examined(NamedTuple):
    """An examination, or why it failed."""

    examination: Examination | None
    judgment: Judgment | None = None  # None: the examination failed
    failure: str = ""
    is_recheck: bool = False  # requested to see what an action has changed
    detours: frozenset[tuple[str, str]] = frozenset()  # (GPU, NIC) whose traffic passes the root complex
    since_ok: SinceOk = None  # what has changed since the node last worked


class RecordingState(NamedTuple):
    """The length of the running recording."""

    moments: int
    size_bytes: int


class RecordingEnded(NamedTuple):
    """A recording has ended; `what` says where the file is, or why there is none."""

    what: str
    failed: bool = False


Report = Union[Probed, Sampled, Failed, Replayed, Examined, RecordingState, RecordingEnded]  # noqa: UP007
"""What a source yields; a Union for Python 3.10."""


class ReadingSource(Protocol):
    """Where readings come from: a node, or a recording of one."""

    def read(self, probe: bool) -> Iterator[Report]:
        """Yield reports that end with one reading; with `probe`, probe the whole node first."""

    def examine(self, probe: bool = False) -> tuple[Examination, Judgment]:
        """Check the node now, or at the moment shown; with `probe`, after a probe of the whole node."""

    def release(self) -> None:
        """Release what keeps the NVIDIA driver from being unloaded."""


class ReadingThread:
    """Take readings on request, in its own thread; with `read_only`, save no facts of the node.

    It is a daemon thread: quitting must not wait for a read that never returns.
    """

    def __init__(
        self,
        open_source: Callable[[], ReadingSource],
        report: Callable[[Report], object],
        read_only: bool = False,
    ) -> None:
        self._open_source, self._read_only = open_source, read_only
        self._report = report
        self._wake: SimpleQueue[None] = SimpleQueue()  # cheaper than an Event
        self._probe_requested = False
        self._reading_requested = False
        self._examination_requested = False
        self._fresh_requested = False  # the examination shall probe the whole node
        self._recheck_requested = False
        self._rest_requested = False
        self._rests = threading.Event()
        self._asked_at: float | None = None
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="reading", daemon=True)

    def start(self) -> None:
        """Start the thread and ask for the first reading."""
        self._thread.start()
        self.ask()

    def stop(self) -> None:
        """End the thread after the current read, if that returns."""
        self._stopped = True
        self._wake.put(None)

    def ask(self, probe: bool = False) -> None:
        """Ask for a reading, with `probe` of the whole node; do nothing while one is pending."""
        self._probe_requested = self._probe_requested or probe
        if not self._reading_requested:
            self._reading_requested = True
            self._asked_at = self._asked_at or time.monotonic()
            self._wake.put(None)

    def ask_examination(self, probe: bool = False) -> None:
        """Ask for an examination, with `probe` after a probe of the whole node."""
        self._examination_requested = True
        self._fresh_requested = self._fresh_requested or probe
        self._asked_at = self._asked_at or time.monotonic()
        self._wake.put(None)

    def recheck(self) -> None:
        """Ask for a probe of the whole node and then an examination, to see what an action has changed."""
        self._recheck_requested = True
        self._wake.put(None)

    def rest(self, seconds: float) -> bool:
        """Stop reading and release the driver until `resume`; call it from any other thread.

        Return whether that happened within `seconds`: the current read may never return.
        """
        self._rest_requested = True
        self._wake.put(None)
        return self._rests.wait(seconds)

    def resume(self) -> None:
        """Continue after `rest`."""
        self._rest_requested = False
        self._rests.clear()
        self._asked_at = time.monotonic() if self._reading_requested or self._examination_requested else None
        self._wake.put(None)

    def silent_for(self) -> float:
        """Return the seconds since the oldest unanswered request; 0 if there is none, or at rest."""
        asked_at = self._asked_at
        return 0.0 if asked_at is None or self._rests.is_set() else time.monotonic() - asked_at

    def _run(self) -> None:
        follow(Progress())
        try:
            source = self._open_source()
        except Exception as error:  # the screen shows it and goes on
            self._report(Failed(f"{type(error).__name__}: {error}"))
            return
        while True:
            self._wake.get()
            if self._stopped:
                return
            if self._rest_requested:
                if not self._rests.is_set():
                    source.release()
                    self._rests.set()
                continue
            if self._rests.is_set():
                self._rests.clear()
            recheck, self._recheck_requested = self._recheck_requested, False
            if recheck:  # the probe first, so that the examination is of the node as it is now
                self._probe_requested = self._reading_requested = True
            elif self._examination_requested:
                self._examine(source)
            if self._reading_requested:
                self._read(source)
            if recheck:
                self._examine(source, is_recheck=True)

    def _examine(self, source: ReadingSource, is_recheck: bool = False) -> None:
        probe, self._fresh_requested = self._fresh_requested, False
        self._examination_requested = False
        try:
            from probes.queries.pcie_paths import detours
            from tui.files.since_ok import since_ok

            examination, judgment = source.examine(probe)
            since = since_ok(examination, judgment, self._read_only)
            examined = Examined(examination, judgment, "", is_recheck, detours(examination), since)
        except Exception as error:  # the screen shows it and goes on
            examined = Examined(None, None, f"{type(error).__name__}: {error}", is_recheck)
        self._asked_at = None
        self._report(examined)

    def _read(self, source: ReadingSource) -> None:
        probe, self._probe_requested = self._probe_requested, False
        last: Report | None = None
        try:
            for report in source.read(probe):
                if last is not None:
                    self._report(last)
                last = report
        except Exception as error:  # the screen shows it and goes on
            if last is not None:
                self._report(last)
            last = Failed(f"{type(error).__name__}: {error}")
        # Answered before it is reported, because the receiver may ask again at once.
        self._asked_at, self._reading_requested = None, False
        if last is not None:
            self._report(last)
