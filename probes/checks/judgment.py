"""The one judgment of a node: its findings, and the verdict that follows from them.

Every screen, command and exit status shows a Judgment and nothing beside it, so none can say otherwise than
another one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from copy import copy
from dataclasses import replace
from functools import cached_property

from probes.base.evidence import Evidence, Severity
from probes.base.frozen import frozen
from probes.base.latest import Latest
from probes.base.origin import Source
from probes.base.plan import user_plan
from probes.base.site import Silence, site
from probes.base.unknown import Reason, Unknown, known
from probes.checks.registry import CHECKS, Outcomes, checks_of, findings_of, run_checks
from probes.checks.statements import PathStatement, path_statements
from probes.facts.node import host_name
from probes.host.protocol import LogFinding
from probes.queries.finding import Check, Finding, Outcome, Status, found
from probes.snapshot.condition import Watched
from probes.snapshot.examination import Examination
from probes.snapshot.gdr_use import joined_sentences
from probes.snapshot.verdict import State, Usability, Verdict

# Findings that only the NCCL logs of jobs show, kept in a recording, which has no logs.
#
# Without them, a replay would be greener than its node was.

_CAUSE = (
    "The NCCL log of a running job showed it while the node was recorded. The recording has no job logs, so"
    " only the node has the lines."
)


def only_in_logs(examination: Examination, findings: Iterable[Finding]) -> tuple[LogFinding, ...]:
    """Return those of the node's findings that its checks do not find without the logs of jobs."""
    if isinstance(examination.job_logs, Unknown):
        return known(examination.log_findings, ())  # of a recording that is recorded again
    if not examination.job_logs:
        return ()
    present = {finding.id: finding for finding in findings if finding.is_present}
    without = replace(examination, job_logs=Unknown(Reason.NOT_RECORDED, "job logs"))
    checks = [check for check in checks_of(without) if check.id in present]
    again = findings_of(run_checks(without, checks), without)
    kept = {finding.id for finding in again if finding.is_present}
    lost = [finding for name, finding in present.items() if name not in kept]
    return tuple(
        LogFinding(
            finding.id,
            finding.severity,
            finding.devices,
            finding.takes,
            finding.ranks,
            finding.part_of,
            finding.data_path,
        )
        for finding in lost
    )


def with_recorded(outcomes: Outcomes, examination: Examination) -> Outcomes:
    """Return the outcomes with those of a recording whose checks had the logs of jobs on the node."""
    recorded = examination.log_findings
    if isinstance(recorded, Unknown) or not isinstance(examination.job_logs, Unknown):
        return outcomes
    by_id = {finding.id: finding for finding in recorded}
    return tuple((check, _with_recorded(outcome, by_id.get(check.id))) for check, outcome in outcomes)


def _with_recorded(outcome: Outcome, recorded: LogFinding | None) -> Outcome:
    if recorded is None or outcome.status is Status.FOUND:
        return outcome
    return found(
        _CAUSE,
        Evidence("the NCCL logs of the jobs", "found while the node was recorded"),
        fix=user_plan("Check the node itself", f"On the node, run gdrtop check {recorded.id}"),
        severity=recorded.severity,
        devices=recorded.devices,
        data_path=recorded.data_path,
        part_of=(recorded.part_of,) if recorded.part_of else (),
        takes=recorded.takes,
        ranks=recorded.ranks,
        subjects=(),  # the node has compared
    )


# Apply the silences of the configuration to how checks ended. Nothing else decides what is silenced.


def with_silences(outcomes: Outcomes, examination: Examination, called: str = "") -> Outcomes:
    """Return the outcomes with silenced ones marked; one whose silence has expired counts again, and says so.

    A silence with a device covers a finding only if all of its devices are covered, and one with nodes only
    findings of these.
    """
    by_id: dict[str, list[Silence]] = {}
    node = examination.node
    own = known(host_name(node), "")
    reached = node.origin.label if node.origin.source is Source.REMOTE else ""
    names = (*filter(None, (own, reached)), called)
    for silence in site().silences:
        if silence.covers_node(names):
            by_id.setdefault(silence.id, []).append(silence)
    if not by_id:
        return outcomes
    bdfs = {name: known(device.bdf, "") for name, device in examination.topology.devices.items()}
    return tuple(
        (check, _with_silence(check, outcome, by_id.get(check.id, []), bdfs, examination.taken_at))
        for check, outcome in outcomes
    )


