"""The step of a training job, as its traffic shows it."""

from __future__ import annotations

from enum import Enum

from probes.base.frozen import frozen

_STEADY = 0.65  # of the time: updates between the rollouts of reinforcement learning reach 0.6


class StepPart(Enum):
    """The part of a step that has become longer."""

    NETWORK = "network"
    REST = "rest"  # compute, data loading, the host
    BOTH = "both"
    UNCLEAR = "unclear"  # the change is smaller than the error of the parts


@frozen
class UsualStep:
    """A step before it became longer."""

    seconds: float
    network_seconds: float
    until: float  # seconds since 1970: the last time the step was as short
    grown: StepPart  # the part that has become longer


@frozen
class JobStep:
    """The period of a job's traffic and its parts."""

    seconds: float
    network_seconds: float  # in which the NIC is in use
    step_bytes: float  # through the NIC, both directions
    coverage: float  # share of the time in which the period holds, 0 to 1
    device: str  # the NIC that was watched
    longer_than: UsualStep | None = None  # None: it takes no longer than before
    files: tuple[str, ...] = ()  # of the counters that were read

    @property
    def is_steady(self) -> bool:
        """Whether the period holds most of the time: otherwise it is one of several patterns."""
        return self.coverage >= _STEADY

    @property
    def share_longer(self) -> float:
        """By which share the step is longer than before, 0.23 for 23 %."""
        return 0.0 if self.longer_than is None else self.seconds / self.longer_than.seconds - 1
