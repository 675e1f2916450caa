"""What a log of NCCL says. Every fact names the line that it was read from."""

from __future__ import annotations

from dataclasses import field
from enum import Enum

from probes.base.frozen import frozen
from probes.base.unknown import Maybe


@frozen
class Place:
    """A line of a file, counted from 1."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@frozen
class Mention:
    """A text that occurs in the log, with its first and last line."""

    text: str
    count: int
    first: Place
    last: Place


@frozen
class Channels:
    """The network channels of a rank in one direction; a connection again counts again."""

    gdr: int = 0
    staged: int = 0  # through host memory
    unknown: int = 0  # the line is cut off before its end, or Ray left it out

    @property
    def total(self) -> int:
        """All of them."""
        return self.gdr + self.staged + self.unknown

    def __add__(self, other: Channels) -> Channels:
        return Channels(self.gdr + other.gdr, self.staged + other.staged, self.unknown + other.unknown)


@frozen
class Rank:
    """One GPU of one process."""

    host: str  # "" if the line does not name it
    pid: int | None
    device: int | None  # CUDA device
    rank: int | None  # in its largest communicator
    send: Channels = Channels()
    receive: Channels = Channels()
    devices: tuple[str, ...] = ()  # networks and device numbers: "IB/0"
    pxn: int = 0  # sends through the NIC of another GPU
    shared: int = 0
    c2c_pci: int = 0  # "(PCI)": GPUDirect RDMA over PCIe on a C2C platform
    first_staged: Place | None = None
    first_gdr: Place | None = None

    @property
    def channels(self) -> Channels:
        """Both directions."""
        return self.send + self.receive


@frozen
class Capability:
    """`GPU Direct RDMA Enabled for HCA 0 'mlx5_0'`: what a NIC can do, not what a channel does."""

    network: str
    number: int
    name: str
    is_enabled: bool
    seen: Mention


@frozen
class Distance:
    """`GPU Direct RDMA Disabled for GPU 4 / HCA 0 (distance 8 > 5)`."""

    is_enabled: bool
    gpu: str  # bus id, rank or topology id, depending on the version
    nic: str
    distance: int
    limit: int
    words: tuple[str, str] | None  # both in NCCL's words; None: the version is unknown
    reads: bool | None  # the send side
    seen: Mention


@frozen
class Setting:
    """A variable that NCCL reports as set."""

    name: str
    value: str
    meaning: str  # "" if gdrtop does not know the variable
    seen: Mention


@frozen
class Problem:
    """An error of which the log has one or more lines."""

    kind: str  # "completion-12", "async-event", "watchdog-timeout"
    title: str
    cause: str
    fix: str
    seen: Mention  # its text is the first line
    ranks: tuple[str, ...] = ()  # who reports it, the first of them
    is_note: bool = False  # no error: NCCL goes on
    severity: str = "unknown"  # "critical", "warning", "note", "harmless"; "follows": from another error
    proves: str = ""  # of the path: "gdr", "no-gdr", "host", "nvlink"; "": nothing

    @property
    def is_cause(self) -> bool:
        """Whether it may be why a job fails or is slow; what follows from another error is not."""
        return self.severity in ("critical", "warning") and not self.is_note


@frozen
class Rings:
    """`Connected all rings`, per rank and communicator."""

    connected: int = 0
    gdr: int = 0  # "GDR 1", which alone proves nothing
    no_gdr: int = 0  # "GDR 0"
    first_no_gdr: Place | None = None


@frozen
class Communicators:
    """Initialization of communicators."""

    largest: int = 0  # ranks
    nodes: int = 0  # of the largest count seen; 0: the log does not say
    started: int = 0  # ranks that began, summed over communicators
    completed: int = 0


@frozen
class LogFile:
    """A file that was read."""

    name: str
    size_bytes: int  # read, after decompression
    lines: int
    error: str = ""


@frozen
class LogFacts:
    """All that was read."""

    files: tuple[LogFile, ...] = ()
    nccl_lines: int = 0  # that say something gdrtop looks for
    cut_lines: int = 0  # of those, cut off or glued so that a part is missing
    versions: tuple[Mention, ...] = ()
    networks: tuple[Mention, ...] = ()
    plugins: tuple[Mention, ...] = ()
    nics: tuple[Mention, ...] = ()
    no_device: Mention | None = None
    no_verbs: Mention | None = None  # libibverbs is missing
    capabilities: tuple[Capability, ...] = ()
    distances: tuple[Distance, ...] = ()
    dmabuf: Mention | None = None
    nvls: tuple[Mention, ...] = ()
    diagnostics: tuple[Mention, ...] = ()  # results of NCCL_RUN_DIAGNOSTICS=1
    rings: Rings = field(default_factory=Rings)
    communicators: Communicators = field(default_factory=Communicators)
    settings: tuple[Setting, ...] = ()
    problems: tuple[Problem, ...] = ()
    ranks: tuple[Rank, ...] = ()
    more_ranks: bool = False  # ranks beyond the limit are counted in the totals only
    send: Channels = Channels()  # of all ranks
    receive: Channels = Channels()
    flushes: dict[str, int] = field(default_factory=dict)  # "None", "C2c", "Always" (2.31) -> receives
    local_channels: int = 0  # inside nodes: P2P, shared memory
    nvlink_channels: int = 0  # of an NVLink domain that spans nodes: P2P/MNNVL
    repeated_channels: int = 0  # of the unknown ones, whose lines Ray left out
    first_unknown: Place | None = None  # the first line of a channel whose path is unknown
    left_out: int = 0  # mentions beyond the limits of the tables

    @property
    def channels(self) -> Channels:
        """The network channels of all ranks."""
        return self.send + self.receive

    @property
    def has_nvlink_between_nodes(self) -> bool:
        """Whether channels of a job on several nodes use an NVLink domain that spans them."""
        return self.nvlink_channels > 0 and self.communicators.nodes > 1

    @property
    def first_fatal(self) -> Problem | None:
        """The first error that ends a job."""
        return next((problem for problem in self.problems if problem.severity == "critical"), None)


class State(Enum):
    """The answer, with its exit status."""

    ALL = 0
    PARTLY = 1
    NONE = 2
    UNKNOWN = 3


@frozen
class Reason:
    """Why, and the lines that say so."""

    text: str
    places: tuple[Place, ...] = ()


@frozen
class LogVerdict:
    """Whether the job uses GPUDirect RDMA, as far as the log shows."""

    state: State
    text: str  # "16 of 16 channels on 8 of 8 ranks"
    reasons: tuple[Reason, ...] = ()


# What the NCCL logs of the jobs on a node say, about the processes that run now.


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
