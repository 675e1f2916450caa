"""What an admin would say about a node: one sentence, made from the judgment and the paths of its jobs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from probes.base.frozen import frozen
from probes.base.text import capitalized, plural
from probes.base.unknown import Unknown
from probes.checks.judgment import Judgment, degrading
from probes.checks.statements import Health, jobs_with_rdma, members_of, rank_health
from probes.live.model.sample import GDR_WORDS, LiveSample, PathJudgment, PathWord, path_phrase, program_of
from probes.live.model.transfer import TransferPath, TransferWord, transfer_phrase
from probes.live.processes.jobs import path_shares
from probes.queries.finding import Finding
from probes.snapshot.verdict import State, Verdict

_ARTICLES = ("A", "An", "The", "Some")
_A_JOB = re.compile(r"\b(?:A|a) (?:running )?job\b")  # in titles, which name no job
_BY_DESIGN = "by design: "
# What an admin asks for first: a job without GPUDirect RDMA, then one that uses it.
_BY_INTEREST = (Health.CRITICAL, Health.WARNING, Health.GOOD, Health.UNKNOWN, Health.PLAIN)


@frozen
class Headline:
    """The effect, and its cause where there is one: of a fault, what is wrong first in the findings."""

    effect: str  # "train.py copies through host memory"
    cause: str = ""  # "nvidia_peermem is not loaded"

    @property
    def text(self) -> str:
        """The whole sentence, without a period: no figure in it changes with each reading."""
        if not self.cause:
            return self.effect
        article, blank, rest = self.cause.partition(" ")
        return f"{self.effect}: {article.lower() if article in _ARTICLES else article}{blank}{rest}"


def headline(judgment: Judgment, sample: LiveSample | None, labels: Mapping[str, str]) -> Headline:
    """Return what is wrong with a node and what that does, or else whether its jobs use GPUDirect RDMA.

    `sample`: None before the first one; `labels`: names of GPUs and NICs by BDF and device name.
    """
    verdict = judgment.verdict
    reasons = degrading(judgment.found)
    if not verdict.state.has_counts:
        by_design = " (by design)" if verdict.reason.startswith(_BY_DESIGN) else ""
        return Headline(capitalized(verdict.reason.removeprefix(_BY_DESIGN)) + by_design)
    if verdict.state is State.BROKEN:
        return Headline(_without_path(sample), reasons[0].title if reasons else verdict.reason)
    if verdict.state is State.DEGRADED and reasons:
        return _degraded(reasons[0], judgment.found, verdict, labels)
    return _in_use(sample, verdict)


def _without_path(sample: LiveSample | None) -> str:
    """Return what runs without GPUDirect RDMA, else that nothing can use it."""
    uses = _uses(sample)
    worst = [use for use in uses if use.health is Health.WARNING]
    if worst:
        return _said_of(worst)
    return "No new job can use GPUDirect RDMA" if uses else "No job can use GPUDirect RDMA"


def _degraded(
    first: Finding, found: Sequence[Finding], verdict: Verdict, labels: Mapping[str, str]
) -> Headline:
    """Return what the first finding does to a job, takes away, or else is about."""
    parts = (finding for finding in found if finding.part_of == first.id and not first.jobs)
    effects = (part.title for part in parts if any(program_of(job) in part.title for job in part.jobs))
    if (effect := next(effects, "")) and effect != first.title:
        return Headline(effect, first.title)
    lost = verdict.gpus - verdict.gpus_served
    if first.takes and lost > 0:
        verb = "are" if lost > 1 else "is"
        return Headline(f"{lost} of {plural(verdict.gpus, 'GPU')} {verb} without GPUDirect RDMA", first.title)
    names = tuple(dict.fromkeys(labels.get(device, device) for device in first.devices))
    subjects, title = first.ranks or names, first.title
    if len(first.jobs) == 1:
        title = _A_JOB.sub(program_of(first.jobs[0]), title)
    is_named = len(subjects) != 1 or subjects[0].casefold() in title.casefold()
    return Headline(title, "" if is_named else subjects[0])


def _in_use(sample: LiveSample | None, verdict: Verdict) -> Headline:
    """Return whether the jobs of a node that works use GPUDirect RDMA."""
    works = "GPUDirect RDMA works here"
    if sample is None:
        return Headline(works)
    if isinstance(sample.processes, Unknown):
        return Headline(f"{works}; which jobs use it is unknown ({sample.processes.reason.value})")
    uses = _uses(sample)
    if not uses:
        return Headline(f"{works}; no job uses RDMA now")
    first = uses[0]
    if first.is_told:
        alike = [use for use in uses if (use.health, use.phrase()) == (first.health, first.phrase())]
        return Headline(_said_of(alike, has_all=True))
    if first.path.word is PathWord.UNKNOWN:
        return Headline(f"{works}; the path of {first.program} is unknown", first.path.why or verdict.reason)
    return Headline(f"{works}; no job uses it now")


@frozen
class _Use:
    """What a job does on this node, by the path of most interest."""

    program: str
    path: PathJudgment
    health: Health
    where: str  # " on all 8 ranks"
    transfer: TransferPath | None = None  # of an inference engine

    @property
    def is_told(self) -> bool:
        """Whether the path is what an admin asks for."""
        if self.transfer is not None:
            return self.transfer.lasting is not TransferWord.UNKNOWN
        return self.path.word in GDR_WORDS or self.health is Health.WARNING

    @property
    def is_likely(self) -> bool:
        """Whether the evidence is no proof."""
        return self.path.is_likely if self.transfer is None else not self.transfer.is_seen

    def phrase(self, of_many: bool = False) -> str:
        """Return what the job does, or several of them do."""
        if self.transfer is not None:
            return transfer_phrase(self.transfer.lasting, of_many)
        return path_phrase(self.path.word, of_many).partition(" (")[0]


def _uses(sample: LiveSample | None) -> list[_Use]:
    """Return what the jobs with RDMA do, in the order of interest, else as Live lists them."""
    uses: list[_Use] = []
    if sample is None:
        return []
    for job in jobs_with_rdma(sample):
        shares = [(rank_health(share.first, sample), share) for share in path_shares(members_of(job, sample))]
        if shares:
            health, share = min(shares, key=lambda pair: _BY_INTEREST.index(pair[0]))
            where = share.where.partition(" (")[0]
            first = share.first
            uses.append(_Use(program_of(job.name), first.path, health, where, first.transfer))
    return sorted(uses, key=lambda use: _BY_INTEREST.index(use.health))


def _said_of(uses: Sequence[_Use], has_all: bool = False) -> str:
    """Return "train.py uses GPUDirect RDMA on all 8 ranks, likely", "3 jobs copy through host memory".

    `has_all`: also where it is true of all ranks, how many those are.
    """
    first, of_many = uses[0], len(uses) > 1
    phrase = first.phrase(of_many)
    where = "" if of_many or (first.where.startswith(" on all ") and not has_all) else first.where
    likely = ", likely" if has_all and any(use.is_likely for use in uses) else ""
    return f"{f'{len(uses)} jobs' if of_many else first.program} {phrase}{where}{likely}"
