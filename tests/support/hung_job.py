"""The ranks of a job that hangs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from probes.base.unknown import Maybe, Reason, Unknown
from probes.live.hang.diagnosis import Diagnosis, HangFacts, diagnose
from probes.live.hang.ranks import RankState
from probes.live.model.sample import LiveJob, Role
from probes.snapshot.condition import STOPPED, Condition

JOB = LiveJob("slurm:4711", "train.py (alice)", Role.NCCL, tuple(range(100, 108)), 8, (), 0.0, 0.0)


def rank(number: int, **values: Any) -> RankState:
    state = RankState(
        name=f"rank {number}",
        pid=100 + number,
        rank=number,
        gpus=(f"0000:{number:02x}:00.0",),
        nics=(f"mlx5_{number}",),
        state="R",
        cpu_percent=100.0,
        gpu_percent=100.0,
        power_watts=150.0,
        gbps=0.0,
        silent_seconds=Unknown(Reason.NOT_THERE),
        queue_pairs=8,
        ready=8,
    )
    return replace(state, **values)


def diagnosed(silence: Maybe[float] = 10.0, **values: Any) -> Diagnosis:
    facts = HangFacts(
        JOB, values.pop("seconds", 10.0), silence, values.pop("ranks", tuple(map(rank, range(8)))), **values
    )
    return diagnose(facts)


def stopped(number: int) -> Condition:
    text = f"rank {number} of train.py is stopped, so the whole job is waiting"
    return Condition(STOPPED, JOB.id, text, 0.0, ranks=(f"rank {number}",), job=JOB.id)
