"""What the live view knows at one moment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from enum import Enum
from functools import cached_property
from typing import TypeVar

from probes.base.evidence import Evidence, Severity
from probes.base.frozen import frozen
from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.gpudirect import PeermemReading
from probes.facts.jobs.processes import Process
from probes.facts.rdma.devices import port_name
from probes.host.collectives import CollectiveSpeed
from probes.host.nvml import NvmlLive
from probes.live.model.transfer import Serving, TransferPath
from probes.queries.finding import Finding, pid_name
from probes.queries.queue_pair_makers import OwnQueues, own_queues
from probes.snapshot.condition import Watched
from probes.snapshot.verdict import Verdict

T = TypeVar("T")


class PathWord(Enum):
    """The path between the memory of a process and the network."""

    DMABUF = "GDR (DMA-BUF)"
    PEERMEM = "GDR (peermem)"
    STAGED = "staged"  # GPU memory is copied through host memory
    TCP = "TCP"
    HOST_MEMORY = "host memory"  # RDMA without GPU memory, by a process that is not NCCL
    NO_NIC = "no NIC in use"
    UNKNOWN = "unknown"


GDR_WORDS = (PathWord.DMABUF, PathWord.PEERMEM)
WITHOUT_GDR = (PathWord.STAGED, PathWord.TCP)  # where a NIC could use GPUDirect RDMA
NO_PATH = (PathWord.NO_NIC, PathWord.UNKNOWN)
STOPPED_STATES = ("T", "t")  # of a process: by a signal, or by a debugger


def path_phrase(word: PathWord, of_many: bool = False) -> str:
    """Return what a rank, or several of them, do: "copies through host memory"."""
    use, copy = ("use", "copy") if of_many else ("uses", "copies")
    return {
        PathWord.DMABUF: f"{use} GPUDirect RDMA (DMA-BUF)",
        PathWord.PEERMEM: f"{use} GPUDirect RDMA (peermem)",
        PathWord.STAGED: f"{copy} through host memory (staged)",
        PathWord.NO_NIC: f"{use} no NIC",
    }.get(word, f"{use} {word.value}")


@frozen
class PathJudgment:
    """A path, how sure it is, and what shows it."""

    word: PathWord
    is_likely: bool = False  # the evidence is no proof
    why: str = ""  # of UNKNOWN: what is missing, "needs root"
    evidence: tuple[Evidence, ...] = ()
    contradiction: str = ""  # of what the node can do, and which of both gdrtop trusts; sentences
    doubt: str = ""  # if it is likely: why the evidence is no proof, and what would settle it, if anything

    @property
    def text(self) -> str:
        """The path as shown: "GDR (DMA-BUF)", "likely staged", "unknown: needs root"."""
        if self.word is PathWord.UNKNOWN:
            return f"unknown: {self.why}" if self.why else "unknown"
        return f"likely {self.word.value}" if self.is_likely else self.word.value


class Role(Enum):
    """What a process is."""

    NCCL = "NCCL"
    NVSHMEM = "NVSHMEM"
    UCX = "UCX"
    PERFTEST = "perftest"
    STORAGE = "storage client"
    OTHER = "RDMA program"
    GPU = "GPU program"  # without RDMA and NCCL


COLLECTIVE_ROLES = (Role.NCCL, Role.NVSHMEM)
"""Of jobs whose ranks wait for each other."""
STEP_ROLES = (Role.NCCL, Role.NVSHMEM, Role.UCX)
"""Of jobs that may be training."""


@frozen
class NicUse:
    """What a process has on one RDMA device."""

    device: str
    queue_pairs: int
    ready: int  # connected to a peer: RC, UC or XRC, in RTS
    regions: int
    registered_bytes: int
    open_ud: int = 0  # of no connection, in RTS since they were made, which shows no use
    open_driver: int = 0  # the same of the driver's own kind: SRD of EFA
    is_used: bool = False  # another sign than connected queue pairs shows that it uses the device

    @property
    def is_active(self) -> bool:
        """Whether it has connected queue pairs there, or another sign shows that it uses the device."""
        return bool(self.ready) or self.is_used

    @property
    def active(self) -> int:
        """Queue pairs over which it sends: connected ones, and open ones that are in use."""
        return self.ready + (self.open_ud + self.open_driver if self.is_used else 0)

    @property
    def merely_open(self) -> int:
        """Queue pairs that are in RTS without a peer, and that nothing shows to be in use."""
        return 0 if self.is_used else self.open_ud + self.open_driver


_NO_INSPECTOR = Unknown(Reason.NOT_RECORDED, "NCCL inspector", "the job does not load NCCL's inspector")


@frozen
class LiveProcess:
    """A process with RDMA resources or a GPU."""

    pid: int
    process: Process
    role: Role
    job: str  # id of its LiveJob
    rank: Maybe[int]
    world_size: Maybe[int]
    gpus: tuple[str, ...]  # BDFs, by NVML
    nics: tuple[NicUse, ...]  # by device name
    registered_bytes: int  # sum over all devices, in whole pages
    pinned_bytes: Maybe[int]  # VmPin
    threads: Maybe[tuple[str, ...]]  # distinct names
    state: Maybe[str]  # "R", "S", "D", "T" (stopped), …
    cpu_percent: Maybe[float]  # of one CPU, since the sample before
    path: PathJudgment
    is_listed: bool = True  # False: its queue pairs and regions could not be read, so none are known
    bus_gbps: Maybe[float] = _NO_INSPECTOR  # GB/s; of the communicator with the most nodes and ranks
    collectives: tuple[CollectiveSpeed, ...] = ()  # the newest one of each communicator
    serving: Serving | None = None  # None: no part of an inference stack
    transfer: TransferPath | None = None  # None: no engine that moves KV caches, or it was read once only

    @property
    def is_engine(self) -> bool:
        """Whether it has an engine that moves KV caches, or may have one."""
        return self.serving is not None and self.serving.may_move

    @property
    def path_text(self) -> str:
        """Its path as shown; of an inference engine, that of its KV caches."""
        return self.path.text if self.transfer is None else self.transfer.text

    @property
    def is_path_likely(self) -> bool:
        """Whether the evidence does not prove the path that is shown."""
        return self.path.is_likely if self.transfer is None else not self.transfer.is_seen

    @cached_property
    def ready_nics(self) -> tuple[str, ...]:
        """The devices on which it has connected queue pairs, or that other signs show in use."""
        return tuple(nic.device for nic in self.nics if nic.is_active)

    @property
    def rank_name(self) -> str:
        """Its rank as shown, "rank 5", or its pid where the rank is unknown."""
        return f"pid {self.pid}" if isinstance(self.rank, Unknown) else f"rank {self.rank}"

    @cached_property
    def own_queues(self) -> tuple[OwnQueues, ...]:
        """The queue pairs that it makes outside of verbs, which the kernel does not list."""
        return own_queues(self.process, self.threads)

    @property
    def used_nics(self) -> Maybe[tuple[str, ...]]:
        """The same devices; unknown where queue pairs may exist that the kernel does not list here."""
        if not self.is_listed:
            return Unknown(Reason.NEEDS_ROOT, "RDMA netlink", "its queue pairs are not listed")
        if self.has_queue_pairs or self.path.word is not PathWord.UNKNOWN:
            return self.ready_nics
        return Unknown(Reason.NOT_RECORDED, "RDMA netlink", self.path.why)

    @property
    def is_stopped(self) -> bool | None:
        """Whether a signal or a debugger has stopped it; None if its state is unknown."""
        return None if isinstance(self.state, Unknown) else self.state in STOPPED_STATES

    @cached_property
    def has_queue_pairs(self) -> bool:
        """Whether it has a queue pair, connected or not, besides those that are merely open."""
        return any(nic.queue_pairs > nic.merely_open for nic in self.nics)


_NO_LINK = Unknown(Reason.NOT_RECORDED, "current_link_speed", "not read yet")


_NO_MODULE = Unknown(Reason.NOT_THERE, "hwmon", "not read")


@frozen
class PortSample:
    """A port: rates in Gb/s (10^9 bits), counters as events a second since the sample before."""

    device: str
    port: int
    netdev: Maybe[str]
    state: Maybe[str]  # "ACTIVE", …
    line_rate_gbps: Maybe[float]
    sent_gbps: Maybe[float]
    received_gbps: Maybe[float]
    counters: Mapping[str, Maybe[float]] = field(default_factory=dict)  # by the kernel's name
    pause_percent: Maybe[float] = 0.0  # of the time; the larger one of sent and received pauses
    pcie_stall_percent: Maybe[float] = 0.0  # of the last second
    pcie_gtps: Maybe[float] = _NO_LINK  # of the NIC's own PCIe link
    pcie_width: Maybe[int] = _NO_LINK  # lanes
    rates_from: str = ""  # the interface whose whole traffic the rates are; "": the port's own counters
    sent_by_priority: Mapping[int, float] = field(default_factory=dict)  # Gb/s on Ethernet, if the NIC counts
    module_celsius: Maybe[float] = _NO_MODULE  # of its optical module, some seconds old
    module_limit_celsius: Maybe[float] = _NO_MODULE  # where the firmware warns

    @property
    def name(self) -> str:
        """The port as shown: "mlx5_0", or "mlx5_0/2" for further ports."""
        return port_name(self.device, self.port)


@frozen
class GpuSample:
    """A GPU and NVML's reading of it."""

    bdf: str
    index: Maybe[int]
    live: Maybe[NvmlLive]


