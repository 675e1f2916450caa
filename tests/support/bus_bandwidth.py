"""Samples with the bus bandwidth of ranks."""

from __future__ import annotations

from dataclasses import replace

from probes.base.unknown import Maybe, Unknown
from probes.host.collectives import CollectiveSpeed
from probes.live.model.sample import LiveSample, SlowestRank
from tests.support.live_samples import BEGAN, FIRST_PID, a_job, a_process, a_sample


def measured(*figures: Maybe[float], slowest: int | None = None) -> LiveSample:
    processes = tuple(
        replace(
            a_process(number),
            process=replace(a_process(number).process, environment={"NCCL_INSPECTOR_ENABLE": "1"}),
            bus_gbps=bus,
            collectives=()
            if isinstance(bus, Unknown)
            else (
                CollectiveSpeed(
                    "0x7f8c", "AllReduce", bus, ranks=16, sequence=7, message_bytes=64 << 20, at=BEGAN
                ),
            ),
        )
        for number, bus in enumerate(figures)
    )
    slow = None if slowest is None else SlowestRank(FIRST_PID + slowest, 41.2, 48.4, "AllReduce", 7, "0x7f8c")
    return a_sample(
        ranks=len(figures), processes=processes, jobs=(replace(a_job(len(figures)), slowest=slow),)
    )
