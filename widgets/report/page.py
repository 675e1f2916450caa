"""The texts of a report's page, the same in every format: verdict, matrix, findings, changes, versions."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, cast

from jinja2 import Environment, PackageLoader, StrictUndefined

from probes.acceptance.certificate import Certificate
from probes.acceptance.profile import Outcome
from probes.acceptance.profile import counted as counted_criteria
from probes.bandwidth.model.rating import Rating
from probes.base.frozen import frozen
from probes.base.origin import Origin, Source
from probes.base.plan import Step
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown
from probes.checks.statements import findings_about
from probes.live.model.sample import LiveSample
from probes.queries.finding import Finding, Status
from probes.setup.report import Change, Measured, Report
from probes.snapshot.verdict import State
from widgets.bandwidth import result as result_drawing
from widgets.base.figures import local_time
from widgets.base.lines import Tone, plain, sentence
from widgets.doctor.findings import (
    counted,
    devices_text,
    entries_of,
    fix_text,
    folded_evidence,
    highlights_of,
    mark_of,
    needs_text,
    silence_text,
)
from widgets.doctor.plan import consequences, step_groups
from widgets.live.job_lines import job_line
from widgets.node import matrix
from widgets.node import verdict as verdict_drawing
from widgets.node.highlights import not_usable_legend

_WHOLE = 10_000  # cells: nothing is cut
_TIME = "%Y-%m-%d %H:%M %Z"
HOW_TO_MEASURE = (
    ("gdrtop bench --sweep", "every GPU with its best NIC"),
    ("gdrtop bench --memory compare", "host memory, nvidia-peermem and DMA-BUF on one GPU–NIC pair"),
)


@frozen
class StepText:
    """A step of a fix, or the first of several similar ones."""

    why: str
    command: str  # "": a manual step
    undo: str = ""
    more: int = 0  # similar steps that are left out
    kind: str = ""  # "switch ports": what they are


@frozen
class FindingText:
    """A finding in its five parts."""

    mark: str
    tone: Tone
    severity: str
    id: str
    title: str
    devices: str
    same_cause: str  # id of the finding with the same cause
    impact: str
    cause: str
    evidence: tuple[tuple[str, str], ...]  # value and source
    fix: str
    consequences: str
    steps: tuple[StepText, ...]
    note: str
    reference: str


@frozen
class MatrixText:
    """The words of the paths between GPUs and NICs, and what they mean."""

    corner: str  # "mlx5_", if all columns begin with it
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[tuple[str, Tone], ...]], ...]
    legend: tuple[str, ...]


@frozen
class CertificateText:
    """A certificate: what it says, why, and what it holds for."""

    headline: str
    tone: Tone
    criteria: tuple[tuple[str, str, str, str], ...]  # id, answer, text, evidence
    fingerprint: tuple[tuple[str, str], ...]
    sha256: str
    changes: tuple[str, ...] | None  # against an earlier one


@frozen
class Page:
    """Everything on the page but the drawings."""

    node: str
    origin: str
    is_warning: bool  # the facts are not of this node now
    when: str
    version: str
    privacy: str
    verdict: str
    tone: Tone
    reason: str
    counts: str
    findings: tuple[FindingText, ...]
    nothing_found: str  # what stands there if there is none
    same_by_hand: tuple[str, ...]  # commands that show their evidence
    not_run: tuple[str, ...]
    matrix: MatrixText | None
    jobs: tuple[str, ...]
    limits: tuple[str, ...]
    changes: tuple[tuple[str, Change], ...]  # with the time
    unread: tuple[str, ...]
    versions: tuple[tuple[str, str, bool], ...]  # name, value, is known
    certificate: CertificateText | None


def page_of(report: Report, version: str) -> Page:
    """Return the texts of the page; `version`: of gdrtop."""
    node = report.examination.node
    drawn = verdict_drawing.draw(report.judgment.verdict)
    entries, names = entries_of(report.judgment.findings), report.examination.topology.labels
    page = Page(
        node=printable(report.node_name, 253),
        origin=_origin_text(node.origin),
        is_warning=not node.origin.is_running,
        when=local_time(report.at, _TIME),
        version=version,
        privacy=_PSEUDONYMS if report.is_redacted else "",
        verdict=plain(drawn),
        tone=drawn[0].tone,
        reason=report.judgment.verdict.reason,
        counts=counted(report.judgment.findings),
        findings=tuple(_finding(entry.first, names) for entry in entries if entry.first.is_present),
        nothing_found="The checks that could run found nothing."
        if report.judgment.verdict.state is State.UNKNOWN
        else "No findings.",
        same_by_hand=_same_by_hand(entry.first for entry in entries if entry.first.is_present),
        not_run=tuple(needs_text(entry) for entry in entries if entry.first.status is Status.UNKNOWN),
        matrix=_matrix(report),
        jobs=_jobs(report.sample),
        limits=() if report.sample is None else tuple(report.sample.limits),
        changes=tuple((local_time(change.at, _TIME), change) for change in report.changes),
        unread=tuple(report.unread),
        versions=tuple(
            (name, _version_text(value), not isinstance(value, Unknown))
            for name, value in report.versions.items()
        ),
        certificate=None if report.certificate is None else _certificate(report.certificate),
    )
    return cast("Page", _printable(page))


_OUTCOME_TONES = {Outcome.PASSED: Tone.GOOD, Outcome.FAILED: Tone.BAD, Outcome.INCOMPLETE: Tone.WARNING}


def _certificate(certificate: Certificate) -> CertificateText:
    profile = certificate.profile
    by = f"{profile.title}, {profile.date}" if profile.date else profile.title
    return CertificateText(
        headline=f"{certificate.outcome.value} · {by} · {counted_criteria(certificate.criteria)}",
        tone=_OUTCOME_TONES[certificate.outcome],
        criteria=tuple(
            (each.id, each.answer.value, each.text, "; ".join(each.evidence)) for each in certificate.criteria
        ),
        fingerprint=tuple((fact.name, _version_text(fact.value)) for fact in certificate.fingerprint),
        sha256=certificate.fingerprint_sha256,
        changes=certificate.changes,
    )


def _printable(value: object) -> object:
    """Return a part of the page with all of its texts printable."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, tuple):
        return tuple(map(_printable, value))
    if not is_dataclass(value) or isinstance(value, type):
        return value
    return replace(value, **{each.name: _printable(getattr(value, each.name)) for each in fields(value)})