COLLISION = "collision"
"""The cause of a NIC that carries less: connections that ECMP has put on one link."""


@frozen
class OddOne:
    """The NIC or the rank that differs from the others of its job."""

    subject: str  # "mlx5_5", "rank 5 (pid 4716)"
    sentence: str  # "mlx5_5 carries 148 Gb/s; the other NICs of this job carry 370 Gb/s"
    evidence: tuple[Evidence, ...] = ()
    pid: int | None = None
    device: str = ""
    aspect: str = ""  # "rate", "link", "path", "state", "nics", "place", "cpus", "volume", "plane"
    causes: tuple[str, ...] = ()  # as in Condition


@frozen
class SlowestRank:
    """The rank with the lowest bus bandwidth in one collective, as NCCL's inspector measured it."""

    pid: int
    bus_gbps: float  # GB/s
    others_gbps: float  # the median of the other ranks on this node
    collective: str  # "AllReduce"
    sequence: int  # the number of the collective in its communicator
    communicator: str


@frozen
class SlowestNic:
    """The NIC with the lowest average rate of the last seconds, in the busier direction of each moment."""

    device: str
    rate_gbps: float


@frozen
class Standstill:
    """A job that has moved no data for a minute, and its ranks in that minute; on one node or on many."""

    seconds: float  # without traffic
    is_whole: bool  # gdrtop has seen no traffic at all
    gpus: int = 0  # whose utilization is known
    busy: int = 0  # of these, busy all the time: kernels that wait for a peer spin
    blocked: tuple[str, ...] = ()  # ranks that were stopped or blocked in the kernel all the time
    shown_by: str = ""  # "8 NICs", "6 unshared NICs", "64 queue pairs"
    source: str = ""  # of what these show: "port_xmit_data", "packet numbers"


