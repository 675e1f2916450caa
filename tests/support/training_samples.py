"""Live samples made by hand: a training job of eight ranks, one of them staged, and a storage client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from probes.base.evidence import Evidence, Severity
from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.gpudirect import PeermemReading
from probes.facts.jobs.processes import Process
from probes.facts.node import Node
from probes.host.nvml import NvmlLive
from probes.host.protocol import Host
from probes.live.events.conditions import Conditions
from probes.live.model.sample import (
    EventKind,
    GpuSample,
    LiveEvent,
    LiveJob,
    LiveProcess,
    LiveSample,
    NicUse,
    OddOne,
    PathJudgment,
    PathWord,
    PortSample,
    Role,
    SlowestNic,
)
from probes.live.ras.findings import RasEvents
from probes.snapshot.rates import Reading

NEEDS_ROOT = Unknown(Reason.NEEDS_ROOT, "/proc/4711/environ")
NOT_THERE = Unknown(Reason.NOT_THERE, "ethtool -S", "the driver has no such counter")
STAGED_RANK = 5
THREADS = ("NCCL IbAsync 0", "NCCL Progress 0", "NCCL RAS", "NCCL Service 0", "python3")


def process(pid: int, program: str = "train.py", job: str = "Slurm job 4711") -> Process:
    unread = Unknown(Reason.NOT_RECORDED)
    files = (NEEDS_ROOT,) * 2
    return Process(
        *(pid, "python3", 1001, "R", *files, unread, unread, NEEDS_ROOT, NEEDS_ROOT, unread, unread),
        program=program,
        user="alice",
        job=job,
    )


def judgment(rank: int) -> PathJudgment:
    evidence = (
        Evidence("RDMA netlink", "registered 1.2 GiB, VmPin 24 MiB: 1.2 GiB are not host memory"),
        Evidence("/proc/4711/task", "NCCL IbAsync"),
    )
    if rank == STAGED_RANK:
        return PathJudgment(PathWord.STAGED, True, evidence=evidence)
    return PathJudgment(PathWord.DMABUF, True, evidence=evidence)


def rank_of(number: int) -> LiveProcess:
    pid = 4711 + number
    return LiveProcess(
        pid=pid,
        process=process(pid),
        role=Role.NCCL,
        job="4711",
        rank=number,
        world_size=64,
        gpus=(f"0000:{0x10 + number:02x}:00.0",),
        nics=(NicUse(f"mlx5_{number}", 8, 8, 64, 1 << 30),),
        registered_bytes=1 << 30,
        pinned_bytes=24 << 20,
        threads=THREADS,
        state="R",
        cpu_percent=105.0,
        path=judgment(number),
    )


def port(number: int, sent: Maybe[float], counters: Mapping[str, Maybe[float]] | None = None) -> PortSample:
    return PortSample(
        device=f"mlx5_{number}",
        port=1,
        netdev=f"ens{number}",
        state="ACTIVE",
        line_rate_gbps=400.0,
        sent_gbps=sent,
        received_gbps=sent,
        counters=counters if counters is not None else {"np_cnp_sent": 12.0, "out_of_sequence": 0.0},
        pause_percent=0.0,
        pcie_stall_percent=NOT_THERE if number == 9 else 3.0,
    )


def gpu(number: int, sent: float) -> GpuSample:
    bdf = f"0000:{0x10 + number:02x}:00.0"
    rate = sent / 8 * 1e9
    live = NvmlLive(
        *(bdf, 97, 41 << 30, 61, 640.0, rate, rate, 5, 16, (4711 + number,), 3e11, 3e11),
        bar1_used_bytes=Unknown(Reason.NOT_THERE, "NVML"),
        sm_clock_mhz=1755,
        throttle_reasons=("power cap",) if number == 2 else (),
    )
    return GpuSample(bdf, number, live)


def rate_of(number: int, second: int) -> float:
    """In Gb/s: rank 5's NIC carries less, and all carry a little more each second."""
    return (148.0 if number == STAGED_RANK else 370.0) + second


