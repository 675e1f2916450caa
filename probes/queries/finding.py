"""What a check reports: found, passed or unknown, with evidence that anyone can verify."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from enum import Enum
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from probes.base.data_files import read_toml_once
from probes.base.evidence import Evidence, Severity
from probes.base.frozen import frozen
from probes.base.plan import Plan
from probes.base.site import Silence, address_of, finding_page, site
from probes.base.text import BDF
from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.host.protocol import TREE_ONLY

if TYPE_CHECKING:
    from probes.facts.gpudirect import GdrPath
    from probes.snapshot.examination import Examination
    from probes.topology.paths import Topology


T = TypeVar("T")
# A condition of a check: the outcome if the check cannot or need not run, else None.
Precondition: TypeAlias = "Callable[[Examination], Outcome | None]"


class Status(Enum):
    """How a check ended."""

    FOUND = "found"
    SILENCED = "silenced"  # found, and an admin has silenced it until a date
    PASSED = "passed"
    UNKNOWN = "unknown"  # the check could not run; the cause says what it needs


AREAS_OF_JOBS = ("nccl", "jobs")
"""Areas whose findings are about jobs and their settings."""


class Scope(Enum):
    """What is at fault where a check finds something, beside the devices that are affected."""

    DEVICES = "devices"  # the devices that it names
    JOB = "job"  # a job or its settings; the devices are those that it uses
    NODE = "node"  # software or a setting of the node: it may be what is wrong with any device


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
    devices: tuple[str, ...] = ()  # BDFs, RDMA device names and module names that it affects
    impact: str = ""  # what the user loses on this node; empty: the check's own text
    data_path: bool | None = None  # None: the check's own value
    # Ids of findings that, where found and about the same devices or jobs, have the same cause as this one.
    part_of: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()  # as in Finding
    ranks: tuple[str, ...] = ()  # as in Finding
    jobs: tuple[str, ...] = ()  # as in Finding
    pids: frozenset[int] = frozenset()  # processes whose own settings are the problem
    since: float | None = None  # seconds since 1970, where the time is known
    silence: Silence | None = None  # of the configuration; one that has expired if the status is FOUND
    gains: tuple[PairGain, ...] = ()  # what the fix should bring, where the limits of paths say it
    refutes: tuple[GdrPath, ...] = ()  # paths that cannot work here because of it, whatever they require
    # What it is about, each thing by all names by which a cause may know it: devices, pid_name(), jobs.
    # None: each of its devices or, without any, processes or jobs. Empty: anything.
    subjects: tuple[frozenset[str], ...] | None = None
    # More precise than the check's title, or the effect in an admin's words, "train.py copies …". No counts,
    # because a metric has it as a label.
    title: str = ""


@frozen
class Texts:
    """What a check says on every node."""

    title: str  # the problem, in one line
    source: str  # a document that anyone can look up
    ok: str = ""  # the title of a passed check, as "nvidia driver is loaded"
    impact: str = ""  # what the user loses, with a figure where known
    fix: str = ""  # the title of the plan, where it is the same on every node
    steps: Collection[str] = ()  # as in a shell: "# as root", "$ as any user"; "$ Show why | nvidia-smi -q"
    disturbs: str = ""  # as in Plan
    note: str = ""
    plan: str = ""  # "job": the job has to be restarted, "reboot": the node; "": neither


@cache
def _read_texts(package: str, check: str) -> Texts:
    return Texts(**read_toml_once(package, "texts.toml")[check])


@frozen
class Check:
    """One thing that can be wrong. Its id never changes."""

    id: str
    area: str
    severity: Severity
    judge: Callable[[Examination], Outcome]
    texts: Callable[[], Texts]  # read when they are first asked for, which most commands never do
    data_path: bool = False  # a warning costs bandwidth or latency between NIC and GPU: DEGRADED
    part_of: tuple[str, ...] = ()  # as in Outcome, on every node
    requires: tuple[Precondition, ...] = ()
    is_moving: bool = False  # what it looks at may change with every reading
    scope: Scope = Scope.DEVICES
    explains: bool = False  # it says why a job does what another finding says, which then takes its fix


@frozen
class Finding:
    """A check and its outcome."""

    id: str
    area: str
    severity: Severity
    status: Status
    title: str
    evidence: tuple[Evidence, ...]
    cause: str  # why it was found, or why the check could not run
    fix: Plan | None
    reference: str
    devices: tuple[str, ...] = ()
    ok: str = ""  # the title of the check where it passed
    impact: str = ""  # what the user loses
    data_path: bool = False  # a warning costs bandwidth or latency between NIC and GPU
    part_of: str = ""  # the id of the finding with the same cause, which is counted instead of this one
    takes: tuple[str, ...] = ()  # GPUs (BDF) and NICs that cannot use GPUDirect RDMA because of it
    ranks: tuple[str, ...] = ()  # "rank 5", "pid 4716"
    jobs: tuple[str, ...] = ()  # names of the jobs that it affects
    pids: frozenset[int] = frozenset()  # as in Outcome, with those of findings with this cause
    since: float | None = None  # seconds since 1970: when it began; None: unknown
    silence: Silence | None = None  # of the configuration, or that of its cause
    gains: tuple[PairGain, ...] = ()  # what the fix should bring, or that of findings with this cause
    refutes: tuple[GdrPath, ...] = ()  # as in Outcome
    check_title: str = ""  # where the title is an effect on a job
    part_jobs: tuple[str, ...] = ()  # jobs of findings with this cause
    explained_by: str = ""  # title of the finding with this cause that says why, and whose fix this one has
    marked: tuple[str, ...] = ()  # those of `devices` that are themselves at fault, and not only affected

    @property
    def affected_jobs(self) -> tuple[str, ...]:
        """Its own jobs, and those of findings with this cause."""
        return tuple(dict.fromkeys((*self.jobs, *self.part_jobs)))

    @property
    def problem(self) -> str:
        """The title of the check, which is the same on each node and at any time."""
        return self.check_title or self.title

    @property
    def page(self) -> str:
        """The address of its page; "" for a check that a site has added, and where none is published."""
        has_page = site().pages and self.area != "site"
        return address_of(finding_page(self.id)) if has_page else ""

    @property
    def is_present(self) -> bool:
        """Whether the problem is there: found, silenced or not."""
        return self.status in (Status.FOUND, Status.SILENCED)


class _LateText:
    """A text of a finding; a function that is given for it is called when the text is first asked for."""

    def __init__(self, name: str, default: str | None) -> None:
        self._name = name
        self._default = default

    def __get__(self, finding: Finding | None, owner: object) -> str:
        if finding is None and self._default is None:
            raise AttributeError(self._name)  # asked by dataclass(): the field has no default
        text: Any = self._default if finding is None else vars(finding)[self._name]
        if finding is not None and not isinstance(text, str):
            text = vars(finding)[self._name] = text()
        return str(text)

    def __set__(self, finding: Finding, text: str | Callable[[], str]) -> None:
        vars(finding)[self._name] = text


for _name, _default in (("title", None), ("reference", None), ("ok", ""), ("impact", "")):
    setattr(Finding, _name, _LateText(_name, _default))


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
    refutes: tuple[GdrPath, ...] = (),
    subjects: tuple[frozenset[str], ...] | None = None,
    title: str = "",
) -> Outcome:
    """Return the outcome of a check that found its problem."""
    affected = (takes, ranks, jobs, pids, since)
    texts = (evidence, cause, fix, severity, devices, impact, data_path, part_of)
    return Outcome(
        Status.FOUND, *texts, *affected, gains=gains, refutes=refutes, subjects=subjects, title=title
    )


def pid_name(pid: int) -> str:
    """Return the name of a process among the names of `Outcome.subjects`."""
    return f"pid {pid}"


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
    """The checks of one subject, in the order in which their file defines them.

    A check runs only where every precondition in `requires` returns None. With `is_moving` the checks look at
    what changes with every reading, so they are run again each second; all others run in an examination.
    `explains` is as in Check. `critical`, `warning` and `note` register a function over an Examination as a
    check of this severity. `package`: the folder whose texts.toml has the texts of the checks.
    """

    def __init__(
        self,
        name: str,
        package: str,
        requires: tuple[Precondition, ...] = (),
        is_moving: bool = False,
        explains: bool = False,
    ) -> None:
        self.name = name
        self.package = package
        self.requires = requires
        self.is_moving = is_moving
        self.scope = Scope.JOB if name in AREAS_OF_JOBS else Scope.DEVICES
        self.explains = explains
        self.checks: list[Check] = []
        self.critical = partial(self.check, Severity.CRITICAL)
        self.warning = partial(self.check, Severity.WARNING)
        self.note = partial(self.check, Severity.NOTE)

    def check(
        self,
        severity: Severity,
        name: str,
        *,
        data_path: bool = False,
        part_of: tuple[str, ...] = (),
        requires: tuple[Precondition, ...] | None = None,
        scope: Scope | None = None,
    ) -> Callable[[Callable[[Examination], Outcome]], Callable[[Examination], Outcome]]:
        """Register a function over an Examination as the area's check with this severity and id."""
        conditions = self.requires if requires is None else requires

        def add(judge: Callable[[Examination], Outcome]) -> Callable[[Examination], Outcome]:
            texts = partial(_read_texts, self.package, name)
            about = (data_path, part_of, conditions, self.is_moving, scope or self.scope, self.explains)
            self.checks.append(Check(name, self.name, severity, judge, texts, *about))
            return judge

        return add