_PSEUDONYMS = (
    "Names of hosts, users and jobs, addresses, GUIDs and serial numbers are replaced with tokens."
    " The same value has the same token everywhere on this page."
)


def _origin_text(origin: Origin) -> str:
    label = printable(origin.label, 300)
    return {
        Source.LIVE: "read on the running node",
        Source.REMOTE: f"read on the running node over a connection to {label}",
        Source.TREE: f"TREE: read from the files under {label}, not from a running node",
        Source.SIMULATED: f"SIMULATED: the simulated node {label}, not a real machine",
        Source.RECORDED: f"RECORDED: {label}",
    }[origin.source]


def _version_text(version: Maybe[str]) -> str:
    """Return a version, or why it is unknown: "not installed", "needs root"."""
    if not isinstance(version, Unknown):
        return version
    return version.detail if version.reason is Reason.NOT_THERE and version.detail else str(version)


def _matrix(report: Report) -> MatrixText | None:
    topology = report.examination.topology
    highlights = highlights_of(report.examination, report.judgment.findings)
    if not topology.gpus or not topology.nics:
        return None
    rows = tuple(
        (gpu.label, tuple(matrix.cell_of(topology, gpu.id, nic.id, highlights) for nic in topology.nics))
        for gpu in topology.gpus
    )
    explained = matrix.legend(topology, _WHOLE, highlights) + not_usable_legend(topology, _WHOLE, highlights)
    legend = tuple(plain(line).replace("  ", " · ") for line in explained)
    prefix, columns = matrix.column_headings([nic.label for nic in topology.nics])
    return MatrixText(prefix, tuple(columns), rows, legend)


