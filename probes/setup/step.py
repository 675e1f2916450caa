"""One step of setup as data: its state, its reason, and the plan that completes it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from probes.base.plan import Plan
from probes.queries.finding import Evidence


class StepState(Enum):
    """Where a step stands."""

    DONE = "done"
    TO_DO = "to do"
    BLOCKED = "blocked"  # another step, a right or a person comes first; `reason` names it
    SKIPPED = "skipped"  # not needed here, or the admin skipped it; `reason` says which
    UNKNOWN = "unknown"  # what decides could not be read; `reason` says why


@dataclass(frozen=True)
class SetupStep:
    """One step on one node."""

    id: str  # "nic-driver"; never changes
    title: str  # "Install the NIC driver"
    state: StepState
    reason: str  # one line: why it has this state
    why: str  # one sentence: what does not work without it
    evidence: tuple[Evidence, ...] = ()
    plan: Plan | None = None  # the exact commands and files; instructions where only a person can act
    may_run: bool = False  # gdrtop may run the plan after confirmation
    needs_console: bool = False  # the next boot asks at the console
    test: str = ""  # id of the bandwidth test that this step runs instead of a plan
    blocked_by: tuple[str, ...] = ()  # ids of steps
