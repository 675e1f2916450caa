"""A node over time, with one judgment: read each second, and checked again when an event says so.

The dashboard, `gdrtop live`, `watch`, `record` and every command that shows a recording read through this.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from probes.base.latest import Latest
from probes.base.origin import Source
from probes.base.text import capitalized
from probes.base.unknown import Unknown
from probes.checks.judgment import Judge, Judgment, only_in_logs
from probes.checks.live.ports import NOT_LONG_ENOUGH
from probes.facts.node import Node
from probes.host.log_findings import LogFindingsRecorder
from probes.host.protocol import Host
from probes.live.job_examination import examine_with_jobs, with_jobs
from probes.live.live_sampler import LiveSampler
from probes.live.model.sample import EventKind, LiveEvent, LiveSample
from probes.live.ras.findings import RasEvents
from probes.live.reliability import past_by_device
from probes.queries.finding import Finding, Severity, Status
from probes.snapshot.condition import (
    ERRORS_RISING,
    FLAPPING,
    OVER_TCP,
    PAUSED,
    STAGED,
    STOPPED,
    THROTTLED,
    TRAFFIC_FELL,
    Condition,
    Watched,
)
from probes.snapshot.examination import Examination
from probes.snapshot.node_reader import NodeReader
from probes.snapshot.path_verdict import ServedGpus
from probes.snapshot.rates import Reading
from probes.snapshot.verdict import assess
from probes.topology.nccl_paths import FileTree
from probes.topology.paths import Topology, build
from tui.runtime.schedules import CheckSchedule

if TYPE_CHECKING:  # imported when a recording is opened
    from probes.recording.replay_host import ReplayHost


# Events after which something else may be true of the node or of a job.
_CHANGES = frozenset(
    (
        EventKind.PROCESS_STARTED,
        EventKind.PROCESS_ENDED,
        EventKind.PATH_CHANGED,
        EventKind.PORT_STATE,
        EventKind.PORT_RATE,
        EventKind.LINK_RETRAINED,
        EventKind.RATE_FELL,
        EventKind.ERRORS_RISING,
        EventKind.XID,
        EventKind.GPU_LOST,
        EventKind.MODULE_LOADED,
        EventKind.MODULE_UNLOADED,
        EventKind.KERNEL_MESSAGE,
    )
)
_OFTEN_NOTES = (EventKind.KERNEL_MESSAGE, EventKind.ERRORS_RISING)  # as notes, they change nothing
# Findings whose beginning is an event of its own already, and those whose end is one, too.
_BEGIN_WITH_EVENT = frozenset(
    (STAGED, OVER_TCP, STOPPED, TRAFFIC_FELL, FLAPPING, PAUSED, ERRORS_RISING, THROTTLED)
)
_END_WITH_EVENT = frozenset((STOPPED, TRAFFIC_FELL))
_MOST_FINDING_EVENTS = 8  # in one sample


def recorded_events(host: Host) -> RasEvents:
    """Return the RAS events that a recording has, or of a running node none until they are followed."""
    if host.origin.source is not Source.RECORDED:
        return RasEvents()
    from probes.recording.replay_host import ReplayHost

    if not isinstance(host, ReplayHost):  # a replay that is recorded again, to redact it
        return RasEvents()
    questions = host.recording.answers
    return RasEvents(question.subject[0] for question in questions if question.kind == "ras_events")


class NodeMonitor:
    """The latest facts, sample and judgment of a node; it asks its host only when it is called."""

    def __init__(self, host: Host, settles: bool = True) -> None:
        """With `settles`, what is odd has to last for some samples; without, one sample decides."""
        self._node_reader = NodeReader(host)
        self._live = LiveSampler(recorded_events(host), settles)
        self._judge = Judge()
        self._served: Latest[ServedGpus] = Latest()
        self._past: Latest[dict[str, str]] = Latest()
        self._schedule = CheckSchedule()
        self._file: FileTree | None = None  # NCCL's topology file, from the newest examination
        self._found: dict[str, Finding] | None = None  # None: not checked yet
        self._judged: tuple[Finding, ...] | None = None  # what `_found` was taken from
        self._unseen: list[LiveEvent] = []  # of a check since the last sample
        self._is_outdated = False  # an event since the last probe may have changed the facts
        self._noted: dict[str, tuple[Condition, ...]] = {}  # by who has seen them
        self.node: Node | None = None
        self.topology: Topology | None = None
        self.reading: Reading | None = None
        self.sample: LiveSample | None = None
        self.is_probed = False  # the last `read` has probed the whole node

    @property
    def host(self) -> Host:
        """The node, or what records it."""
        return self._node_reader.host

    @host.setter
    def host(self, host: Host) -> None:
        self._node_reader.host = host

    @property
    def ras(self) -> RasEvents:
        """The RAS events in the samples."""
        return self._live.ras

    @property
    def judgment(self) -> Judgment:
        """The judgment of the newest sample; without findings until the node is checked."""
        assert self._judge.judgment is not None, "read first"
        return self._judge.judgment

    @property
    def examination(self) -> Examination | None:
        """The examination that the judgment comes from, with what the newest sample shows."""
        return self._judge.examination

    @property
    def needs_check(self) -> bool:
        """Whether something has happened that may change the findings, or the last check is old."""
        return self.reading is not None and self._schedule.is_due(self.reading.at)

    def note(self, who: str, conditions: Iterable[Condition]) -> None:
        """Judge also what something else has seen, such as RAS or a bandwidth test; from any thread.

        It replaces what the same one has noted before, and counts until then or until its job has ended.
        """
        self._noted = {**self._noted, who: tuple(conditions)}

    def read(self, probe: bool = False) -> LiveSample:
        """Return a sample, after probing the node if it has changed or with `probe`."""
        node = self._node_reader.probe(probe)
        self.is_probed = node is not None
        if node is not None:
            self._place(node)
            self._schedule.note_change("node")
        assert self.node is not None
        assert self.topology is not None
        before, self.reading = self.reading, self._node_reader.read()
        sample = self._live.sample(self.host, self.node, self.reading)
        for event in sample.events:
            is_often = event.severity is Severity.NOTE and event.kind in _OFTEN_NOTES
            if event.kind in _CHANGES and not is_often:
                # That something is well again is seen as soon as that it failed.
                self._schedule.note_change((event.kind, event.severity is Severity.NOTE))
                self._is_outdated = True
        examined = self._judge.examined
        files = None if examined is None else examined.topology_files
        usability = assess(self.node, self.topology, self.reading, before, files, self._served)
        usability = with_jobs(usability, sample.processes, sample.jobs)
        watched = self._with_noted(sample)
        judgment = self._judge.update(usability, watched, sample.taken_at)
        events = [*self._unseen, *self._finding_events(sample.taken_at)]
        self._unseen = []
        events = [*sample.events, *events]
        sample = replace(sample, watched=watched, events=tuple(events), past=self._earlier_jobs())
        self.sample = with_judgment(sample, judgment)
        return self.sample

    def check(self, probe: bool = False) -> Judgment:
        """Run all checks, after a probe if something has changed or with `probe`; return the judgment."""
        assert self.reading is not None, "read first"
        if probe or self._is_outdated or self._schedule.is_old(self.reading.at):
            node = self._node_reader.probe(force=True)
            assert node is not None
            self._place(node)
        self._is_outdated = False
        examination = examine_with_jobs(self.host, self.node, self.examination, self.sample)
        self._schedule.note_check(self.reading.at)
        if examination.topology.file != self._file:
            self._file = examination.topology.file
            self._place(examination.node)
        self._judge.examine(examination)
        self._record_log_findings(examination)
        if self.sample is not None:
            self.sample = with_judgment(self.sample, self.judgment)
        self._unseen += self._finding_events(self.host.wall_clock())
        return self.judgment

    def _record_log_findings(self, examination: Examination) -> None:
        """Give what records the node the findings that only the logs of jobs show."""
        if isinstance(self.host, LogFindingsRecorder):
            self.host.note_log_findings(only_in_logs(examination, self.judgment.findings))

    def _with_noted(self, sample: LiveSample) -> Watched:
        jobs = {job.id for job in sample.jobs}
        noted = [
            condition
            for conditions in self._noted.values()
            for condition in conditions
            if not condition.job or condition.job in jobs
        ]
        watched = sample.watched
        return replace(watched, conditions=(*watched.conditions, *noted)) if noted else watched

    def _earlier_jobs(self) -> dict[str, str]:
        """Return what the newest examination knows of NICs and GPUs in earlier jobs."""
        examined = self._judge.examined
        if examined is None or isinstance(examined.component_history, Unknown):
            return {}
        history, node = examined.component_history, examined.node
        return self._past.get(lambda: past_by_device(history, node), objects=(history, node))

    def _place(self, node: Node) -> None:
        """Find the paths of a node again, with the topology file that NCCL uses."""
        self.node, self.topology = node, build(node, self._file)

    def _finding_events(self, at: float) -> list[LiveEvent]:
        """Return the findings that are new or have ended since the last call."""
        judgment = self.judgment
        if not judgment.is_checked:
            return []
        before = self._found
        if before is not None and judgment.findings is self._judged:
            return []
        self._judged = judgment.findings
        self._found = {finding.id: finding for finding in judgment.found}
        if before is None:
            return []
        new = [finding for name, finding in self._found.items() if name not in before]
        # What cannot be seen any more has not ended; what came and went before its check can pass has.
        unknown = (finding for finding in judgment.findings if finding.status is Status.UNKNOWN)
        unseen = {finding.id for finding in unknown if finding.cause != NOT_LONG_ENOUGH}
        gone = [finding for name, finding in before.items() if name not in self._found.keys() | unseen]
        return [*_events(new, EventKind.FOUND, at), *_events(gone, EventKind.ENDED, at)]


def read_judged(monitor: NodeMonitor, probe: bool = False, check: bool = False) -> LiveSample:
    """Return a sample, with what a check has found if something has happened or with `check`."""
    sample = monitor.read(probe)
    if check or monitor.needs_check:
        monitor.check()
    return monitor.sample or sample


def read_up_to(monitor: NodeMonitor, node: ReplayHost, last: int) -> Iterator[LiveSample]:
    """Yield the samples of a recording from the first moment; the last one is always checked.

    What lasts is judged by what was before, such as the rates of the first minute. So a moment is always read
    after all moments before it; a recording has an hour of them at most.
    """
    last = min(last, len(node.recording.moments) - 1)
    for moment in range(last + 1):
        node.seek(moment)
        yield read_judged(monitor, node.recording.moments[moment].probed, moment == last)


def with_judgment(sample: LiveSample, judgment: Judgment) -> LiveSample:
    """Return a sample with what a judgment of the same moment says."""
    return replace(sample, verdict=judgment.verdict, findings=judgment.listed)


def _events(findings: Iterable[Finding], kind: EventKind, at: float) -> list[LiveEvent]:
    is_end = kind is EventKind.ENDED
    events: list[LiveEvent] = []
    for finding in findings:
        is_reported = finding.id in (_END_WITH_EVENT if is_end else _BEGIN_WITH_EVENT)
        if finding.part_of or finding.severity is Severity.NOTE or is_reported:
            continue
        about = (*finding.ranks, *finding.devices)
        where = f" ({about[0]}{f' and {len(about) - 1} more' if len(about) > 1 else ''})" if about else ""
        text = f"ended: {finding.title}{where}" if is_end else f"{finding.title}{where}"
        explanation = finding.ok if is_end else capitalized(finding.cause)
        severity = Severity.NOTE if is_end else finding.severity
        subject = about[0] if about else finding.id
        events.append(LiveEvent(at, kind, severity, subject, text, explanation))
    return events[:_MOST_FINDING_EVENTS]