def _with_silence(
    check: Check, outcome: Outcome, own: list[Silence], bdfs: dict[str, str], at: float
) -> Outcome:
    if outcome.status is not Status.FOUND or not own:
        return outcome
    for is_expired, status in ((False, Status.SILENCED), (True, Status.FOUND)):
        silence = _covering([each for each in own if each.is_expired(at) is is_expired], outcome, bdfs)
        if silence is not None:
            return replace(outcome, status=status, silence=silence)
    return outcome


def _covering(own: list[Silence], outcome: Outcome, bdfs: dict[str, str]) -> Silence | None:
    """Return the silence that covers a finding, of several devices' the first to end; None: there is none."""
    for_all = [silence for silence in own if not silence.device]
    if for_all:
        return max(for_all, key=lambda silence: silence.until)
    used: list[Silence] = []
    for device in outcome.devices:
        names = {device.lower(), bdfs.get(device, device).lower()}
        names |= {name.lower() for name, bdf in bdfs.items() if bdf == device}
        matching = [silence for silence in own if silence.device.lower() in names]
        if not matching:
            return None
        used.append(max(matching, key=lambda silence: silence.until))
    return min(used, key=lambda silence: silence.until, default=None)


_NAMES = re.compile(r"dma-buf|peer memory|nvidia driver|[a-z0-9]+_\w+")  # modules, options, paths
_MOVING = tuple(check for check in CHECKS if check.is_moving)


@frozen
class Judgment:
    """The verdict and all findings of one moment: found, unknown and passed."""

    verdict: Verdict
    findings: tuple[Finding, ...] = ()
    skipped: tuple[str, ...] = ()  # ids of the checks that the user left out
    paths: tuple[PathStatement, ...] = ()  # what is true of DMA-BUF and of peer memory; () if unknown

    @property
    def is_checked(self) -> bool:
        """Whether the checks have run; before, there is a verdict without findings."""
        return self.verdict.critical is not None

    @cached_property
    def found(self) -> tuple[Finding, ...]:
        """The findings that were found."""
        return tuple(finding for finding in self.findings if finding.status is Status.FOUND)

    @cached_property
    def listed(self) -> tuple[Finding, ...]:
        """The critical findings, then the warnings, one for each cause."""
        return listed(self.findings)

    def with_verdict(self, verdict: Verdict, paths: tuple[PathStatement, ...]) -> Judgment:
        """Return a judgment with the same findings, and with what was selected from them so far."""
        judgment = copy(self)
        object.__setattr__(judgment, "verdict", verdict)
        object.__setattr__(judgment, "paths", paths)
        return judgment


def judge(
    examination: Examination, only: Collection[str] = (), skip: Collection[str] = (), called: str = ""
) -> Judgment:
    """Run all checks, or those whose ids are chosen, and conclude the verdict.

    `called`: the node's name in a fleet, by which silences may name it as well.
    """
    every = checks_of(examination)
    chosen = [check for check in every if (not only or check.id in only) and check.id not in skip]
    left_out = {check.id for check in every} - {check.id for check in chosen}
    found = _findings(run_checks(examination, chosen), examination, called)
    return _judgment(examination.usability, found, tuple(sorted(left_out)))


def _judgment(
    usability: Usability, findings: tuple[Finding, ...] | None, skipped: tuple[str, ...] = ()
) -> Judgment:
    """Return the verdict and the statements about the paths; `findings` None: the checks have not run yet."""
    verdict = conclude(usability, findings)
    found = findings or ()
    return Judgment(verdict, found, skipped, path_statements(usability, verdict, found))


def _findings(outcomes: Outcomes, examination: Examination, called: str = "") -> tuple[Finding, ...]:
    return findings_of(with_silences(with_recorded(outcomes, examination), examination, called), examination)


