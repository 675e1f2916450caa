"""The events of a run, and how its steps and the whole run ended."""

from __future__ import annotations

from enum import Enum
from typing import Union

from probes.base.frozen import frozen
from probes.base.plan import Plan, Step
from probes.base.text import plural
from probes.base.unknown import Maybe


class RunOutcome(Enum):
    """How a step or a run ended; the values are in the audit log."""

    DONE = "done"
    FAILED = "failed"
    STILL_RUNNING = "still running"  # gdrtop no longer waits for it
    STOPPED = "stopped"  # by the user, or because the terminal closed
    LEFT = "steps left"  # the others are done; gdrtop does not run these
    REFUSED = "refused"  # nothing was run
    UNKNOWN = "unknown"  # gdrtop died during the run, so the log has no end of it


@frozen
class RunBegan:
    """A run has begun."""

    plan: Plan
    as_root: str  # "as root", "by sudo", "on the simulated node"


@frozen
class StepBegan:
    """Step `number`, from 1, has begun."""

    number: int
    step: Step


@frozen
class Printed:
    """A line that the running step printed, without control sequences other than colors (SGR)."""

    text: str


@frozen
class StepEnded:
    """A step has ended; the explanation is "" if its output says enough."""

    number: int
    outcome: RunOutcome
    exit_status: int | None
    seconds: float
    explanation: str = ""
    kernel_lines: Maybe[tuple[str, ...]] = ()  # logged during the step, if it failed


@frozen
class RunEnded:
    """The run has ended; `why` is a sentence for all outcomes but DONE."""

    outcome: RunOutcome
    why: str = ""
    left: tuple[Step, ...] = ()  # not run

    @property
    def summary(self) -> str:
        """Return how the run ended: "failed", "done; 2 manual steps left"."""
        left = f"done; {plural(len(self.left), 'manual step')} left"
        return left if self.outcome is RunOutcome.LEFT else str(self.outcome.value)


RunEvent = Union[RunBegan, StepBegan, Printed, StepEnded, RunEnded]  # noqa: UP007 - for Python 3.10
