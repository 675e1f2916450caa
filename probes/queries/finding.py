"""What a check reports: found, passed or unknown, with evidence that anyone can verify."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from probes.base.evidence import Evidence as Evidence  # checks import it with the rest
from probes.base.evidence import Severity as Severity
from probes.base.frozen import frozen
from probes.base.plan import Plan
from probes.base.silence import Silence
from probes.base.unknown import Maybe, Reason, Unknown
from probes.host.protocol import TREE_ONLY

if TYPE_CHECKING:
    from probes.snapshot.examination import Examination

T = TypeVar("T")
_BDF = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
# A condition of a check: the outcome if the check cannot or need not run, else None.
Precondition: TypeAlias = "Callable[[Examination], Outcome | None]"


class Status(Enum):
    """How a check ended."""

    FOUND = "found"
    SILENCED = "silenced"  # found, and an admin has silenced it until a date
    PASSED = "passed"
    UNKNOWN = "unknown"  # the check could not run; the cause says what it needs


DETOUR = Unknown(Reason.NOT_THERE, "", "the traffic uses the CPU, and no source says how fast that is")
"""Gb/s of a pair that ACS redirects."""


@frozen
class PairGain:
    """What a GPU and a NIC near it can reach at most before and after a fix, in one direction."""

    gpu: str  # its label, "GPU0"
    nic: str
    now_gbps: Maybe[float]  # 0: GPUDirect RDMA is not possible now; else a limit or DETOUR
    fixed_gbps: float  # if nothing else limits the path
    limited_by: str  # the part that is the limit after the fix, "port 1 of mlx5_0"


@frozen
class Outcome:
    """What one check found on one node; made by `found`, `passed` and `unknown`."""

    status: Status
    evidence: tuple[Evidence, ...] = ()
    cause: str = ""  # what is wrong on this node, in one or two sentences; or what the check needs
    fix: Plan | None = None
    severity: Severity | None = None  # where this node's case differs from the check's usual severity
    devices: tuple[str, ...] = ()  # BDFs, RDMA device names and module names that the finding marks
    impact: str = ""  # what the user loses on this node; empty: the check's own text
    data_path: bool | None = None  # None: the check's own value
    part_of: tuple[str, ...] = ()  # ids of findings that, where found, have the same cause as this one
    takes: tuple[str, ...] = ()  # GPUs (BDF) and NICs that cannot use GPUDirect RDMA because of it
    ranks: tuple[str, ...] = ()  # "rank 5", "pid 4716"
    jobs: tuple[str, ...] = ()  # names of the jobs that it affects
    pids: frozenset[int] = frozenset()  # processes whose own settings are the problem
    since: float | None = None  # seconds since 1970, where the time is known
    silence: Silence | None = None  # of the configuration; one that has expired if the status is FOUND
    gains: tuple[PairGain, ...] = ()  # what the fix should bring, where the limits of paths say it
    title: str = ""  # more precise than the check's; no counts, because a metric has it as a label


@frozen
class Check:
    """One thing that can be wrong. Its id never changes."""

    id: str
    area: str
    severity: Severity
    title: str  # the problem, in one line
    reference: str  # a document that anyone can look up
    judge: Callable[[Examination], Outcome]
    ok: str = ""  # the title of a passed check, as "nvidia driver is loaded"
    impact: str = ""  # what the user loses, with a figure where known
    data_path: bool = False  # a warning costs bandwidth or latency between NIC and GPU: DEGRADED
    part_of: tuple[str, ...] = ()  # as in Outcome, on every node
    requires: tuple[Precondition, ...] = ()
    is_moving: bool = False  # what it looks at may change with every reading


@frozen
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
    ok: str = ""
    impact: str = ""
    data_path: bool = False
    part_of: str = ""  # the id of the finding with the same cause, which is counted instead of this one
    takes: tuple[str, ...] = ()  # as in Outcome
    ranks: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    pids: frozenset[int] = frozenset()  # as in Outcome, with those of findings with this cause
    since: float | None = None
    silence: Silence | None = None  # as in Outcome, or that of its cause
    gains: tuple[PairGain, ...] = ()  # as in Outcome; without any, those of findings with this cause

    @property
    def is_present(self) -> bool:
        """Whether the problem is there: found, silenced or not."""
        return self.status in (Status.FOUND, Status.SILENCED)


def found(
    cause: str,
    *evidence: Evidence,
    fix: Plan | None = None,
    severity: Severity | None = None,
    devices: tuple[str, ...] = (),
    impact: str = "",
    data_path: bool | None = None,
    part_of: tuple[str, ...] = (),
    takes: tuple[str, ...] = (),
    ranks: tuple[str, ...] = (),
    jobs: tuple[str, ...] = (),
    pids: frozenset[int] = frozenset(),
    since: float | None = None,
    gains: tuple[PairGain, ...] = (),
    title: str = "",
) -> Outcome:
    """Return the outcome of a check that found its problem."""
    affected = (takes, ranks, jobs, pids, since)
    texts = (evidence, cause, fix, severity, devices, impact, data_path, part_of)
    return Outcome(Status.FOUND, *texts, *affected, gains=gains, title=title)


def passed(*evidence: Evidence) -> Outcome:
    """Return the outcome of a check that is ok or not applicable; the evidence says which."""
    return Outcome(Status.PASSED, evidence)


def unknown(reason: str, *evidence: Evidence) -> Outcome:
    """Return the outcome of a check that could not run; `reason` says what it needs ("needs root: …")."""
    return Outcome(Status.UNKNOWN, evidence, reason)


def needs(what: str, why: Unknown | str) -> str:
    """Say what a check needs: "needs root: the kernel log", "needs the GPUs (timed out)"."""
    if TREE_ONLY in str(why):
        return "needs a running node (this is a tree of files)"
    if isinstance(why, Unknown) and why.reason is Reason.NEEDS_ROOT:
        return f"needs root: {what}"
    if isinstance(why, Unknown) and why.reason is Reason.NOT_THERE and why.detail:
        why = why.detail
    return f"needs {what} ({why})"


def unknown_without(what: str, why: Unknown, *evidence: Evidence) -> Outcome:
    """Return the outcome of a check that could not run without `what`, with the details as evidence."""
    detail = (Evidence(why.source, why.detail or why.reason.value),) if why.source else ()
    return unknown(needs(what, why), *evidence, *detail)


class CheckEnded(Exception):
    """A check's outcome is known before its last line; the registry catches this."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.cause)
        self.outcome = outcome


