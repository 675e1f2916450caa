"""Profiles of audits: each criterion with the checks and measurements that answer it.

A profile is a TOML file with the title, source and date of the audit and a row for each criterion:

    [[criterion]]
    id = "pcie-acs"          the audit's own name of it
    text = "…"               what it asks, in one sentence
    checks = ["acs-…"]       none of these checks may find anything but a note
    path = "any"             or "dmabuf", "peermem": new jobs can use it
    loaded = ["gdrdrv"]      modules that are loaded
    measured = "gpu"         or "host": the newest test of each near pair of GPU and NIC reached its limit
    notes = "fail"           its checks may not even find a note
    instead = "…"            what shows it, where gdrtop cannot

A criterion passes if all that it names holds. What is unknown, was not measured or is not for gdrtop to judge
is not shown, and never passed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

from probes.bandwidth.model.rating import Rating
from probes.bandwidth.model.result import Result, is_measured
from probes.bandwidth.model.samples import GPU_PATHS, HOST_MEMORY
from probes.bandwidth.results.against_earlier import headline_text, local_time
from probes.base.data_files import parse_toml, read_toml
from probes.base.evidence import Severity
from probes.base.frozen import frozen
from probes.base.text import did_you_mean, join_limited, plural, printable
from probes.base.unknown import Unknown
from probes.checks.judgment import Judgment
from probes.checks.registry import CHECKS
from probes.facts.gpudirect import GdrPath
from probes.facts.kernel.modules import LADDER, PRESENT
from probes.facts.system.site_checks import PREFIX
from probes.queries.finding import Finding, Status
from probes.snapshot.examination import Examination
from probes.topology.paths import Topology

SHIPPED = ("gdrtop", "clustermax", "nvidia-gpuop")
"""The profiles that gdrtop brings."""
MOST_BYTES = 1 << 18  # of a profile
_MOST_CRITERIA = 500
_MOST_NAMED = 4
_MOST_OF_A_WORD = 60
_PATHS = {"any": "", "dmabuf": GdrPath.DMABUF.value, "peermem": GdrPath.PEERMEM.value}
_MEMORIES = {"gpu": GPU_PATHS, "host": (HOST_MEMORY,)}


class ProfileError(Exception):
    """A profile cannot be used; the text says what is wrong in it."""


class Answer(Enum):
    """What an audit gets for a criterion."""

    PASS = "pass"
    FAIL = "fail"
    NOT_SHOWN = "not shown"


class Outcome(Enum):
    """What an audit says of a node: what was not shown is not accepted."""

    PASSED = "PASSED"
    FAILED = "FAILED"
    INCOMPLETE = "INCOMPLETE"


@frozen
class Criterion:
    """One row of a profile, as at the top of this module."""

    id: str
    text: str
    checks: tuple[str, ...] = ()
    path: str = ""
    loaded: tuple[str, ...] = ()
    measured: str = ""
    notes: str = ""
    instead: str = ""


@frozen
class Profile:
    """The criteria of an audit."""

    name: str
    title: str
    source: str
    date: str  # of the source: what is newer is not in it
    criteria: tuple[Criterion, ...]


@frozen
class Answered:
    """A criterion with its answer."""

    id: str
    text: str
    answer: Answer
    evidence: tuple[str, ...]  # what was seen, or why nothing was


def shipped(name: str) -> Profile:
    """Return one of the profiles that gdrtop brings."""
    return _profile(name, read_toml(__package__, f"{name}.toml"))


def parse_profile(name: str, text: str) -> Profile:
    """Return the profile of a site; raise ProfileError."""
    try:
        content = parse_toml(text)
    except (ValueError, RecursionError) as error:
        raise ProfileError(f"it is not TOML: {error}") from None
    return _profile(name, content)


def _profile(name: str, content: Mapping[str, Any]) -> Profile:
    rows = content.get("criterion")
    if not isinstance(rows, list) or not rows:
        raise ProfileError("it has no [[criterion]]")
    if len(rows) > _MOST_CRITERIA:
        raise ProfileError(f"it has more than {_MOST_CRITERIA} criteria")
    of_profile = {key: content[key] for key in content if key != "criterion"}
    for key, value in of_profile.items():
        if key not in ("title", "source", "date") or not isinstance(value, str):
            raise ProfileError(f"{key} is not known; title, source and date are texts")
    criteria = tuple(_criterion(row, number) for number, row in enumerate(rows, 1))
    given = [criterion.id for criterion in criteria]
    if twice := next((each for each in given if given.count(each) > 1), None):
        raise ProfileError(f"criterion {twice} is there twice")
    title, source, date = (of_profile.get(key, "") for key in ("title", "source", "date"))
    return Profile(name, title or name, source, date, criteria)


_KEYS = ("id", "text", "checks", "path", "loaded", "measured", "notes", "instead")
_LISTS = ("checks", "loaded")


def _criterion(row: object, number: int) -> Criterion:
    if not isinstance(row, dict):
        raise ProfileError(f"criterion {number} is no table")
    name = printable(str(row.get("id") or f"number {number}"), _MOST_OF_A_WORD)
    for key, value in row.items():
        if key not in _KEYS:
            raise ProfileError(f"criterion {name}: {key} is not known; the keys are {', '.join(_KEYS)}")
        kind = "a list of texts" if key in _LISTS else "a text"
        parts = value if key in _LISTS and isinstance(value, list) else [value]
        if isinstance(value, list) != (key in _LISTS) or not all(isinstance(part, str) for part in parts):
            raise ProfileError(f"criterion {name}: {key} is not {kind}")
    texts: dict[str, str] = {key: row.get(key, "") for key in _KEYS if key not in _LISTS}
    checks, loaded = (tuple(row.get(key, ())) for key in _LISTS)
    if not texts["id"] or not texts["text"]:
        raise ProfileError(f"criterion {name} needs an id and a text")
    for words, names in ((checks, {check.id for check in CHECKS}), (loaded, set(LADDER))):
        if unknown := next((each for each in words if each not in names and each[:5] != PREFIX), None):
            raise ProfileError(f"criterion {name}: unknown name {unknown}{did_you_mean(unknown, names)}")
    for key, choices in (("path", (*_PATHS, "")), ("measured", (*_MEMORIES, "")), ("notes", ("fail", ""))):
        if texts[key] not in choices:
            raise ProfileError(f"criterion {name}: {key} is one of {', '.join(filter(None, choices))}")
    if not (checks or loaded or texts["path"] or texts["measured"] or texts["instead"]):
        raise ProfileError(f"criterion {name} says neither what answers it nor what shows it instead")
    return Criterion(checks=checks, loaded=loaded, **texts)


def answered(
    profile: Profile, examination: Examination, judgment: Judgment, results: Sequence[Result] = ()
) -> tuple[Answered, ...]:
    """Answer each criterion of a profile for a node; `results`: its kept measurements, oldest first."""
    findings = {finding.id: finding for finding in judgment.findings}
    return tuple(
        _answered(criterion, [*_parts(criterion, examination, judgment, findings, results)])
        for criterion in profile.criteria
    )


_Part = tuple[Answer, str]


def _answered(criterion: Criterion, parts: Sequence[_Part]) -> Answered:
    """Return the worst answer with its evidence: one failed part fails it, one not shown leaves it open."""
    worst = _worst(answer for answer, _ in parts)
    said = [text for answer, text in parts if answer is worst]
    more = [f"and {len(said) - _MOST_NAMED} more"] if len(said) > _MOST_NAMED else []
    return Answered(criterion.id, criterion.text, worst, (*dict.fromkeys(said[:_MOST_NAMED]), *more))


def _worst(answers: Iterable[Answer]) -> Answer:
    """Return the answer that decides: a gap is never a pass, and a failure outweighs a gap."""
    given = set(answers)
    return next(each for each in (Answer.FAIL, Answer.NOT_SHOWN, Answer.PASS) if each in given)


def _parts(
    criterion: Criterion,
    examination: Examination,
    judgment: Judgment,
    findings: Mapping[str, Finding],
    results: Sequence[Result],
) -> Iterator[_Part]:
    if criterion.instead:
        yield Answer.NOT_SHOWN, criterion.instead
    if criterion.path:
        yield _path(criterion.path, judgment)
    for name in criterion.loaded:
        yield _loaded(name, examination)
    for check in criterion.checks:
        yield _of_check(check, findings.get(check), notes_fail=bool(criterion.notes))
    if criterion.measured:
        yield from _measured(criterion.measured, results, examination.topology)


def _path(path: str, judgment: Judgment) -> _Part:
    statements = [statement for statement in judgment.paths if _PATHS[path] in ("", statement.path.value)]
    usable = [statement for statement in statements if statement.usable is True]
    if usable:
        return Answer.PASS, f"{' and '.join(str(each.path.value) for each in usable)} can be used"
    reasons = [str(each.usable) for each in statements if isinstance(each.usable, Unknown)]
    if reasons or not statements:
        return Answer.NOT_SHOWN, (reasons or [judgment.verdict.reason])[0]
    return Answer.FAIL, next((each.why for each in statements if each.why), judgment.verdict.reason)


def _loaded(name: str, examination: Examination) -> _Part:
    facts = examination.node.modules
    state = facts if isinstance(facts, Unknown) else facts.modules[name].state
    if isinstance(state, Unknown):
        return Answer.NOT_SHOWN, f"{name}: {state}"
    is_loaded = state in PRESENT
    return (Answer.PASS, f"{name} is loaded") if is_loaded else (Answer.FAIL, f"{name} is not loaded")


def _of_check(name: str, finding: Finding | None, notes_fail: bool) -> _Part:
    if finding is None:
        return Answer.NOT_SHOWN, f"{name} was left out"
    if finding.status is Status.UNKNOWN:
        return Answer.NOT_SHOWN, f"{name}: {finding.cause}"
    if finding.status is Status.PASSED:
        return Answer.PASS, finding.ok or f"{name} found nothing"
    if finding.severity is Severity.NOTE and not notes_fail:
        return Answer.PASS, f"{name} is only a note: {finding.title}"
    silenced = ", silenced here" if finding.status is Status.SILENCED else ""
    return Answer.FAIL, f"{name}{silenced}: {finding.title}"


def _measured(memory: str, results: Iterable[Result], topology: Topology) -> Iterator[_Part]:
    newest = {
        (result.pair.gpu, result.pair.nic): result
        for result in results
        if is_measured(result) and result.gbps is not None and result.memory in _MEMORIES[memory]
    }
    if missing := _not_measured(memory, newest, topology):
        what = "GPU" if memory == "gpu" else "host"
        named = join_limited(missing, _MOST_NAMED)
        yield Answer.NOT_SHOWN, f"no test with {what} memory is kept of {named}; gdrtop bench measures it"
    for (gpu, nic), result in newest.items():
        pair = " – ".join(filter(None, (gpu, nic))) or result.title
        text = f"{pair}: {headline_text(result)} at {local_time(result.taken_at)}"
        if result.judgment.is_slow:
            verdict = result.judgment.verdict
            yield Answer.FAIL, f"{text}, {'below the limit' if verdict is Rating.BELOW else verdict.value}"
        elif result.judgment.verdict is Rating.UNKNOWN:
            yield Answer.NOT_SHOWN, f"{text}, {result.judgment.why or Rating.UNKNOWN.value}"
        else:
            yield Answer.PASS, text


def _not_measured(memory: str, pairs: Collection[tuple[str, str]], topology: Topology) -> list[str]:
    """Return the GPUs and NICs near each other of which no measured pair is kept."""
    near, labels = topology.near_nics, {gpu.id: gpu.label for gpu in topology.gpus}
    if memory == "host":
        reached = {nic for _, nic in pairs}
        return [nic for nic in topology.nics_near_gpus if nic not in reached] or (
            [] if reached else ["any NIC"]
        )
    found = [pair for pair in pairs if pair[1] in near.get(pair[0], ())]
    gpus, nics = {gpu for gpu, _ in found}, {nic for _, nic in found}
    missing = [labels[gpu] for gpu in near if near[gpu] and gpu not in gpus]
    missing += [nic for nic in topology.nics_near_gpus if nic not in nics]
    return missing or ([] if pairs else ["any pair of GPU and NIC"])


_OUTCOMES = {Answer.PASS: Outcome.PASSED, Answer.FAIL: Outcome.FAILED, Answer.NOT_SHOWN: Outcome.INCOMPLETE}


def outcome_of(answers: Iterable[Answered]) -> Outcome:
    """Return the worst of some answers: a gap is never a pass."""
    return _OUTCOMES[_worst(each.answer for each in answers)]


def counted(answers: Iterable[Answered]) -> str:
    """Return "7 criteria passed, 1 failed, 4 not shown"."""
    given = [each.answer for each in answers]
    passed, failed, open_ = (given.count(answer) for answer in Answer)
    return f"{plural(passed, 'criterion', 'criteria')} passed, {failed} failed, {open_} not shown"
