"""What a test gave: kept, compared and shown long after it has run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from statistics import median

from probes.bandwidth.judgement import LARGE_BYTES, Judgement, best_of
from probes.bandwidth.perftest_command import PerftestSettings
from probes.bandwidth.planned import Pair, PlannedTest
from probes.bandwidth.samples import Fact, Sample
from probes.tools import PERFTEST

MOST_SAMPLES = 400


class Ending(Enum):
    """How a test ended."""

    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True)
class Result:
    """One test that was run."""

    taken_at: float  # seconds since 1970, when it began
    seconds: float
    node: str  # host name
    machine: str  # the machine's type, as baselines are kept by: "Supermicro SYS-821GE-TNHR, 8 × H100, …"
    origin: str  # "live", or "simulated hgx-h100": never compared with each other
    title: str
    tool: str
    setup: str  # value of choice.Setup
    pair: Pair
    memory: str  # as PlannedTest.memory
    size_bytes: int | None  # None: all sizes, or the tool's own
    queue_pairs: int
    is_bidirectional: bool
    commands: tuple[str, ...]  # of each end, as a shell would take it
    ending: Ending
    samples: tuple[Sample, ...]  # in the order measured; the newest MOST_SAMPLES
    facts: tuple[Fact, ...]
    figure: Sample | None  # what stands for the whole; None: nothing was measured
    judgement: Judgement
    limit_gbps: float | None  # what the label of the limiting part says
    limit_by: str  # "port 1 of mlx5_0"
    trouble: str = ""  # why it failed, a sentence
    trouble_raw: str = ""  # the line that says so

    @property
    def gbps(self) -> float | None:
        """The bandwidth that stands for it; of a collective its bus bandwidth; None for latencies."""
        if self.figure is None:
            return None
        return self.figure.gbps if self.figure.bus_gbps is None else self.figure.bus_gbps

    @property
    def key(self) -> tuple[object, ...]:
        """What two results must have in common to be compared: all but node, machine and time."""
        pair = (self.pair.gpu_label, self.pair.nic, self.pair.port, self.pair.far_nic, self.pair.peer)
        # The title tells collectives over the NICs from those inside the node.
        return (*pair, self.title, self.tool, self.setup, self.memory, *self._load)

    @property
    def _load(self) -> tuple[object, ...]:
        return self.size_bytes, self.queue_pairs, self.is_bidirectional


def figure_of(samples: Sequence[Sample], is_endless: bool) -> Sample | None:
    """The sample that stands for a test: of one that prints a row a second the median, else the fastest.

    The first third of such rows is not counted: traffic is beginning, and on a slow link seconds pass before
    the first of perftest's 128 messages under way is done. Of latencies it is the row of the smallest one.
    """
    if is_endless:
        rows = [one for one in samples if one.gbps is not None]
        rows = rows[len(rows) // 3 :]
        if not rows:
            return None
        middle = median(one.gbps or 0.0 for one in rows)
        nearest = min(rows, key=lambda one: abs((one.gbps or 0.0) - middle))
        return replace(nearest, gbps=middle)
    buses = [one for one in samples if one.bus_gbps is not None]
    if buses:
        return max(buses, key=lambda one: one.bus_gbps or 0.0)
    best = best_of(samples)
    if best is not None:
        return best
    return min(samples, key=lambda one: one.size_bytes or 0, default=None)


def planned_key(test: PlannedTest) -> tuple[object, ...]:
    """`Result.key` of the result that a test will have."""
    pair, settings = test.pair, test.settings
    perftest = settings if isinstance(settings, PerftestSettings) else None
    return (
        *(pair.gpu_label, pair.nic, pair.port, pair.far_nic, pair.peer),
        *(test.title, test.ends[-1].command.tool, test.setup.value, test.memory),
        *(
            (perftest.size_bytes, perftest.queue_pairs, perftest.is_bidirectional)
            if perftest
            else (None, 1, False)
        ),
    )


def newest_of_pairs(results: Iterable[Result], node: str, origin: str) -> dict[tuple[str, str], Result]:
    """The newest bandwidth of each GPU (BDF) and NIC of a node and origin; `results` the oldest first.

    Only what can stand for the pair: RDMA one way, with large messages.
    """
    return {
        (one.pair.gpu, one.pair.nic): one
        for one in results
        if one.ending is Ending.DONE and (one.node, one.origin) == (node, origin)
        if one.pair.gpu and one.pair.nic and one.tool in PERFTEST and not one.is_bidirectional
        if one.gbps is not None and _is_large(one)
    }


def _is_large(result: Result) -> bool:
    size = None if result.figure is None else result.figure.size_bytes
    return size is None or size >= LARGE_BYTES
