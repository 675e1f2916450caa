"""Reads the node in a thread of its own, so that a read that hangs never freezes the screen."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Union

if TYPE_CHECKING:  # what the thread needs it loads itself, once the screen has been painted
    from probes.checks.verdict import Verdict
    from probes.host import Host
    from probes.node import Node
    from probes.rates import Reading
    from probes.topology import Topology


@dataclass(frozen=True)
class Probed:
    """The whole node, probed anew, and what follows from it."""

    node: Node
    topology: Topology


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


Report = Union[Probed, Sampled, Failed]  # noqa: UP007 - evaluated at run time, also on Python 3.10


class Sampler:
    """Takes a reading when asked; probes the whole node first, and again when it has changed.

    A daemon thread, not a pool's: leaving the program must not wait for a read that never ends.
    """

    def __init__(self, open_host: Callable[[], Host], report: Callable[[Report], object]) -> None:
        self._open_host = open_host
        self._report = report
        self._wanted = threading.Event()
        self._probe_wanted = True
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
        if self._asked_at is None:
            self._asked_at = time.monotonic()
            self._wanted.set()

    def silent_for(self) -> float:
        """Seconds since the question that is still unanswered; 0 when all are answered."""
        asked_at = self._asked_at
        return 0.0 if asked_at is None else time.monotonic() - asked_at

    def _run(self) -> None:
        try:
            host = self._open_host()
        except Exception as error:  # the screen must say so and live on
            self._report(Failed(f"{type(error).__name__}: {error}"))
            return
        from probes.changes import fingerprint
        from probes.checks.verdict import judge
        from probes.node import probe_node
        from probes.rates import read
        from probes.topology import build

        probed: Probed | None = None
        before: Hashable = None
        while True:
            self._wanted.wait()
            self._wanted.clear()
            if self._stopped:
                return
            report: Report
            try:
                now = fingerprint(host)
                if probed is None or self._probe_wanted or now != before:
                    self._probe_wanted = False
                    before = now
                    node = probe_node(host)
                    probed = Probed(node, build(node))
                    self._report(probed)
                reading = read(host, probed.node)
                report = Sampled(reading, judge(probed.node, probed.topology, reading), host.wall_clock())
            except Exception as error:  # whatever a probe did, the screen says so and lives on
                report = Failed(f"{type(error).__name__}: {error}")
            # Answered before it is told: who hears of it may ask again at once.
            self._asked_at = None
            self._report(report)
