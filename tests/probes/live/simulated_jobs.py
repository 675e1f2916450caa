"""Simulated nodes under the live view, and what it must tell about each live fault."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from probes.base.unknown import Unknown
from probes.facts.node import Node
from probes.live.live_watch import LiveWatch
from probes.live.sample import LiveEvent, LiveProcess, LiveSample, Role
from probes.queries.finding import Severity
from probes.simulation.host import SimulatedHost
from probes.snapshot.watch import Watch


@dataclass(frozen=True)
class Told:
    """What the live view tells; all texts are patterns."""

    path: str = r"GDR \(peermem\)"  # of the last sample, of each rank
    paths: dict[int, str] = field(default_factory=dict)  # of single ranks, where it differs
    odd: str = ""  # the sentence of what is odd; "": nothing is
    events: tuple[str, ...] = ()  # "kind subject: text"; other warnings must not occur
    ranks: int = 8  # in the last sample


TOLD: dict[str, Told] = {
    "": Told(),
    "job-rank-staged": Told(path=r"GDR \(DMA-BUF\)", paths={5: "staged"}, odd="rank 5 .*staged"),
    "job-restarted-staged": Told(
        path="staged",
        events=(
            r"process-ended pid 41000: ",
            r"process-started pid 41100: .*has queue pairs on mlx5_0",
            r"path-changed pid 41100: .*restarted and uses (likely )?staged, GDR \(DMA-BUF\) before",
        ),
    ),
    "job-tcp": Told(path="TCP"),
    "nic-slow": Told(odd=r"mlx5_6 .*\d+ Gb/s"),
    "nic-flapping": Told(
        events=(
            r"port-state mlx5_3: mlx5_3 went down",
            r"port-state mlx5_3: mlx5_3 is flapping, 3 times down",
            r"kernel-message .*",
        )
    ),
    "rank-stopped": Told(
        events=(r"process-stopped pid 41003: .*rank 3.* is stopped", r"rate-fell .*: 8 NICs of .*")
    ),
    "gpu-off-bus-live": Told(
        events=(r"xid 0000:9b:00.0: Xid 79", r"process-ended pid 41005: .*rank 5", r"rate-fell .*"), ranks=7
    ),
    "congestion": Told(events=(r"pause mlx5_[49]: ", r"errors-rising mlx5_\d: .*")),
    "storage-traffic": Told(),
    "two-jobs-two-users": Told(),
}
"""By live fault on hgx-h100, after 100 s; "" is the healthy node."""


class SimulatedWatch:
    """The live view of a simulated node, sampled once a second of its own clock."""

    def __init__(self, name: str, seed: int = 0) -> None:
        self._now = 5000.0
        self._host = SimulatedHost(name, seed, lambda: self._now)
        self._watch = Watch(self._host)
        self._live = LiveWatch()
        self._node: Node | None = None

    def samples(self, seconds: int) -> Iterator[LiveSample]:
        """Yield a sample of each second."""
        for _ in range(seconds):
            self._node = self._watch.probe(False) or self._node
            assert self._node is not None
            yield self._live.sample(self._host, self._node, self._watch.read())
            self._now += 1.0


def watched(name: str, seconds: int = 100, seed: int = 0) -> list[LiveSample]:
    """Return the samples of a simulated node."""
    return list(SimulatedWatch(name, seed).samples(seconds))


def processes(sample: LiveSample) -> tuple[LiveProcess, ...]:
    """Return the processes, which must be known."""
    assert not isinstance(sample.processes, Unknown), sample.processes
    return sample.processes


def ranks(sample: LiveSample) -> dict[int, LiveProcess]:
    """Return the processes of training jobs by rank; of two jobs, one overwrites the other."""
    return {
        process.rank: process
        for process in processes(sample)
        if process.role is Role.NCCL and not isinstance(process.rank, Unknown)
    }


def events(samples: list[LiveSample], *severities: Severity) -> list[LiveEvent]:
    """Return the events of these severities; all, if none is given."""
    found = (event for sample in samples for event in sample.events)
    return [event for event in found if not severities or event.severity in severities]


def line_of(event: LiveEvent) -> str:
    """Return "kind subject: text"."""
    return f"{event.kind.value} {event.subject}: {event.text}"


def odd_sentences(sample: LiveSample) -> list[str]:
    """Return what is odd in the jobs."""
    return [odd.sentence for job in sample.jobs for odd in job.odd]


def matches(pattern: str, text: str) -> bool:
    """Say whether a pattern is in a text."""
    return re.search(pattern, text) is not None
