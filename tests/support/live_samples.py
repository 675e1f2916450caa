"""Samples of a node with a running job, for tests of what the live view says about them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from probes.base.evidence import Evidence
from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.gpudirect import PeermemReading
from probes.facts.jobs.processes import Process
from probes.host.nvml import NvmlLive
from probes.host.usage import ProcessUsage
from probes.live.model.sample import (
    GpuSample,
    LiveJob,
    LiveProcess,
    LiveSample,
    NicUse,
    PathJudgment,
    PathWord,
    PortSample,
    Role,
)

BEGAN = 1_700_000_000.0
FIRST_PID = 4711
ABSENT = Unknown(Reason.NOT_THERE)
DENIED = Unknown(Reason.NEEDS_ROOT, "/proc/4711/environ")


def a_port(number: int = 0, sent: Maybe[float] = 370.0, **parts: Any) -> PortSample:
    parts.setdefault("received_gbps", sent)
    return PortSample(
        **{
            "device": f"mlx5_{number}",
            "port": 1,
            "netdev": f"eth{number}",
            "state": "ACTIVE",
            "line_rate_gbps": 400.0,
            "sent_gbps": sent,
            **parts,
        }
    )


def a_process(number: int = 0, cpus: Maybe[str] = "0-55", **parts: Any) -> LiveProcess:
    pid = FIRST_PID + number
    usage = ProcessUsage("alice", 1.0, 1 << 30, cpus, BEGAN - 600)
    process = Process(
        pid,
        "python3",
        1000,
        "S",
        DENIED,
        DENIED,
        DENIED,
        DENIED,
        DENIED,
        DENIED,
        DENIED,
        DENIED,
        program="train.py",
        user="alice",
        usage=usage,
    )
    return LiveProcess(
        **{
            "pid": pid,
            "process": process,
            "role": Role.NCCL,
            "job": "job",
            "rank": number,
            "world_size": 16,
            "gpus": (gpu_bdf(number),),
            "nics": (NicUse(f"mlx5_{number}", 32, 32, 100, 1 << 32),),
            "registered_bytes": 1 << 32,
            "pinned_bytes": 1 << 20,
            "threads": ("NCCL Service 0",),
            "state": "S",
            "cpu_percent": 100.0,
            "path": PathJudgment(PathWord.DMABUF, is_likely=True),
            **parts,
        }
    )


def with_path(number: int, word: PathWord = PathWord.DMABUF, role: Role = Role.NCCL) -> LiveProcess:
    """Return a rank with a path that is proven, and a secret in its environment."""
    rank = a_process(number, role=role, world_size=8)
    why = "needs root" if word is PathWord.UNKNOWN else ""
    return replace(
        rank,
        process=replace(rank.process, environment={"NCCL_SECRET": "x"}),
        nics=() if word is PathWord.TCP else rank.nics,
        path=PathJudgment(word, False, why, (Evidence("netlink", "64 MiB"),)),
    )


def gpu_bdf(number: int) -> str:
    return f"0000:{0x10 + number:02x}:00.0"


def a_gpu(number: int = 0, busy: Maybe[int] = 95, **parts: Any) -> GpuSample:
    live = NvmlLive(gpu_bdf(number), busy, 60 << 30, 60, 600.0, 4e10, 4e10, 5, 16, (FIRST_PID + number,))
    return GpuSample(gpu_bdf(number), number, replace(live, **{"throttle_reasons": (), **parts}))


def a_job(ranks: int = 8, name: str = "train.py (alice)") -> LiveJob:
    nics = tuple(f"mlx5_{rank}" for rank in range(ranks))
    pids = tuple(FIRST_PID + rank for rank in range(ranks))
    return LiveJob("job", name, Role.NCCL, pids, 16, nics, 2960.0, 2960.0)


def sample_of(*processes: LiveProcess, sent: Maybe[float] = 370.1) -> LiveSample:
    """Return a sample of one job with these processes, or of no job."""
    nics = tuple(nic for process in processes for nic in process.ready_nics)
    pids = tuple(process.pid for process in processes)
    role = processes[0].role if processes else Role.NCCL
    job = replace(a_job(), role=role, pids=pids, world_size=8, nics=nics, sent_gbps=sent, received_gbps=369.4)
    return a_sample(processes=processes, jobs=(job,) if processes else ())


def a_sample(at: float = 0.0, ranks: int = 8, **parts: Any) -> LiveSample:
    """Return a sample of a job with a GPU and a NIC for each rank."""
    return LiveSample(
        **{
            "at": at,
            "taken_at": BEGAN + at,
            "processes": tuple(a_process(rank) for rank in range(ranks)),
            "jobs": (a_job(ranks),) if ranks else (),
            "ports": tuple(a_port(number) for number in range(8)),
            "gpus": tuple(a_gpu(number) for number in range(8)),
            "peermem": PeermemReading(0, ABSENT),
            "modules": {"nvidia": "live", "nvidia_peermem": "live"},
            **parts,
        }
    )
