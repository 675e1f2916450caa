"""The NIC or rank that differs from the others of its job."""

from __future__ import annotations

from probes.base.unknown import Maybe
from probes.facts.node import Node
from probes.live.sample import LiveJob, LiveProcess, PortSample


class OddOneOut:
    """Compare NICs and ranks of each job over time."""

    def update(
        self,
        jobs: tuple[LiveJob, ...],
        processes: Maybe[tuple[LiveProcess, ...]],
        ports: tuple[PortSample, ...],
        node: Node,
        at: float,
    ) -> tuple[LiveJob, ...]:
        """Return the jobs with what is odd in them."""
        return jobs
