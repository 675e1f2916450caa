"""`gdrtop hang`: why a job hangs: the suspect, the evidence, and the next command."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Annotated, Any, TextIO, TypedDict

from probes.base.frozen import frozen
from probes.base.origin import Origin, Source
from probes.base.text import plural, printable
from probes.base.unknown import Maybe, Reason, Unknown, known, map_known
from probes.facts.node import host_name
from probes.fleet.job import is_wanted
from probes.host.protocol import Host
from probes.host.ras import VERBOSE_STATUS
from probes.live.hang.diagnosis import (
    BlockedThread,
    Clue,
    Diagnosis,
    HangFacts,
    Motion,
    SourceState,
    diagnose,
    read_blocked,
    threads_in_kernel,
)
from probes.live.hang.dump_files import NO_DUMP, read_dumps
from probes.live.hang.ranks import HangWatch, RankState, members
from probes.live.model.sample import LiveJob, LiveSample, Role
from probes.live.processes.job_logs import read_job_logs
from probes.live.ras.findings import RasFinding, unequal_counts
from probes.live.ras.targets import RasTarget, RasUse, find_targets, local_processes, no_job
from probes.live.silence import PairMotion, read_motions
from probes.nccl.flight_recorder.dump import MOST_BYTES, Dump, parse_dump, rank_in_name
from probes.nccl.flight_recorder.verdict import DumpVerdict, verdict_of
from probes.nccl.log.facts import JobLogReading
from tui.command_line.arguments import (
    EXIT_WRONG_USAGE,
    UsageError,
    add_arguments,
    duration,
    require_running_node,
)
from tui.command_line.options import OutputOptions, parsed
from tui.files.new_file import shown_path
from tui.files.read_file import read_small
from tui.runtime.json_values import NO_REASONS, ExitStatus, document, object_from, object_of, write_json
from tui.runtime.node_monitor import NodeMonitor, read_up_to
from tui.runtime.open_host import moment_of, open_host
from tui.runtime.printing import heading, print_lines, text_width
from tui.runtime.ras_questions import RasAnswer, RasQuestions, confirmed, read_with_ages
from widgets.base.lines import line
from widgets.nccl.hang import draw_dumps, draw_hang

# The JSON document of `gdrtop hang`.


class _Job(TypedDict):
    id: str
    name: str
    exit_status: ExitStatus
    motion: Motion  # on the nodes that answered
    headline: str
    watched_seconds: float
    silent_seconds: Maybe[float]
    # Connected queue pairs of which packet numbers are known, and those that have sent or received a packet.
    queue_pairs: Annotated[PairMotion, NO_REASONS] | None
    suspects: tuple[str, ...]
    is_sure: bool
    clues: tuple[Clue, ...]
    next_steps: tuple[str, ...]
    ranks: tuple[RankState, ...]
    threads: tuple[BlockedThread, ...]
    flight_recorder: DumpVerdict | None
    sources: tuple[SourceState, ...]


class HangDocument(TypedDict):
    """`gdrtop hang --json, and fleet hang --json`."""

    exit_status: ExitStatus
    jobs: tuple[_Job, ...]
    flight_recorder: DumpVerdict | None  # with --dumps; else each job has its own
    unanswered: Mapping[str, str]  # with fleet hang: nodes that do not answer, and why


def hang_document(
    name: Maybe[str],
    origin: Origin,
    at: float,
    found: Sequence[Diagnosis],
    status: int,
    unanswered: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the document of one node, or of several; `name`: its host name."""
    content = object_of(
        {
            "exit_status": status,
            "jobs": [_job_json(diagnosis) for diagnosis in found],
            "flight_recorder": None,
            "unanswered": dict(unanswered),
        }
    )
    return document("hang", name, origin, at, content)


def _job_json(diagnosis: Diagnosis) -> dict[str, Any]:
    facts = diagnosis.facts
    return object_from(
        diagnosis,
        _Job,
        facts,
        facts.job,
        watched_seconds=facts.seconds,
        silent_seconds=facts.silence,
        queue_pairs=facts.pairs if facts.pairs.connected else None,
        flight_recorder=facts.dump_verdict,
    )


# `gdrtop hang --dumps`: compare flight-recorder dumps of a job that may have ended, from files.


def compare_dumps(
    names: Sequence[str], out: TextIO, errors: TextIO, at: float, options: OutputOptions
) -> int:
    """Compare the dumps in these files, and return the exit status; `at`: seconds since 1970."""
    dumps = _read(names, errors)
    if not dumps:
        return EXIT_WRONG_USAGE
    verdict = verdict_of(dumps)
    status = 2 if verdict.culprits or verdict.suspected else 1 if verdict.groups else 0
    if options.json:
        node = Unknown(Reason.NOT_THERE, "", "dumps can be of several nodes")
        content = {"exit_status": status, "jobs": [], "flight_recorder": verdict, "unanswered": {}}
        write_json(document("hang", node, Origin(Source.RECORDED), at, object_of(content)), out)
    else:
        drawn = draw_dumps(verdict, sum(dump.point_to_point for dump in dumps), text_width(out))
        print_lines(drawn, out, options.ascii)
    return status


