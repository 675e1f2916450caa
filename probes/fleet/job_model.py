"""A job over several nodes at one moment: its ranks, what differs, and what is missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from probes.base.frozen import frozen
from probes.base.unknown import Maybe, Reason, Unknown
from probes.fleet.rails import Rails
from probes.live.model.sample import LiveProcess, LiveSample, Standstill, ranks_wait

_NO_CLOCK = Unknown(Reason.NOT_RECORDED, "clock", "not compared")


@frozen
class ClockOffset:
    """How far a node's wall clock is ahead of this machine's, and how exactly that is known."""

    seconds: float
    uncertainty_seconds: float


@frozen
class NodeSample:
    """A sample of one node, with what places its NICs and its clock among those of other nodes."""

    sample: LiveSample
    rails: Rails = ()
    clock: Maybe[ClockOffset] = _NO_CLOCK


@frozen
class FleetRank:
    """A rank of the job and the node that it runs on."""

    node: str
    process: LiveProcess
    gpus: tuple[str, ...] = ()  # "GPU0"
    rails: tuple[int, ...] = ()  # of its NICs
    gbps: Maybe[float] = 0.0  # through its NICs in the busier direction, the mean of the last seconds
    is_shared: bool = False  # other processes use these NICs too: the rate is an upper limit
    gpu_percent: Maybe[int] = 0  # utilization, the lowest of its GPUs

    @property
    def key(self) -> tuple[str, int]:
        """The node and the pid, which no other rank has."""
        return self.node, self.process.pid

    @property
    def name(self) -> str:
        """The rank as shown: "rank 13 on gpu002", "pid 4711 on gpu002" if its rank is unknown."""
        rank = self.process.rank
        return (
            f"pid {self.process.pid} on {self.node}"
            if isinstance(rank, Unknown)
            else f"rank {rank} on {self.node}"
        )


@frozen
class Difference:
    """What differs from the rest of the job."""

    aspect: str  # "state", "path", "nics", "gpu", "rail", "node", "rate", "link", "place", "cpus"
    subject: str  # "rank 13 on gpu002", "rail 3", "gpu002", "gpu002 mlx5_3"
    sentence: str
    ranks: tuple[tuple[str, int], ...] = ()  # the node and pid of each rank that is affected


@frozen
class Silence:
    """A job whose ports move no data."""

    seconds: float  # since any port moved data; since gdrtop began to watch if none did
    # The ports that fell silent first: "gpu002 mlx5_3"; () if that cannot be determined.
    first: tuple[str, ...]
    sentence: str  # which port fell silent first, or why that cannot be determined
    at: float | None = None  # when the first port fell silent, seconds since 1970 by this machine's clock
    standstill: Maybe[Standstill | None] = None  # None: for less than a minute

    @property
    def waits(self) -> Maybe[bool]:
        """Whether the ranks wait, by the rule of one node."""
        return ranks_wait(self.standstill)


@frozen
class FleetJob:
    """One job on all nodes."""

    id: str  # "slurm:4711", or the job's name where no scheduler is known; "" if no job was found
    name: str
    ranks: tuple[FleetRank, ...] = ()  # by rank
    world_size: Maybe[int] = 0
    missing_ranks: str = ""  # ranks that no node shows: "8-15"
    gbps: Maybe[float] = 0.0  # of all ports of the job in the busier direction
    differences: tuple[Difference, ...] = ()  # the worst first
    silence: Silence | None = None  # None: the job moves data, or is watched too short a time
    notes: tuple[str, ...] = ()  # what limits the comparison, one sentence each
    absent: Mapping[str, str] = field(default_factory=dict)  # nodes without a rank of the job -> why
    unanswered: Mapping[str, str] = field(default_factory=dict)  # nodes that do not answer -> why
    other_jobs: tuple[str, ...] = ()  # names of further jobs on these nodes
    watched_seconds: float = 0.0

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes with ranks of the job, sorted."""
        return tuple(sorted({rank.node for rank in self.ranks}))