def _finding(finding: Finding, names: Mapping[str, str]) -> FindingText:
    mark, plan = mark_of(finding), finding.fix
    return FindingText(
        mark=mark.text,
        tone=mark.tone,
        severity=", ".join(filter(None, (finding.severity.value, silence_text(finding)))),
        id=finding.id,
        title=finding.title,
        devices=devices_text(finding, names),
        same_cause=finding.part_of,
        impact=finding.impact,
        cause=finding.cause,
        evidence=tuple(
            (piece.value, piece.source + (f" and {more} more like it" if more else ""))
            for piece, more in folded_evidence(finding.evidence)
        ),
        fix=fix_text(finding),
        consequences="" if plan is None else " · ".join(consequences(plan)),
        steps=() if plan is None else tuple(map(_step, step_groups(plan.steps))),
        note="" if plan is None else plan.note,
        reference=finding.reference,
    )


_MOST_COMMANDS = 60
_READERS = re.compile(
    r"(?:dmesg|ethtool|ibstat|ibv_devinfo|lldpctl|lspci|mlxlink|modinfo|nvidia-smi|rdma|setpci|systemctl)"
    r"(?: [\w./+-]+(?::[\w.]+)*)+"
)


def _same_by_hand(findings: Iterable[Finding]) -> tuple[str, ...]:
    """Return the commands that show what findings are based on: the maker of a part has no gdrtop."""
    sources = [piece.source for finding in findings for piece in finding.evidence]
    files = (f"head -n 40 {path}" for path in sources if re.fullmatch(r"(?!/proc/\d)/[\w./:+-]+", path))
    commands = (match[0] for match in map(_READERS.match, sources) if match)
    return tuple(dict.fromkeys((*files, *commands)))[:_MOST_COMMANDS]


def _step(steps: Sequence[Step]) -> StepText:
    first, more = steps[0], len(steps) - 1
    command = first.to_copy if first.is_instruction else first.command
    undo = shlex.join(first.undo) if first.undo else ""
    why = first.why.partition("\n")[0]
    why = f"manual: {why}" if first.to_copy else why
    return StepText(why, command, undo, more, first.group if more else "")


def _jobs(sample: LiveSample | None) -> tuple[str, ...]:
    if sample is None:
        return ("Jobs are unknown: a tree of files has no processes.",)
    if isinstance(sample.processes, Unknown):
        return (f"Jobs are unknown ({sample.processes}).",)
    if not sample.jobs:
        return ("No process uses an RDMA NIC or a GPU.",)
    jobs = []
    for job in sample.jobs:
        causes = " ".join(problem.cause for problem in findings_about(job, sample))
        line = plain(job_line(job, sample, _WHOLE))
        jobs.append(f"{line}: {causes}" if causes else line)
    return tuple(jobs)


NO_CHANGES = "gdrtop has no record of a change to this node."


@frozen
class ResultText:
    """One result."""

    mark: str
    tone: Tone
    title: str
    setup: str  # "loopback"
    words: str  # "186 of 200 Gb/s, 93 %"
    when: str
    limit: str  # "port 1 of mlx5_0: 200 Gb/s"
    notes: tuple[str, ...]  # why it is slow or failed, and comparisons
    commands: tuple[str, ...]


def texts_of(report: Report, version: str) -> dict[str, object]:
    """Return what the templates of all formats show; `version`: of gdrtop."""
    return {
        "page": page_of(report, version),
        "results": tuple(map(_result, report.measured)),
        "conclusions": tuple(printable(sentence(words)) for words in report.conclusions),
        "how_to_measure": HOW_TO_MEASURE,
        "no_changes": NO_CHANGES,
    }


def environment(**escaping: Any) -> Environment:
    """Return what renders the templates, with Jinja2's options for escaping."""
    return Environment(
        loader=PackageLoader("widgets.report", ""),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        **escaping,
    )


def _result(measured: Measured) -> ResultText:
    result = measured.result
    mark = result_drawing.mark_of(result)
    limit = f"{result.limit_by}: {result.limit_gbps:.0f} Gb/s" if result.limit_gbps else result.limit_by
    is_near = result.judgment.verdict is Rating.NEAR
    notes = (result.failure, "" if is_near else result.judgment.reason, *measured.comparisons)
    return ResultText(
        mark=mark.text,
        tone=mark.tone,
        title=printable(result.title, 300),
        setup=printable(result.setup, 60),
        words=printable(result_drawing.words_of(result)),
        when=local_time(result.taken_at, "%Y-%m-%d %H:%M %Z"),
        limit=printable(limit),
        notes=tuple(printable(sentence(note)) for note in notes if note),
        commands=tuple(map(printable, result.commands)),
    )