def _read(names: Sequence[str], errors: TextIO) -> list[Dump]:
    """Return the dumps that can be read; print why others cannot."""
    found: dict[int, Dump] = {}
    for name in names:
        rank = rank_in_name(os.path.basename(name))
        if rank is None:
            raise UsageError(f"{shown_path(name)} does not end with a rank, such as nccl_trace_rank_5")
        if rank in found:
            raise UsageError(f"{shown_path(name)} and {found[rank].file} are both of rank {rank}")
        try:
            dump = parse_dump(read_small(name, MOST_BYTES, "a dump"), rank, name)
        except OSError as error:
            print(
                f"gdrtop: {shown_path(name)} cannot be read: {printable(error.strerror or str(error))}",
                file=errors,
            )
            continue
        if isinstance(dump, Unknown):
            print(f"gdrtop: {shown_path(name)} cannot be used: {dump}", file=errors)
            continue
        found[rank] = dump
    if len(found) < len(names):
        print(f"gdrtop: {plural(len(names) - len(found), 'file')} not used", file=errors)
    return [found[rank] for rank in sorted(found)]


SECONDS = 11  # RAS answers a second question after 10 s, and a job is silent then; and a little more


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB", nargs="?", default="", help="the job; default: all NCCL jobs")
    parser.add_argument("--job", metavar="ID", dest="named_job", default="", help="the same as JOB alone")
    add_watch_options(parser)
    add_arguments(
        parser,
        {
            "--dumps FILE ...": "only compare these flight-recorder dumps, one of each rank, also of a job "
            "that has ended",
            "--yes": "query the job's RAS service without confirmation",
            "--no-ras": "do not query the job's RAS service",
        },
    )