def names_of(finding: Finding, labels: Mapping[str, str]) -> list[str]:
    """Return the names of the GPUs and NICs that a finding is about, or addresses if it is about neither.

    `labels`: the names of GPUs and NICs by BDF.
    """
    named = [device for device in finding.devices if device in labels or not is_bdf(device)]
    return list(dict.fromkeys(labels.get(device, device) for device in named or finding.devices))


def named_first(finding: Finding, labels: Mapping[str, str]) -> list[str]:
    """Return the devices of a finding: GPUs and NICs before switches, which have only an address."""
    return sorted(finding.devices, key=lambda device: device not in labels and is_bdf(device))


def is_bdf(device: str) -> bool:
    """Return whether this is the address of a PCI function."""
    return BDF.fullmatch(device) is not None


def costs_bandwidth(finding: Finding) -> bool:
    """Return whether jobs on the devices of a finding lose something by it."""
    return finding.data_path or finding.severity is Severity.CRITICAL or bool(finding.takes)


def concerns(finding: Finding, topology: Topology, ends: Collection[str]) -> bool:
    """Return whether a finding is about one of these GPUs and NICs, or about no single one of the node.

    `ends`: their ids in the topology.
    """
    named = {*finding.takes} or {*finding.devices}
    every = {
        name: end.id for end in (*topology.gpus, *topology.nics) for name in (end.id, known(end.bdf, ""))
    }
    places = {every[name] for name in named if name in every}
    return not places or not places.isdisjoint(ends)


# Words that several checks share.

RDMA_DEVICES = "the RDMA devices"
KERNEL_LOG = "the kernel log"
PCI_FUNCTIONS = "the PCI functions"
NEEDS_NAMESPACE = "needs the network namespace that the RDMA devices are in, for example a pod's"
STAGED = (
    "NCCL copies GPU data through host memory. One report measured 10 instead of 180 GB/s (NVIDIA/nccl#1676)."
)
"""The impact of a node without GPUDirect RDMA."""