def ranks_wait(still: Maybe[Standstill | None]) -> Maybe[bool]:
    """Return whether the ranks of a job wait: with idle GPUs, it loads data, compiles or writes a checkpoint.

    A rank that others wait for may be idle, so that half of the GPUs are busy is enough.
    """
    if still is None or isinstance(still, Unknown):
        return False if still is None else still
    if not still.gpus and not still.blocked:
        return Unknown(Reason.NOT_THERE, "NVML", "the utilization of its GPUs is unknown")
    return bool(still.blocked) or 2 * still.busy >= still.gpus


@frozen
class LiveJob:
    """Processes of one program, user and job."""

    id: str
    name: str  # "train.py (alice, Slurm job 4711)"
    role: Role
    pids: tuple[int, ...]
    world_size: Maybe[int]  # ranks on all nodes
    nics: tuple[str, ...]  # with connected queue pairs
    sent_gbps: Maybe[float]  # through its NICs; unknown if it shares them with another job
    received_gbps: Maybe[float]
    odd: tuple[OddOne, ...] = ()
    slowest: SlowestRank | None = None  # None: no rank is clearly slower, or there are no inspector files
    gpus: tuple[str, ...] = ()  # BDFs; also one that a rank used before it was lost
    slowest_nic: SlowestNic | None = None  # None: no NIC is clearly slower, or it was not watched long enough
    shared_nics: frozenset[str] = frozenset()  # other jobs use these too: their rates are not only its own
    silent_seconds: float = 0.0  # for how long it has moved no data; 0: for less than 10 s
    standstill: Maybe[Standstill | None] = None  # None: it moves data, or may pause for as long as it likes

    @cached_property
    def subject(self) -> frozenset[str]:
        """The job, its processes and its devices by name, as in `Outcome.subjects`."""
        return frozenset((self.name, *map(pid_name, self.pids), *self.gpus, *self.nics))

    @cached_property
    def own_nics(self) -> tuple[str, ...]:
        """The NICs that no other job uses."""
        return tuple(name for name in self.nics if name not in self.shared_nics)


