"""The events of a run, and how its steps and the whole run ended."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Union

from probes.base.plan import Plan, Step
from probes.base.unknown import Maybe


class Outcome(Enum):
    """How a step or a run ended; the value stands in the log."""

    DONE = "done"
    FAILED = "failed"
    STILL_RUNNING = "still running"  # gdrtop no longer waits for it
    STOPPED = "stopped"  # the rest was not begun: a person stopped it, or the terminal closed
    LEFT = "left to you"  # what gdrtop runs is done, the rest is manual
    REFUSED = "refused"  # nothing was begun
    UNKNOWN = "unknown"  # gdrtop died during the run, so that the log has no end of it


@dataclass(frozen=True)
class RunBegan:
    """A plan is being run."""

    plan: Plan
    as_root: str  # "as root", "by sudo", "on the simulated node"


@dataclass(frozen=True)
class StepBegan:
    """Step `number`, from 1, is being run."""

    number: int
    step: Step


@dataclass(frozen=True)
class Printed:
    """A line that the step under way printed: control sequences are gone but those of colour (SGR)."""

    text: str


@dataclass(frozen=True)
class StepEnded:
    """A step has ended; the explanation is "" where there is nothing to add to what it printed."""

    number: int
    outcome: Outcome
    exit_status: int | None
    seconds: float
    explanation: str = ""
    kernel_lines: Maybe[tuple[str, ...]] = ()  # what the kernel logged meanwhile, where the step failed


@dataclass(frozen=True)
class RunEnded:
    """Nothing more is done; `why` is a sentence for all but DONE."""

    outcome: Outcome
    why: str = ""
    left: tuple[Step, ...] = ()  # what was not run


Event = Union[RunBegan, StepBegan, Printed, StepEnded, RunEnded]  # noqa: UP007 - for Python 3.10