def training(second: int, at: float, taken_at: float) -> LiveSample:
    """The sample after so many seconds; in the fourth a link fails, in the sixth a path changes."""
    counters = {"symbol_error": 4.0, "out_of_buffer": NEEDS_ROOT}
    ports = [port(number, rate_of(number, second)) for number in range(8)]
    ports[3] = port(3, rate_of(3, second), counters)
    ports.append(replace(port(8, 0.0), state="DOWN", sent_gbps=NOT_THERE, received_gbps=NOT_THERE))
    ports.append(port(9, 1.5, {}))
    storage = replace(
        rank_of(0),
        pid=900,
        process=process(900, "fio", ""),
        role=Role.STORAGE,
        job="900",
        rank=Unknown(Reason.NOT_THERE, "environ", "no NCCL rank"),
        world_size=Unknown(Reason.NOT_THERE),
        gpus=(),
        nics=(NicUse("mlx5_9", 2, 2, 1, 1 << 20),),
        registered_bytes=1 << 20,
        threads=("fio",),
        state="D",
        cpu_percent=Unknown(Reason.NOT_THERE),
        path=PathJudgment(PathWord.HOST_MEMORY),
    )
    odd = OddOne(
        "mlx5_5",
        "mlx5_5 carries 148 Gb/s; the other NICs of this job carry 370 Gb/s",
        (Evidence("port_xmit_data", "148 Gb/s for 10 s"),),
        pid=4716,
        device="mlx5_5",
        aspect="rate",
    )
    events: tuple[LiveEvent, ...] = ()
    if second == 4:
        events = (
            LiveEvent(
                *(taken_at, EventKind.PORT_STATE, Severity.CRITICAL, "mlx5_8", "mlx5_8 went down"),
                "The link failed; jobs that use this NIC stop or fail. Check the cable and the switch port.",
            ),
        )
    if second == 6:
        what = "rank 5 (pid 4716) no longer uses GPUDirect RDMA: likely staged"
        events = (
            LiveEvent(
                *(taken_at, EventKind.PATH_CHANGED, Severity.WARNING, "pid 4716", what),
                "It restarted without nvidia_peermem. Load the module and restart the job.",
            ),
        )
    jobs = (
        LiveJob(
            *("4711", "train.py (alice, Slurm job 4711)", Role.NCCL, tuple(range(4711, 4719)), 64),
            nics=tuple(f"mlx5_{number}" for number in range(8)),
            sent_gbps=sum(rate_of(number, second) for number in range(8)),
            received_gbps=sum(rate_of(number, second) for number in range(8)),
            odd=(odd,),
            slowest_nic=SlowestNic(f"mlx5_{STAGED_RANK}", rate_of(STAGED_RANK, second)),
        ),
        LiveJob(
            *("900", "fio (alice)", Role.STORAGE, (900,), Unknown(Reason.NOT_THERE)),
            nics=("mlx5_9",),
            sent_gbps=1.5,
            received_gbps=1.5,
        ),
    )
    return LiveSample(
        at=at,
        taken_at=taken_at,
        processes=(*(rank_of(number) for number in range(8)), storage),
        jobs=jobs,
        ports=tuple(ports),
        gpus=tuple(gpu(number, rate_of(number, second)) for number in range(8)),
        peermem=PeermemReading(0, Unknown(Reason.NOT_THERE, "/sys/kernel/mm/memory_peers")),
        limits=("Run as root to see the ranks of other users' jobs.",),
        events=events,
    )


class TrainingSampler:
    """Answers in place of LiveSampler, one second further each time."""

    def __init__(self, ras: RasEvents | None = None, settles: bool = True) -> None:
        del settles
        self._second = 0
        self._conditions = Conditions()
        self.ras = RasEvents() if ras is None else ras

    def sample(self, host: Host, node: Node, reading: Reading) -> LiveSample:
        del node
        self._second += 1
        taken = training(self._second, reading.at, host.wall_clock())
        return replace(taken, watched=self._conditions.update(taken))


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the app show the training job, whatever its node is."""
    monkeypatch.setattr("tui.runtime.node_monitor.LiveSampler", TrainingSampler)
