"""Samples of a made-up job, for the commands that print or save them."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.gpudirect import PeermemReading
from probes.facts.jobs.processes import Process
from probes.facts.node import Node
from probes.host.protocol import Host
from probes.live.ras_events import RasEvents
from probes.live.sample import (
    EventKind,
    LiveEvent,
    LiveJob,
    LiveProcess,
    LiveSample,
    NicUse,
    PathJudgement,
    PathWord,
    PortSample,
    Role,
)
from probes.queries.finding import Evidence, Severity
from probes.snapshot.rates import Reading

_ABSENT = Unknown(Reason.NOT_THERE)


def process(rank: int, word: PathWord = PathWord.DMABUF, role: Role = Role.NCCL) -> LiveProcess:
    """Rank `rank` of the job "a"."""
    pid = 4710 + rank
    facts = Process(
        pid, "python3", 1000, "R", (), (), _ABSENT, True, {"NCCL_SECRET": "x"}, (), (), _ABSENT,
        program="train.py", user="alice", usage=_ABSENT,
    )  # fmt: skip
    nics = () if word is PathWord.TCP else (NicUse(f"mlx5_{rank}", 8, 8, 32, 64 << 20),)
    why = "needs root" if word is PathWord.UNKNOWN else ""
    path = PathJudgement(word, False, why, (Evidence("netlink", "64 MiB"),))
    return LiveProcess(
        pid, facts, role, "a", rank, 8, (f"0000:{rank:02x}:00.0",), nics, 64 << 20, 0, ("NCCL IbAsync",),
        "R", 12.5, path,
    )  # fmt: skip


def job(processes: Sequence[LiveProcess], sent: Maybe[float] = 370.1) -> LiveJob:
    """The job of these processes."""
    nics = tuple(nic for one in processes for nic in one.ready_nics)
    pids = tuple(one.pid for one in processes)
    return LiveJob("a", "train.py (alice)", processes[0].role, pids, 8, nics, sent, 369.4)


def sample(*processes: LiveProcess, at: float = 1.7e9, sent: Maybe[float] = 370.1) -> LiveSample:
    """A sample of one job, or of none."""
    ports = tuple(
        PortSample(f"mlx5_{number}", 1, f"eth{number}", "ACTIVE", 400.0, 370.0, _ABSENT, {"np_cnp_sent": 0.0})
        for number in range(2)
    )
    jobs = (job(processes, sent),) if processes else ()
    peermem = PeermemReading(0, _ABSENT)
    return LiveSample(at, at, processes, jobs, ports, (), peermem, {"nvidia_peermem": "live"})


def port_down(at: float, severity: Severity = Severity.CRITICAL) -> LiveEvent:
    """The event of a port that went down."""
    return LiveEvent(at, EventKind.PORT_STATE, severity, "mlx5_3", "mlx5_3 went down", "Check the cable.")


class ScriptedWatch:
    """Stands for LiveWatch: the sample and the events of each second come from functions."""

    def __init__(
        self, sample_of: Callable[[int], LiveSample], events_of: Callable[[int], Sequence[Severity]]
    ) -> None:
        self._sample_of, self._events_of = sample_of, events_of
        self.count = 0
        self.ras = RasEvents()

    def sample(self, host: Host, node: Node, reading: Reading) -> LiveSample:
        """Return the next sample with the time of the host."""
        at = host.wall_clock()
        events = tuple(port_down(at, severity) for severity in self._events_of(self.count))
        taken = replace(self._sample_of(self.count), at=reading.at, taken_at=at, events=events)
        self.count += 1
        return taken
