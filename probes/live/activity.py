"""When a job moves data, is silent, or has an idle GPU: the same thresholds for Live, hang and the fleet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from probes.base.unknown import Unknown
from probes.live.model.sample import LiveJob, PortSample

SILENT_SECONDS = 10.0
"""Without traffic on any port of a job; for a shorter time, a computation or a checkpoint looks the same."""
IDLE_PERCENT, BUSY_PERCENT = 10, 90
"""Utilization of the GPU of a rank that differs, and of those that wait: their kernels spin."""
LEAST_GBPS = 1.0
_LEAST_SHARE = 0.01  # of the line rate, where that is less
_LEAST_SOFTWARE_GBPS = 0.005  # software RDMA, whose line rate says little


def least_gbps(port: PortSample) -> float:
    """Return the rate of a port below which its traffic is noise."""
    if port.rates_from:
        return _LEAST_SOFTWARE_GBPS
    line = port.line_rate_gbps
    return LEAST_GBPS if isinstance(line, Unknown) or line <= 0 else min(LEAST_GBPS, _LEAST_SHARE * line)


def moves_data(port: PortSample | None) -> bool | None:
    """Return whether a port moves data; None if a rate of it is unknown."""
    if port is None or isinstance(port.sent_gbps, Unknown) or isinstance(port.received_gbps, Unknown):
        return None
    return max(port.sent_gbps, port.received_gbps) >= least_gbps(port)


class Silence:
    """For how long no NIC of each job has moved data while gdrtop watched."""

    def __init__(self) -> None:
        self._moved_at: dict[str, float] = {}  # by the job's id

    def update(
        self, jobs: tuple[LiveJob, ...], ports: Sequence[PortSample], at: float
    ) -> tuple[LiveJob, ...]:
        """Return the jobs with their silence; an unknown rate may be traffic, and so may another job's."""
        still = {port.device for port in ports} - {
            port.device for port in ports if moves_data(port) is not False
        }
        before, self._moved_at = self._moved_at, {}
        for job in jobs:
            since = before.get(job.id, at)
            is_still = bool(job.nics) and still.issuperset(job.nics) and since <= at
            self._moved_at[job.id] = since if is_still else at
        return tuple(self._with_silence(job, at) for job in jobs)

    def _with_silence(self, job: LiveJob, at: float) -> LiveJob:
        seconds = at - self._moved_at[job.id]
        return job if seconds < SILENT_SECONDS else replace(job, silent_seconds=seconds)