def program_of(job_name: str) -> str:
    """Return a job's name without its user and id: "train.py" of "train.py (alice, Slurm job 4711)"."""
    return job_name.partition(" (")[0]


class EventKind(Enum):
    """What happened; the value is stable and stands in JSON."""

    PROCESS_STARTED = "process-started"  # has queue pairs now
    PROCESS_ENDED = "process-ended"
    PROCESS_STOPPED = "process-stopped"
    PROCESS_RESUMED = "process-resumed"
    PATH_CHANGED = "path-changed"
    PEERMEM_IN_USE = "peermem-in-use"
    PEERMEM_RELEASED = "peermem-released"
    PORT_STATE = "port-state"
    PORT_RATE = "port-rate"  # the line rate changed
    LINK_RETRAINED = "link-retrained"  # PCIe speed or width changed, of a GPU under load or of a NIC
    RATE_FELL = "rate-fell"
    RATE_RECOVERED = "rate-recovered"
    ERRORS_RISING = "errors-rising"
    PAUSE = "pause"
    THROTTLED = "throttled"
    XID = "xid"
    GPU_LOST = "gpu-lost"
    MODULE_LOADED = "module-loaded"
    MODULE_UNLOADED = "module-unloaded"
    KERNEL_MESSAGE = "kernel-message"
    RAS_PEER = "ras-peer"  # NCCL's RAS reports a process that does not answer, is dead, is back
    RAS_EVENTS = "ras-events"  # gdrtop follows RAS events from here on, or no longer
    SAMPLES_MISSED = "samples-missed"  # gdrtop itself could not look
    FOUND = "found"  # a check has found something that it did not find before
    ENDED = "ended"  # what a check had found is no longer there


@frozen
class LiveEvent:
    """Something that changed."""

    at: float  # seconds since 1970, by the host's clock
    kind: EventKind
    severity: Severity
    subject: str  # "mlx5_3", "pid 4716", "nvidia_peermem"
    text: str  # one sentence without a period: "mlx5_3 went down"
    explanation: str = ""  # what it means and what to do
    others: tuple[str, ...] = ()  # further subjects, which the text only counts


_NOT_WATCHED = Watched(0.0, Unknown(Reason.NOT_RECORDED, "jobs", "not read"))


@frozen
class LiveSample:
    """One second of the node."""

    at: float  # seconds, Host.monotonic()
    taken_at: float  # seconds since 1970
    processes: Maybe[tuple[LiveProcess, ...]]
    jobs: tuple[LiveJob, ...]
    ports: tuple[PortSample, ...]
    gpus: tuple[GpuSample, ...]
    peermem: PeermemReading
    modules: Mapping[str, str] = field(default_factory=dict)  # loaded modules that matter, and their state
    limits: tuple[str, ...] = ()  # what cannot be seen and why: "Run as root to …", one sentence each
    missing: str = ""  # why some processes may not be listed
    events: tuple[LiveEvent, ...] = ()  # new in this sample
    downs: tuple[str, ...] = ()  # ports that went down in this sample; events report a flapping one once
    no_ports: str = ""  # why there are no ports, as a sentence; "" if there are
    no_gpus: str = ""  # the same of GPUs
    nic_names: Mapping[str, str] = field(default_factory=dict)  # by BDF, which findings about PCIe have
    # Storage and other clients in the kernel, by device: the rates of its ports are theirs, too.
    kernel_clients: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    watched: Watched = _NOT_WATCHED  # the problems that last
    verdict: Verdict | None = None  # of the node at this moment; None: not judged
    findings: tuple[Finding, ...] = ()  # critical ones and warnings, one for each cause
    # Of NICs (by name) and GPUs (by BDF) in earlier jobs.
    past: Mapping[str, str] = field(default_factory=dict)

    def process(self, pid: int) -> LiveProcess | None:
        """Return the process with this pid, if it is there."""
        if isinstance(self.processes, tuple):
            return next((process for process in self.processes if process.pid == pid), None)
        return None


def part(limits: list[str], what: str, read: Callable[[], T], otherwise: T) -> T:
    """Return what `read` returns; if it fails, only this part is missing, which `limits` says."""
    try:
        return read()
    except Exception as error:
        limits.append(f"An error in gdrtop hides {what} ({type(error).__name__})")
        return otherwise
