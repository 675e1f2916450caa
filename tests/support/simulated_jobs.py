"""Simulated nodes under the live view, and what it must tell about each live fault."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from probes.base.evidence import Severity
from probes.base.unknown import Unknown
from probes.facts.node import Node
from probes.live.live_sampler import LiveSampler
from probes.live.model.sample import LiveEvent, LiveProcess, LiveSample, Role
from probes.live.processes.processes import ProcessReader
from probes.simulation.host import SimulatedHost
from probes.snapshot.node_reader import NodeReader


@dataclass(frozen=True)
class Told:
    """What the live view tells after SECONDS; all texts are patterns."""

    path: str = r"likely GDR \(peermem\)"  # of each rank
    paths: Mapping[int, str] = field(default_factory=dict)  # of single ranks, where it differs
    odd: str = ""  # the sentence of what is odd; "": nothing is
    events: tuple[str, ...] = ()  # "kind subject: text"
    besides: str = ""  # other events that may occur; "": none but notes
    jobs: tuple[str, ...] = (r"train.py \(alice, Slurm job 4711\)",)
    ranks: int = 8


SECONDS = 70
TOLD: dict[str, Told] = {
    "": Told(),
    "job-rank-staged": Told(
        path=r"likely GDR \(DMA-BUF\)",
        paths={5: "staged"},
        odd=r"rank 5 \(pid 41005\) copies through host memory \(staged\); the other 7 ranks .* \(DMA-BUF\)",
    ),
    "job-restarted-staged": Told(
        path="staged",
        events=(
            "process-ended train.py .*: ranks 0-7 of train.py .* ended",
            "process-started train.py .*: ranks 0-7 of train.py .* use RDMA",
            r"path-changed train.py .*: ranks 0-7 .* now copy .*\(staged\), previously GDR \(DMA-BUF\)",
        ),
        besides="path-changed",
    ),
    "job-tcp": Told(path="TCP"),
    "nic-slow": Told(odd=r"mlx5_6 \w+ \d+ Gb/s; the other 7 NICs of this job \w+ \d+ Gb/s"),
    "nic-flapping": Told(
        events=(
            "port-state mlx5_3: mlx5_3 went down",
            "port-state mlx5_3: mlx5_3 is up again after 5 s",
            "port-state mlx5_3: mlx5_3 is flapping: down 3 times in",
            "kernel-message .*: mlx5_core .*: Cable unplugged|kernel-message .*Link down",
        ),
        besides="(kernel-message|errors-rising|port-state) ",
    ),
    "nic-link-retrained": Told(
        events=("link-retrained mlx5_7: the PCIe link of mlx5_7 changed from Gen5 x16 to Gen4 x16",)
    ),
    "rank-stopped": Told(
        odd=r"rank 3 \(pid 41003\) is stopped; the other 7 ranks of this job are waiting for it",
        events=(
            r"process-stopped pid 41003: pid 41003 \(train.py, rank 3\) is stopped",
            "rate-fell .*8 NICs of train.py .*carry 0.0 Gb/s",
        ),
    ),
    "rank-behind": Told(events=("rate-fell .*8 NICs of train.py .*carry 0.0 Gb/s",)),
    "gpu-off-bus-live": Told(
        events=("xid 0000:9b:00.0: Xid 79", "process-ended pid 41005: .*rank 5.* ended"),
        besides="(rate-fell|gpu-lost|kernel-message) ",
        ranks=7,
    ),
    "congestion": Told(
        events=("errors-rising mlx5_0: mlx5_0 waits for credits from the switch",), besides="rate-fell "
    ),
    "gpu-throttled-live": Told(events=(r"throttled 0000:.*: GPU 0 .*is throttled \(HW thermal\)",)),
    "packets-lost-live": Told(events=("errors-rising mlx5_0: mlx5_0 retransmits packets",)),
    "job-hung": Told(),
    # The first two need other NICs, the third is healthy, and the fourth shows after five minutes.
    **dict.fromkeys(("ecmp-collision", "plane-unused", "adaptive-routing-seen", "nic-uneven"), Told()),
    "storage-traffic": Told(jobs=(r"train.py \(alice", r"mmfsd \(root\)")),
    "two-jobs-two-users": Told(
        path=r"likely GDR \(DMA-BUF\)",
        jobs=(r"train.py \(alice, Slurm job 4711\)", r"finetune.py \(bob, Slurm job 4712\)"),
        ranks=4,
    ),
}
"""By live fault, on hgx-h100 with seed 0; "" is the healthy node."""


class SimulatedWatch:
    """The live view of a simulated node, sampled once a second of its own clock."""

    def __init__(self, name: str, seed: int = 0) -> None:
        self._now = 5000.0
        self._host = SimulatedHost(name, seed, lambda: self._now)
        self._node_reader = NodeReader(self._host)
        self._live = evenly_paced(LiveSampler())
        self._node: Node | None = None

    def samples(self, seconds: int) -> Iterator[LiveSample]:
        """Yield a sample of each second."""
        for _ in range(seconds):
            self._node = self._node_reader.probe(False) or self._node
            assert self._node is not None
            yield self._live.sample(self._host, self._node, self._node_reader.read())
            self._now += 1.0


def evenly_paced(live: LiveSampler) -> LiveSampler:
    """Let the view ask its sources at their usual pace, also on a busy machine."""
    live._processes = ProcessReader(clock=lambda: 0.0)
    return live


@cache
def watched(name: str, seconds: int = SECONDS, seed: int = 0) -> tuple[LiveSample, ...]:
    """Return the samples of a simulated node."""
    return tuple(SimulatedWatch(name, seed).samples(seconds))


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


def events(samples: Sequence[LiveSample], *severities: Severity) -> list[LiveEvent]:
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
