"""The definition of a step: what it is on every node, and how it is built for one of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from probes.bandwidth.model.request import Request
from probes.bandwidth.model.result import Result
from probes.base.frozen import frozen
from probes.base.plan import Plan
from probes.base.unknown import Maybe
from probes.facts.gpudirect import GdrPath
from probes.queries.finding import Evidence, Finding
from probes.setup.situation import PathChoice, Situation
from probes.setup.step import SetupRecord, SetupStep, StepState
from probes.snapshot.examination import Examination


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


@dataclass(frozen=True, kw_only=True)
class StepDefinition(ABC):
    """One step of the list; a subclass says where its state comes from."""

    id: str  # "nic-driver"; never changes
    title: str  # "Install the NIC driver"
    why: str  # one sentence: what does not work without it
    after: tuple[str, ...] = ()  # ids of earlier steps that must be finished first
    judges: tuple[str, ...] = ()  # of `after`: what it judges is not there until they are done
    is_possible_in_container: bool = False
    is_scripted: bool = True  # its commands belong in `gdrtop setup --script`

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
    """A step with a function of its own."""

    function: Callable[[StepDefinition, SetupFacts], SetupStep]

    def build(self, facts: SetupFacts) -> SetupStep:
        """Return what the function returns."""
        return self.function(self, facts)
