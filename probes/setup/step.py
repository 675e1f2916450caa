"""One step of setup as data: its state, its reason, and the plan that completes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import Enum

from probes.bandwidth.model.request import Request
from probes.base.frozen import frozen
from probes.base.plan import Plan
from probes.queries.finding import Evidence


class StepState(Enum):
    """Where a step stands."""

    DONE = "done"
    TO_DO = "to do"
    BLOCKED = "blocked"  # another step, a right or a person comes first; `reason` names it
    SKIPPED = "skipped"  # not needed here, or the admin skipped it; `reason` says which
    UNKNOWN = "unknown"  # what decides could not be read; `reason` says why


OPEN_STATES = (StepState.TO_DO, StepState.BLOCKED)


@frozen
class SetupStep:
    """One step on one node."""

    id: str  # "nic-driver"; never changes
    title: str  # "Install the NIC driver"
    state: StepState
    reason: str  # one line: why it has this state
    why: str  # one sentence: what does not work without it
    evidence: tuple[Evidence, ...] = ()
    plan: Plan | None = None  # the exact commands and files; instructions where only a person can act
    needs_console: bool = False  # the next boot asks a question at the console
    test: Request | None = None  # the bandwidth test that completes the step
    command: str = ""  # the gdrtop command that completes the step: "gdrtop report"
    findings: tuple[str, ...] = ()  # ids of the findings behind it, for the doctor
    is_optional: bool = False  # the node is set up without it
    is_left_out: bool = False  # the admin skipped it although it is not done

    @property
    def is_over(self) -> bool:
        """Return whether it was done, or is skipped."""
        return self.state in (StepState.DONE, StepState.SKIPPED)

    @property
    def is_open(self) -> bool:
        """Return whether something is left to do, or to find out."""
        return not self.is_over and not self.is_optional

    @property
    def can_begin(self) -> bool:
        """Return whether a plan, a test or a command completes the step now; a test can run again."""
        if self.state is StepState.DONE:
            return self.test is not None
        acts = self.plan is not None or self.test is not None or bool(self.command)
        return self.state is StepState.TO_DO and acts


@frozen
class SetupRecord:
    """What is remembered between runs: an admin's choices, and the boots that setup has seen.

    The state of a step is never saved: it is read from the node again.
    """

    path: str = ""  # value of GdrPath that the admin chose; "": the recommended one
    skipped: dict[str, str] | None = None  # step id → who skipped it and when, as one line
    path_by: str = ""  # "chosen by root on 2026-11-22"; "" if nobody chose
    boots: Mapping[str, bool] = field(default_factory=dict)  # boot id → was a step before the reboot open?
    reported: str = ""  # file of the last report
