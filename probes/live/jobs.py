"""Group processes into jobs."""

from __future__ import annotations

from probes.base.unknown import Maybe
from probes.live.sample import LiveJob, LiveProcess, PortSample


def group(processes: Maybe[tuple[LiveProcess, ...]], ports: tuple[PortSample, ...]) -> tuple[LiveJob, ...]:
    """Return the jobs, those with the most ranks first."""
    return ()
