"""Judge a simulated node of which some questions stay unanswered, and compare that with all answers."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TypeVar

from probes.base.frozen import frozen
from probes.base.unknown import Maybe, Reason, Unknown
from probes.checks.judgment import judge
from probes.host.protocol import Host
from probes.live.job_examination import examine_with_jobs
from probes.queries.finding import Finding, Status
from probes.recording.archive import Manifest, MomentHead, Recording
from probes.recording.format import FORMAT_VERSION, Question
from probes.recording.recording_host import Moment, RecordingHost
from probes.recording.redaction.identifiers import Identifiers
from probes.recording.replay_host import ReplayHost
from probes.simulation.host import SimulatedHost
from probes.snapshot.verdict import State
from tests.support.pilot import SteppedClock

K = TypeVar("K", str, int)
T = TypeVar("T")
Removed = frozenset[Question]
_OPEN_FILE = re.compile(r"/proc/[^/]+/fd/[0-9]+")
_NUMBER = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]|[0-9]+")
_RANDOM_GROUPS = 6


@frozen
class Judged:
    """What gdrtop says about a node."""

    state: State
    reason: str
    findings: dict[str, Finding]


def judged(host: Host) -> Judged:
    """Examine a host as `gdrtop check` does."""
    judgment = judge(examine_with_jobs(host))
    verdict = judgment.verdict
    return Judged(verdict.state, verdict.reason, {finding.id: finding for finding in judgment.findings})


@lru_cache(maxsize=4)
def recorded_moment(name: str) -> Moment:
    """Return a recording of all that an examination of a simulated node asks."""
    moments: list[Moment] = []
    host = RecordingHost(SimulatedHost(name, clock=SteppedClock()), moments.append)
    examine_with_jobs(host)
    host.end_moment()
    return Identifiers().apply(moments[0])


def replayed(moment: Moment, removed: Removed) -> ReplayHost:
    """Return the recording without some of its answers."""
    kept = {question: answer for question, answer in moment.answers.items() if question not in removed}
    answers = {question: [(0, answer)] for question, answer in kept.items()}
    manifest = Manifest(FORMAT_VERSION, "0", "node", moment.at, "simulated", "", False)
    return ReplayHost(Recording(manifest, [MomentHead(moment.at, True, moment.clock)], answers))


class RefusingHost(RecordingHost):
    """A host that answers some questions with a reason why it cannot."""

    def __init__(self, host: Host, refused: Removed, reason: Reason) -> None:
        super().__init__(host, lambda _: None)
        self._refused, self._reason = refused, reason

    def _ask(self, kind: str, keys: tuple[str, ...], ask: Callable[[], Maybe[T]]) -> Maybe[T]:
        if Question(kind, keys) in self._refused:
            return Unknown(self._reason, " ".join(keys) or kind)
        return super()._ask(kind, keys, ask)

    def _ask_each(
        self, kind: str, keys: Sequence[K], ask: Callable[[Sequence[K]], Mapping[K, Maybe[T]]]
    ) -> Mapping[K, Maybe[T]]:
        refused = [key for key in keys if Question(kind, (str(key),)) in self._refused]
        answers = super()._ask_each(kind, [key for key in keys if key not in refused], ask)
        return {**answers, **{key: Unknown(self._reason, str(key)) for key in refused}}


def contradictions(complete: Judged, incomplete: Judged) -> Iterator[str]:
    """Yield what the incomplete answers say, and the complete ones do not."""
    for name, finding in incomplete.findings.items():
        before = complete.findings[name]
        if finding.status is Status.FOUND and before.status is not Status.FOUND:
            yield f"{name} is invented: {finding.cause}"
        if finding.status is Status.PASSED and before.status is Status.FOUND:
            yield f"{name} is ok now: {finding.evidence}"
        if finding.cause == "this check failed because of a bug in gdrtop":
            yield f"{name} failed: {finding.evidence}"
    changed = complete.state, incomplete.state
    # Whether DMA-BUF is in use now is not part of READY: its line says what it needs to know that.
    allowed = (complete.state, State.UNKNOWN)
    is_allowed = changed == (State.ACTIVE, State.READY) or _is_without_its_finding(complete, incomplete)
    if incomplete.state not in allowed and not is_allowed:
        yield f"{changed[0].name} became {changed[1].name}: {incomplete.reason}"


def _is_without_its_finding(complete: Judged, incomplete: Judged) -> bool:
    """Return whether a finding that degrades the node cannot be checked, as the doctor says."""
    states = complete.state, incomplete.state
    return states in ((State.DEGRADED, State.ACTIVE), (State.DEGRADED, State.READY)) and any(
        finding.status is Status.FOUND and incomplete.findings[name].status is Status.UNKNOWN
        for name, finding in complete.findings.items()
    )


def _removable(moment: Moment) -> list[Question]:
    """Return the questions, without those that recordings always leave out: links to other open files."""
    return [
        question
        for question in sorted(moment.answers)
        if not (question.kind == "link" and _OPEN_FILE.fullmatch(question.subject[0]))
    ]


def single_questions(moment: Moment) -> Iterator[Removed]:
    """Yield each question; of those that differ in numbers only, as about equal NICs, only the first."""
    first: dict[str, Question] = {}
    for question in _removable(moment):
        first.setdefault(_NUMBER.sub("#", " ".join((question.kind, *question.subject))), question)
    for question in first.values():
        yield frozenset({question})


def groups(moment: Moment, depths: Collection[int]) -> Iterator[Removed]:
    """Yield the questions of each kind, below each directory of these depths, and of a few random choices."""
    questions = _removable(moment)
    found: dict[str, set[Question]] = defaultdict(set)
    for question in questions:
        found[question.kind].add(question)
        parts = (
            question.subject[0].split("/") if question.subject and question.subject[0].startswith("/") else []
        )
        for depth in depths:
            if len(parts) > depth:
                above = "/".join(parts[: depth + 1])
                found[above].add(question)
                found[f"{question.kind} {above}"].add(question)
    yield from dict.fromkeys(map(frozenset, found.values()))
    for seed in range(_RANDOM_GROUPS):
        chosen = random.Random(seed)
        share = chosen.choice((0.05, 0.2, 0.5, 0.8))
        yield frozenset(question for question in questions if chosen.random() < share)
