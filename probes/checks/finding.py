"""What a check says: found, passed or unknown, with evidence that anyone can verify."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from probes.plan import Plan

if TYPE_CHECKING:
    from probes.examination import Examination


class Severity(Enum):
    """What a finding costs, the dearest first."""

    CRITICAL = "critical"  # GPUDirect RDMA does not work, for the node or for some of its GPUs
    WARNING = "warning"  # it works, but slower than it could, or not after the next reboot
    NOTE = "note"  # worth knowing


class Status(Enum):
    """How a check ended."""

    FOUND = "found"
    PASSED = "passed"
    UNKNOWN = "unknown"  # it could not be made; the evidence says what it needs


@dataclass(frozen=True)
class Evidence:
    """Where something was seen, and what."""

    source: str  # a path, or a command as typed
    value: str


@dataclass(frozen=True)
class Outcome:
    """What one check found on one node; made by `found`, `passed` and `unsure`."""

    status: Status
    evidence: tuple[Evidence, ...] = ()
    cause: str = ""  # what is the matter on this node, in a sentence or two
    fix: Plan | None = None
    severity: Severity | None = None  # where this node's case weighs otherwise than the check's usual one
    devices: tuple[str, ...] = ()  # BDFs, RDMA device names and module names that the finding marks


@dataclass(frozen=True)
class Check:
    """One thing that can be wrong; its id never changes."""

    id: str
    area: str
    severity: Severity
    title: str  # what is wrong where it is found, in one line
    reference: str  # a document that anyone can look up
    judge: Callable[[Examination], Outcome]


@dataclass(frozen=True)
class Finding:
    """A check and its outcome."""

    id: str
    area: str
    severity: Severity
    status: Status
    title: str
    evidence: tuple[Evidence, ...]
    cause: str
    fix: Plan | None
    reference: str
    devices: tuple[str, ...] = ()


def found(
    cause: str,
    *evidence: Evidence,
    fix: Plan | None = None,
    severity: Severity | None = None,
    devices: tuple[str, ...] = (),
) -> Outcome:
    """It is wrong here."""
    return Outcome(Status.FOUND, evidence, cause, fix, severity, devices)


def passed(*evidence: Evidence) -> Outcome:
    """It is not wrong here, or does not concern this node: the evidence says which."""
    return Outcome(Status.PASSED, evidence)


def unsure(needs: str, *evidence: Evidence) -> Outcome:
    """Whether it is wrong cannot be said; `needs` is what it would take ("needs root: …")."""
    return Outcome(Status.UNKNOWN, evidence, needs)


class Area:
    """The checks of one file, in the order in which they stand there."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.checks: list[Check] = []

    def check(
        self, name: str, severity: Severity, title: str, reference: str
    ) -> Callable[[Callable[[Examination], Outcome]], Callable[[Examination], Outcome]]:
        """Makes a function over an Examination the area's check with this id."""

        def add(judge: Callable[[Examination], Outcome]) -> Callable[[Examination], Outcome]:
            self.checks.append(Check(name, self.name, severity, title, reference, judge))
            return judge

        return add
