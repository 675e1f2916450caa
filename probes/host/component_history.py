"""What NICs and GPUs did over weeks of jobs, as `gdrtop watch` has kept it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import Enum

from probes.base.frozen import frozen

SOURCE = "gdrtop watch"
MOST_JOBS = 20  # in an answer, the newest ones, and as many in which components were compared
MOST_COMPONENTS = 256
LAST_JOBS = 10  # by which a component is judged
LEAST_JOBS = 3  # in which a component was compared; with fewer, nothing says how often it was slow
LEAST_COMPARED_SECONDS, LEAST_SLOW_SHARE = 60.0, 0.1
MOST_NUMBER = 4e9  # of seconds since 1970, in 2096; of seconds and counts too


class Mark(Enum):
    """What is counted of a component; the value stands in the database and in JSON."""

    DOWN = "down"  # the port was active, and no longer is
    ERRORS = "errors"  # an error counter began to rise
    PAUSED = "paused"
    LINE_RATE = "line-rate-fell"
    PCIE_LINK = "pcie-link-fell"
    XID = "xid"
    LOST = "lost"
    THROTTLED = "throttled"


def known_counts(counts: Mapping[str, int]) -> dict[str, int]:
    """Return the counts of marks that gdrtop knows, by their values."""
    return {mark.value: counts[mark.value] for mark in Mark if mark.value in counts}


@frozen
class JobPart:
    """What a component did in one job."""

    job: int  # index in ComponentHistory.jobs
    compared_seconds: float = 0.0  # in which it could be compared with the others of its job
    slow_seconds: float = 0.0  # in which it was clearly slower
    counts: Mapping[str, int] = field(default_factory=dict)  # values of Mark

    @property
    def is_slow(self) -> bool | None:
        """Whether the component was the slow one; None: it was not compared for long enough."""
        if self.compared_seconds < LEAST_COMPARED_SECONDS:
            return None
        return self.slow_seconds >= LEAST_SLOW_SHARE * self.compared_seconds


@frozen
class Component:
    """A port of a NIC or a GPU, with the newest jobs first."""

    id: str  # what stays: "a088:c203:00ab:1234/1" (node GUID and port), a GPU's UUID; else its PCI address
    name: str  # of its latest sample: "mlx5_5", "GPU 3"
    is_gpu: bool
    bdf: str  # "": unknown
    parts: tuple[JobPart, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)  # of all days, during jobs or not
    is_gone: bool = False  # the node no longer has it, as mark_gone() of probes/live/reliability.py finds

    @property
    def compared_jobs(self) -> int:
        """In how many jobs it was compared, at most LAST_JOBS."""
        return min(LAST_JOBS, sum(part.is_slow is not None for part in self.parts))

    @property
    def slow_jobs(self) -> int:
        """In how many of these it was the slow one."""
        compared = [part.is_slow for part in self.parts if part.is_slow is not None][:LAST_JOBS]
        return sum(compared)

    @property
    def slow_share(self) -> float:
        """In which share of them it was the slow one; 0: they are too few to say so."""
        return self.slow_jobs / self.compared_jobs if self.compared_jobs >= LEAST_JOBS else 0.0

    @property
    def stands_out(self) -> bool:
        """Whether it was the slow one in most of its last jobs."""
        return self.slow_share > 0.5


@frozen
class PastJob:
    """A job that was watched."""

    name: str  # "train.py (alice, Slurm job 4711)"
    began: float  # seconds since 1970
    ended: float  # the last time that it was seen


@frozen
class Loss:
    """GPU time with a finding that costs bandwidth: the sum of all GPUs that it concerned."""

    finding: str  # its id; "": any of them, where each GPU counts once
    gpu_seconds: float
    seen_seconds: float  # of these, while it was known whether a job held the GPU
    job_seconds: float  # of these, while one did
    rated_seconds: float  # of these, while the share of the limit that the finding takes was known
    lost_seconds: float  # of these, times that share


@frozen
class ComponentHistory:
    """The components of a node and the newest jobs, newest first."""

    since: float  # seconds since 1970
    until: float  # what was written last
    jobs: tuple[PastJob, ...] = ()
    components: tuple[Component, ...] = ()
    losses: tuple[Loss, ...] = ()
