"""One step of setup as data: its state, its reason, and the plan that completes it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from probes.bandwidth.model.request import Request
from probes.bandwidth.model.result import Result
from probes.base.evidence import Evidence
from probes.base.frozen import frozen
from probes.base.plan import Plan
from probes.base.unknown import Maybe
from probes.facts.gpudirect import GdrPath
from probes.queries.finding import Finding
from probes.setup.situation import PathChoice, Situation
from probes.snapshot.examination import Examination


class StepState(Enum):
    """Where a step stands."""

    DONE = "done"
    TO_DO = "to do"
    BLOCKED = "blocked"  # another step, a right or a person comes first; `reason` names it
    SKIPPED = "skipped"  # not needed here, or the admin skipped it; `reason` says which
    UNKNOWN = "unknown"  # what decides could not be read; `reason` says why


OPEN_STATES = (StepState.TO_DO, StepState.BLOCKED)
REBOOT = "reboot"  # the step


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


# The definition of a step: what it is on every node, and how it is built for one of them.


@frozen
class SetupFacts:
    """What the steps of one node are built from."""

    situation: Situation
    choice: PathChoice
    path: GdrPath | None  # as Guide.path
    findings: Mapping[str, Finding]  # all of the node's, by id
    results: Sequence[Result]  # of this node
    record: SetupRecord
    boot_id: Maybe[str]

    @property
    def examination(self) -> Examination:
        """Return the examination of the node."""
        return self.situation.examination


@dataclass(frozen=True)
class StepDefinition(ABC):
    """One step of the list; a subclass says where its state comes from."""

    id: str  # "nic-driver"; never changes
    title: str  # "Install the NIC driver"
    why: str  # one sentence: what does not work without it
    after: tuple[str, ...] = ()  # ids of earlier steps that must be finished first
    judges: tuple[str, ...] = ()  # of `after`: what it judges is not there until they are done
    is_possible_in_container: bool = False
    is_scripted: bool = True  # its commands belong in `gdrtop setup --script`
    staged: str = ""  # `why` on a node whose jobs copy through host memory by design; "": not needed there

    @abstractmethod
    def build(self, facts: SetupFacts) -> SetupStep:
        """Return the step of one node, whatever other steps it waits for."""

    def step(
        self,
        state: StepState,
        reason: str,
        evidence: tuple[Evidence, ...] = (),
        plan: Plan | None = None,
        *,
        needs_console: bool = False,
        test: Request | None = None,
        command: str = "",
        findings: tuple[str, ...] = (),
    ) -> SetupStep:
        """Return the step in a state; the arguments are the fields of `SetupStep`."""
        about = (self.id, self.title, state, reason, self.why)
        return SetupStep(*about, evidence, plan, needs_console, test, command, findings)


@dataclass(frozen=True, kw_only=True)
class BuiltStep(StepDefinition):
    """A step with a function of its own; `facts` are those of its list of steps."""

    function: Callable[[StepDefinition, Any], SetupStep]

    def build(self, facts: SetupFacts) -> SetupStep:
        """Return what the function returns."""
        return self.function(self, facts)


def after_earlier(definition: StepDefinition, step: SetupStep, earlier: Mapping[str, SetupStep]) -> SetupStep:
    """Return the step, blocked where one of the steps before it must be finished first."""
    # Without these, the state says nothing: "modules match" before a module exists.
    after = definition.judges if step.state is StepState.DONE else ()
    if step.state is StepState.TO_DO or (step.id == REBOOT and step.state is StepState.DONE):
        after = definition.after
    first = next((earlier[name] for name in after if earlier[name].state in OPEN_STATES), None)
    if first is None:
        return step
    return replace(step, state=StepState.BLOCKED, reason=f"waiting for: {first.title}")