def with_severity(findings: Iterable[Finding], severity: Severity) -> tuple[Finding, ...]:
    """Return the found findings of this severity, without those that are part of another."""
    return tuple(
        finding
        for finding in findings
        if finding.status is Status.FOUND and finding.severity is severity and not finding.part_of
    )


def listed(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the critical findings, then the warnings, one for each cause."""
    found = [finding for finding in findings if finding.status is Status.FOUND]
    return (*with_severity(found, Severity.CRITICAL), *with_severity(found, Severity.WARNING))


def degrading(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return what degrades a usable node: critical findings, and warnings that cost GPUs or bandwidth."""
    return tuple(
        finding
        for finding in listed(findings)
        if finding.severity is Severity.CRITICAL or finding.data_path or finding.takes
    )


def conclude(usability: Usability, findings: Iterable[Finding] | None) -> Verdict:
    """Return the verdict: a function of the requirements and the findings, and of nothing else.

    A silenced finding is no reason for a word or a status, but what it takes away stays away: its GPUs and
    NICs are not counted, and without any GPU left the node is BROKEN. A path that a finding refutes is not
    usable; another one may be. `findings` None: the checks have not run yet.
    """
    present = [finding for finding in findings or () if finding.is_present]
    serious = [finding for finding in present if finding.severity is not Severity.NOTE]
    loud = [finding for finding in serious if finding.status is Status.FOUND]
    served = served_gpus(usability, serious)
    nics = {nic for serving in served.values() for nic in serving}
    # Also by what is part of another finding. What only warnings take may work, by a farther NIC.
    lost = {end for finding in serious if finding.severity is Severity.CRITICAL for end in finding.takes}
    refuted = {path for finding in serious for path in finding.refutes}
    paths = [path for path in usability.ranked_paths if path not in refuted]
    is_refuted = usability.path in refuted and not paths
    others_unknown = [
        row for row in usability.paths if isinstance(row.usable, Unknown) and row.path not in refuted
    ]
    is_open = is_refuted and bool(others_unknown)  # an unknown requirement is not an unmet one
    is_lost = (is_refuted and not is_open) or (bool(usability.gpus) and lost.issuperset(usability.gpus))
    state, path, reason = usability.state, next(iter(paths), None), usability.reason
    reasons = degrading(loud)
    if is_open and not is_lost:
        refuting = next(finding for finding in (*loud, *serious) if finding.refutes)
        mark = "" if refuting in loud else " (silenced)"
        state, reason = State.UNKNOWN, joined_sentences(f"{refuting.title}{mark}", others_unknown[0].why)
    elif state.is_green and is_lost and not reasons:
        state = State.BROKEN
        cause = next(finding for finding in serious if finding.takes or finding.refutes)
        reason = f"{cause.title} (silenced)"
    elif (state.is_green or is_refuted) and reasons:
        state = State.BROKEN if is_lost else State.DEGRADED
        others = len(reasons) - 1
        more = f" (+{others} more)" if others else ""
        title, why = reasons[0].title, reasons[0].explained_by
        reason = f"{joined_sentences(title, why) if why else title}{more}"
    elif state is State.BROKEN and reasons:
        reason = _with_lack(reasons[0].title, reason)
    return Verdict(
        state,
        None if state is State.BROKEN else path,
        len(served) if state.is_usable else 0,
        len(usability.gpus),
        reason,
        len(nics) if state.is_usable else 0,
        None if findings is None else len(with_severity(loud, Severity.CRITICAL)),
        None if findings is None else len(with_severity(loud, Severity.WARNING)),
        sum(finding.status is Status.SILENCED and not finding.part_of for finding in present),
        usability.likely_in_use and state is State.READY,
        None if findings is None else len(with_severity(present, Severity.NOTE)),
        usability.all_nics,
    )


def served_gpus(usability: Usability, findings: Iterable[Finding]) -> dict[str, tuple[str, ...]]:
    """Return the NICs that serve each GPU, without those that critical findings and warnings take away."""
    serious = (row for row in findings if row.is_present and row.severity is not Severity.NOTE)
    taken = {end for finding in serious for end in finding.takes}
    return {
        gpu: tuple(nic for nic in usability.nics[gpu] if nic not in taken)
        for gpu in usability.gpus
        if gpu in usability.nics and gpu not in taken
    }


def _with_lack(title: str, lack: str) -> str:
    """Return the finding's title, then the unmet requirements that are not about what it names."""
    folded = title.casefold()
    named = set(_NAMES.findall(folded))
    clauses = ((clause, clause.casefold()) for clause in lack.split("; "))
    others = [
        clause for clause, text in clauses if text not in folded and named.isdisjoint(_NAMES.findall(text))
    ]
    return joined_sentences(title, "; ".join(others)) if others else title


def exit_status(verdict: Verdict) -> int:
    """Return the status for monitoring: 0 ok, 1 warnings, 2 critical, 3 unknown or not applicable.

    A node that GPUDirect RDMA does not apply to is never critical.
    """
    if verdict.state is State.NOT_APPLICABLE:
        return 3
    if verdict.critical or verdict.state is State.BROKEN:
        return 2
    if verdict.state is State.UNKNOWN:
        return 3
    return 1 if verdict.warnings or verdict.state is State.DEGRADED else 0


class Judge:
    """Judges a watched node: with all checks at an examination, with the moving ones at each reading."""

    def __init__(self) -> None:
        self.examined: Examination | None = None  # as the last examination left it
        self.judgment: Judgment | None = None
        self._newest: Callable[[], Examination] | None = None  # with what a reading has shown since then
        self._outcomes: Outcomes = ()
        self._moved: Outcomes = ()  # those of the moving checks
        self._since: Mapping[str, float | None] | None = None  # None: not examined yet
        self._moving: Latest[Outcomes] = Latest()  # since the last examination
        self._present: tuple[Finding, ...] = ()  # of all findings, those that a verdict depends on

    @property
    def examination(self) -> Examination | None:
        """The last examination, with what the newest reading shows."""
        return self.examined if self._newest is None else self._newest()

    def examine(self, examination: Examination) -> Judgment:
        """Run all checks on a new examination."""
        self.examined, self._newest = examination, None
        self._moving.forget()
        return self._use(
            examination, run_checks(examination, checks_of(examination)), examination.node.taken_at
        )

    def update(self, usability: Usability, watched: Watched, taken_at: float) -> Judgment:
        """Run the moving checks on what a reading shows; everything else is as in the last examination."""
        examined = self.examined
        if examined is None:
            self.judgment = _judgment(usability, None)
            return self.judgment

        def newest_examination() -> Examination:
            return replace(examined, usability=usability, watched=watched)

        self._newest = newest_examination  # made only if it is needed
        # The reason of a usable path counts regions, which change all the time; no check looks at it.
        reason = "" if usability.state.is_green else usability.reason
        served = (usability.state, usability.path, usability.gpus, usability.nics, usability.unserved)
        moved = self._moving.get(
            lambda: run_checks(newest_examination(), _MOVING), values=(*served, reason, watched)
        )
        before = self.judgment
        if moved == self._moved and before is not None:
            verdict = conclude(usability, self._present)
            paths = path_statements(usability, verdict, self._present)
            if (verdict, paths) != (before.verdict, before.paths):
                self.judgment = before.with_verdict(verdict, paths)
                return self.judgment
            return before
        newest = dict(moved)
        outcomes = tuple((check, newest.get(check, outcome)) for check, outcome in self._outcomes)
        return self._use(newest_examination(), outcomes, taken_at)

    def _use(self, examination: Examination, outcomes: Outcomes, at: float) -> Judgment:
        self._outcomes = outcomes
        self._moved = tuple(pair for pair in outcomes if pair[0].is_moving)
        findings = _findings(outcomes, examination)
        earlier = self._since
        since = {
            finding.id: finding.since
            if finding.since is not None or earlier is None
            else earlier.get(finding.id, at)
            for finding in findings
            if finding.status is Status.FOUND
        }
        self._since = since
        findings = tuple(
            replace(finding, since=since[finding.id]) if since.get(finding.id) is not None else finding
            for finding in findings
        )
        self._present = tuple(finding for finding in findings if finding.is_present)
        self.judgment = _judgment(examination.usability, findings)
        return self.judgment
