"""What the NCCL logs of the jobs on a node say, about the processes that run now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from probes.base.frozen import frozen
from probes.base.unknown import Maybe

if TYPE_CHECKING:  # imported by what reads a log: most nodes that are checked have no job
    from probes.nccl.log.facts import LogFacts, LogVerdict


@frozen
class RankPath:
    """A rank on this node, and its path as the node's own facts show it, without the log."""

    pid: int
    rank: Maybe[int]
    gpus: tuple[str, ...]  # BDFs
    nics: tuple[str, ...]  # RDMA devices on which it has connected queue pairs
    path: str  # "GDR (DMA-BUF)", "likely staged", "unknown: needs root"
    uses_gdr: bool | None  # None: unknown
    is_likely: bool  # the evidence is no proof

    @property
    def name(self) -> str:
        """The rank as shown."""
        return f"rank {self.rank}" if isinstance(self.rank, int) else f"pid {self.pid}"


@frozen
class JobLogReading:
    """The logs of one job, as far as they were read; only lines of its processes on this node count."""

    job: str  # id
    name: str  # "train.py (alice, Slurm job 4711)"
    ranks: tuple[RankPath, ...]
    facts: LogFacts
    verdict: LogVerdict
    files: tuple[str, ...] = ()  # that were read, as shown
    other_lines: int = 0  # of NCCL, written by processes that do not run on this node
    needs_root: bool = False  # a log may exist that only root can read
    is_partial: bool = False  # only the beginning and the end of a file were read, or time ran out

    @property
    def says_something(self) -> bool:
        """Whether a process that runs now has written a line of NCCL."""
        return self.facts.nccl_lines > 0