def need(fact: Maybe[T], what: str, *evidence: Evidence, absent: Evidence | None = None) -> T:
    """Return the fact, or end the check as unknown ("needs root: the kernel log").

    The evidence says where the fact was read from, and what went wrong there. `absent` is the evidence with
    which the check passes instead if the fact is NOT_THERE.

    Raises:
        CheckEnded: the fact is unknown. Only checks may call this, because only the registry catches it.
    """
    if isinstance(fact, Unknown):
        if absent is not None and fact.reason is Reason.NOT_THERE:
            raise CheckEnded(passed(absent))
        raise CheckEnded(unknown_without(what, fact, *evidence))
    return fact


def end_with(outcome: Outcome | None) -> None:
    """End the check with this outcome; go on if it is None.

    Raises:
        CheckEnded: there is an outcome. Only checks may call this, because only the registry catches it.
    """
    if outcome is not None:
        raise CheckEnded(outcome)


class Area:
    """The checks of one file, in the order in which the file defines them.

    A check runs only where every precondition in `requires` returns None. With `is_moving` the checks look at
    what changes with every reading, so they are run again each second; all others run in an examination.
    """

    def __init__(self, name: str, requires: tuple[Precondition, ...] = (), is_moving: bool = False) -> None:
        self.name = name
        self.requires = requires
        self.is_moving = is_moving
        self.checks: list[Check] = []

    def check(
        self,
        name: str,
        severity: Severity,
        title: str,
        reference: str,
        *,
        ok: str = "",
        impact: str = "",
        data_path: bool = False,
        part_of: tuple[str, ...] = (),
        requires: tuple[Precondition, ...] | None = None,
    ) -> Callable[[Callable[[Examination], Outcome]], Callable[[Examination], Outcome]]:
        """Register a function over an Examination as the area's check with this id."""
        conditions = self.requires if requires is None else requires

        def add(judge: Callable[[Examination], Outcome]) -> Callable[[Examination], Outcome]:
            texts = (name, self.name, severity, title, reference)
            added = Check(*texts, judge, ok, impact, data_path, part_of, conditions, self.is_moving)
            self.checks.append(added)
            return judge

        return add


def names_of(finding: Finding, labels: Mapping[str, str]) -> list[str]:
    """Return the names of the GPUs and NICs that a finding is about, or addresses if it is about neither.

    `labels`: the names of GPUs and NICs by BDF.
    """
    named = [device for device in finding.devices if has_name(device, labels)]
    return list(dict.fromkeys(labels.get(device, device) for device in named or finding.devices))


def has_name(device: str, labels: Mapping[str, str]) -> bool:
    """Return whether people know a device by a name, unlike a switch, which has only an address."""
    return device in labels or not _BDF.fullmatch(device)