def add_watch_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that the command has for one node and for many."""
    helps = {
        "--seconds TIME": f"watch the job for this time, {SECONDS} to 600 (default: {SECONDS})",
        "--json": "print JSON (gdrtop schema hang)",
    }
    add_arguments(parser, helps, seconds={"type": duration(SECONDS, 600), "default": SECONDS})


def run(options: argparse.Namespace, out: TextIO) -> int:
    """Watch the jobs that the options choose, read all sources, and print a page for each."""
    if options.job and options.named_job:
        raise UsageError("name the job once: JOB or --job ID")
    options.job = options.job or options.named_job
    if options.dumps:
        if options.job or options.replay is not None or options.host or options.demo is not None:
            raise UsageError("--dumps reads only files: it cannot be combined with a job or a node")
        return compare_dumps(options.dumps, out, sys.stderr, time.time(), parsed(OutputOptions, options))
    host = open_host(options, is_whole=True)
    require_running_node(host, "hang")
    why_no_ras = "disabled by --no-ras" if options.no_ras else ""
    if options.host:
        why_no_ras = "not queried over a connection; run gdrtop on the node itself"
    search = HangSearch(host, parsed(HangOptions, options), why_no_ras)
    if options.replay is not None and options.at:
        search.end_at(options.at)
    found = search.run()
    node = search.monitor.node
    assert node is not None
    statuses = [diagnosis.exit_status for diagnosis in found] or [EXIT_WRONG_USAGE]
    status = max(statuses, key=(0, 3, 1, 2).index)
    if options.json:
        write_json(hang_document(host_name(node), node.origin, search.taken_at, found, status), out)
        return status
    lines = [heading(node)]
    if not found:
        sample = search.monitor.sample
        processes = () if sample is None else sample.processes
        lines.append(line(f"{no_job(host.is_root(), options.job, processes)}; gdrtop live lists the jobs"))
    for diagnosis in found:
        lines += draw_hang(diagnosis, text_width(out))
    print_lines(lines, out, options.ascii)
    return status


@frozen
class HangOptions:
    """Which job is watched, and for how long."""

    job: str = ""  # "": all
    seconds: int = SECONDS
    yes: bool = False  # RAS is queried without confirmation


class HangSearch:
    """The reading of all sources, for the jobs that are wanted."""

    def __init__(
        self,
        host: Host,
        options: HangOptions,
        why_no_ras: str = "",
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] = time.sleep,
        answers: TextIO | None = None,
        errors: TextIO | None = None,
    ) -> None:
        """`why_no_ras`: why RAS is not queried; "": it is, if the policy and the user allow it."""
        self._host, self._options, self._why_no_ras = host, options, why_no_ras
        self._clock, self._wait = clock, wait
        self._answers = sys.stdin if answers is None else answers
        self._errors = sys.stderr if errors is None else errors
        self._is_recorded = host.origin.source is Source.RECORDED
        self._questions = RasQuestions(host)
        self._watches: dict[str, HangWatch] = {}
        self.monitor = NodeMonitor(host)
        self.taken_at = 0.0
        self._last: int | None = None  # moment of a recording

    def end_at(self, moment: str) -> None:
        """Show a recording up to this moment, as for --at."""
        from probes.recording.replay_host import ReplayHost

        assert isinstance(self._host, ReplayHost)
        self._last = moment_of(self._host.recording, moment)

    def run(self) -> tuple[Diagnosis, ...]:
        """Return a diagnosis for each job."""
        samples = self._recorded() if self._is_recorded else self._live()
        sample = next(samples)
        packets = self._host.packet_numbers()
        blocked = self._blocked(sample)
        asked = self._ask_ras(sample, RasUse.ONCE)
        until = self._clock() + self._options.seconds
        for newest in samples:
            sample = newest
            if not self._is_recorded and self._clock() >= until:
                break
        for name, answer in self._ask_ras(sample, RasUse.REPEATED, asked).items():
            if answer.decision.is_allowed and not isinstance(answer.report, Unknown):
                asked[name] = answer
        self.taken_at = sample.taken_at
        node = self.monitor.node
        assert node is not None
        moved = read_motions(self._host, node, packets, self._host.packet_numbers())
        # Still there: a thread is in this state for a moment all the time.
        again = self._blocked(sample)
        both = known(blocked, frozenset()) & known(again, frozenset())
        threads = map_known(again, lambda _: read_blocked(self._host, both))
        logs = read_job_logs(self._host, sample.processes, self._jobs(sample))
        found = []
        for job in self._jobs(sample):
            own = threads
            if not isinstance(threads, Unknown):
                own = tuple(thread for thread in threads if thread.pid in job.pids)
            log = next((log for log in known(logs, ()) if log.job == job.id), None)
            found.append(diagnose(self._facts(job, sample, own, log, asked, logs, moved)))
        return tuple(found)

    # Samples

    def _live(self) -> Iterator[LiveSample]:
        """Yield a sample a second; before the first, wait until start times and libraries are known."""
        sample = read_with_ages(self._host, self.monitor.read, self._wait)
        self.monitor.check()
        while True:
            yield self._noted(self.monitor.sample or sample)
            self._wait(1.0)
            sample = self.monitor.read()
            if self.monitor.needs_check:
                self.monitor.check()

    def _recorded(self) -> Iterator[LiveSample]:
        """Yield the last seconds of a recording, after reading all that was before them."""
        from probes.recording.replay_host import ReplayHost

        assert isinstance(self._host, ReplayHost)
        moments = self._host.recording.moments
        last = len(moments) - 1 if self._last is None else self._last
        begin = moments[last].at - self._options.seconds
        for number, sample in enumerate(read_up_to(self.monitor, self._host, last)):
            if number == last or moments[number].at >= begin:
                yield self._noted(sample)

    def _noted(self, sample: LiveSample) -> LiveSample:
        for job in self._jobs(sample):
            self._watches.setdefault(job.id, HangWatch(job.id)).add(sample)
        return sample

    def _jobs(self, sample: LiveSample) -> tuple[LiveJob, ...]:
        wanted = self._options.job
        jobs = [job for job in sample.jobs if job.role is Role.NCCL]
        if wanted.isascii() and wanted.isdecimal() and any(int(wanted) in job.pids for job in jobs):
            return tuple(job for job in jobs if int(wanted) in job.pids)
        return tuple(job for job in jobs if not wanted or is_wanted(job, wanted))

    def _blocked(self, sample: LiveSample) -> Maybe[frozenset[tuple[int, int]]]:
        return threads_in_kernel(self._host, [pid for job in self._jobs(sample) for pid in job.pids])

    # RAS

    def _ask_ras(
        self, sample: LiveSample, use: RasUse, before: dict[str, RasAnswer] | None = None
    ) -> dict[str, RasAnswer]:
        """Ask the ports of the wanted jobs; a second time only where the first has answered."""
        if self._why_no_ras or (before is not None and self._is_recorded):
            return {}
        wanted = {pid for job in self._jobs(sample) for pid in job.pids}
        found = {}
        for target in find_targets(self._host, sample):
            if not wanted.intersection(target.pids):
                continue
            if before is not None:
                first = before.get(target.name)
                if first is None or isinstance(first.report, Unknown):
                    continue
            found[target.name] = self._ask(target, sample, use, is_second=before is not None)
        return found

    def _ask(self, target: RasTarget, sample: LiveSample, use: RasUse, is_second: bool) -> RasAnswer:
        decision = self._questions.decide(target, use)
        if not is_second:
            yes, answers, errors = self._options.yes, self._answers, self._errors
            decision = confirmed(self._questions, target, VERBOSE_STATUS, decision, answers, errors, yes)
        if not decision.is_allowed:
            return RasAnswer(target, VERBOSE_STATUS, decision=decision)
        return self._questions.ask(target, VERBOSE_STATUS, use, sample)

    # The facts of a job

    def _facts(
        self,
        job: LiveJob,
        sample: LiveSample,
        threads: Maybe[tuple[BlockedThread, ...]],
        log: JobLogReading | None,
        asked: dict[str, RasAnswer],
        logs: Maybe[tuple[JobLogReading, ...]],
        packets: Maybe[Mapping[int, PairMotion]],
    ) -> HangFacts:
        watch = self._watches[job.id]
        ranks, silence = watch.ranks(), watch.silence()
        dumps = read_dumps(self._host, members(sample, job))
        answer = next((answer for answer in asked.values() if set(job.pids) & set(answer.target.pids)), None)
        facts = HangFacts(
            job=job,
            seconds=watch.seconds,
            silence=silence,
            ranks=ranks,
            conditions=tuple(found for found in sample.watched.conditions if found.job == job.id),
            findings=self.monitor.judgment.found,
            others=frozenset(
                device
                for process in known(sample.processes, ())
                if process.job != job.id
                for device in (*process.gpus, *process.ready_nics)
            ),
            threads=known(threads, ()),
            ras=() if answer is None else self._ras_findings(answer, sample, job),
            dumps=dumps,
            dump_verdict=verdict_of(dumps.dumps) if dumps.dumps else None,
            log=log,
            packets=packets,
        )
        return replace(facts, sources=tuple(self._sources(facts, threads, answer, logs)))

    def _ras_findings(self, answer: RasAnswer, sample: LiveSample, job: LiveJob) -> tuple[RasFinding, ...]:
        """Return what RAS has found about a job; a process of another job on the same port is left out."""
        found = answer.found
        if not answer.stalls and not isinstance(answer.report, Unknown):
            local = local_processes(self._host, sample, answer.target.pids)
            found = (*found, *unequal_counts(answer.report, local))
        return tuple(finding for finding in found if finding.pid is None or finding.pid in job.pids)

    def _sources(
        self,
        facts: HangFacts,
        threads: Maybe[tuple[BlockedThread, ...]],
        answer: RasAnswer | None,
        logs: Maybe[tuple[JobLogReading, ...]],
    ) -> Iterator[SourceState]:
        dumps, log = facts.dumps, facts.log
        yield SourceState("processes", f"{plural(len(facts.ranks), 'rank')} of this node read each second")
        if isinstance(threads, Unknown):
            text = f"not read ({threads})"
        else:
            text = f"{plural(len(threads), 'thread waits', 'threads wait')} in the kernel (state D)"
        yield SourceState("threads", text)
        yield SourceState("RAS", self._ras_text(answer))
        if dumps.dumps:
            text = f"dumps of {plural(len(dumps.dumps), 'rank')}"
        else:
            text = "no dump; PyTorch writes them when its watchdog times out"
        reasons = [why for why in dumps.unread if dumps.dumps or not why.endswith(f": {NO_DUMP}")]
        yield SourceState("flight recorder", "; ".join((text, *reasons[:3])))
        yield SourceState("queue pairs", _pairs_text(facts))
        if isinstance(logs, Unknown):
            text = f"not read ({logs})"
        elif log is None or not log.says_something:
            text = "no log has a line of a running process"
        else:
            text = f"{plural(log.facts.nccl_lines, 'line')} in {', '.join(log.files[:3])}"
        yield SourceState("NCCL log", text)

    def _ras_text(self, answer: RasAnswer | None) -> str:
        if self._why_no_ras:
            return self._why_no_ras
        if answer is None:
            return "no port of this job is known"
        if not answer.decision.is_allowed:
            return f"not queried: {'; '.join(answer.decision.refusals)}"
        if isinstance(answer.report, Unknown):
            return f"no response: {answer.report}"
        return "responded" if answer.found else "responded, and names no rank that is dead or behind for 10 s"


def _pairs_text(facts: HangFacts) -> str:
    """Return what the packet numbers of a job's queue pairs show."""
    if isinstance(facts.packets, Unknown):
        return f"packet numbers not read ({facts.packets})"
    pairs = facts.pairs
    rest = f"; {facts.unlisted}" if facts.unlisted else ""
    if not pairs.connected:
        return f"no packet numbers of this job's queue pairs are known{rest}"
    count = plural(pairs.connected, "connected queue pair")
    return f"{pairs.moving or 'none'} of {count} sent or received a packet in {facts.seconds:.0f} s{rest}"
