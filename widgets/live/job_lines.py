"""One line a job: its path and its rates, and below it the findings that concern it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from probes.base.evidence import Severity
from probes.base.text import join_limited, plural
from probes.base.unknown import Maybe, Unknown, known
from probes.checks.statements import (
    Health,
    findings_about,
    job_health,
    jobs_with_rdma,
    members_of,
    process_health,
    rank_health,
)
from probes.facts.jobs.processes import Process, ProcessFacts, busy_cpus
from probes.live.model.sample import LiveJob, LiveProcess, LiveSample, PathWord, Role, SlowestNic, program_of
from probes.live.model.transfer import moved_gbps
from probes.live.odd_one_out import WINDOW_SECONDS
from probes.live.processes.jobs import path_shares
from probes.queries.finding import Finding, names_of
from widgets.base.figures import gbps, gibibytes, minutes, short
from widgets.base.health import TONES
from widgets.base.lines import Line, Run, Tone, cut, fit, flowed, joined, plain, sentence, width_of, wrapped
from widgets.live.engines import engine_text
from widgets.live.figures import gpu_labels

_MARKS = {Health.CRITICAL: "✗ ", Health.WARNING: "▲ ", Health.UNKNOWN: "? "}
_HINT = "gdrtop hang"
_ROOM_FOR_DETAILS = 60  # cells, from which on a job has its NCCL, CPUs and memory


def path_summary(
    processes: Sequence[LiveProcess], sample: LiveSample | None = None, is_brief: bool = False
) -> Line:
    """Return "likely GDR (DMA-BUF) on 7 of 8 ranks, staged on rank 5"; brief without the kind of GDR."""
    return joined(_share_lines(processes, sample, is_brief), ", ")


def _share_lines(
    processes: Sequence[LiveProcess], sample: LiveSample | None, is_brief: bool
) -> Iterator[Line]:
    """Yield each path of a job, and on which ranks."""
    for share in path_shares(processes):
        first = share.first
        is_cut = is_brief and (first.transfer is not None or first.path.word is not PathWord.UNKNOWN)
        health = process_health(first) if sample is None else rank_health(first, sample)
        shown = Run(share.text.partition(" (")[0] if is_cut else share.text, TONES[health])
        yield (shown, Run(share.where)) if share.where else (shown,)


def limit_mark(job: LiveJob, sample: LiveSample) -> str:
    """Return "≤ " before the rates of a job whose NICs clients in the kernel use too, such as Lustre."""
    return "≤ " if any(nic in sample.kernel_clients for nic in job.nics) else ""


def rates_text(job: LiveJob, sample: LiveSample, with_reason: bool = False) -> str:
    """Return "↑1.20 ↓1.21 Tb/s", with "?" for an unknown rate; "" if the job uses no NIC.

    "≤" before them: clients in the kernel, such as Lustre, use its NICs too. Or "no traffic for 42 s".
    `with_reason`: if both rates are unknown, why, and the command that finds who is missing.
    """
    if not job.nics:  # engines over TCP or NVLink
        moved = moved_gbps(each.transfer for each in members_of(job, sample))
        return "" if moved is None else _gbps_text(*moved)
    if silence := _silence_text(job):
        return f"{silence} ({_HINT})" if with_reason else silence
    sent, received = job.sent_gbps, job.received_gbps
    if with_reason and isinstance(sent, Unknown) and isinstance(received, Unknown):
        return f"rates unknown ({sent.detail or sent.reason.value})"
    return f"{limit_mark(job, sample)}{_gbps_text(sent, received)}"


def _gbps_text(sent: Maybe[float], received: Maybe[float]) -> str:
    are_known = not (isinstance(sent, Unknown) or isinstance(received, Unknown))
    if are_known and max(known(sent, 0.0), known(received, 0.0)) >= 1000:
        return f"↑{known(sent, 0.0) / 1000:.2f} ↓{known(received, 0.0) / 1000:.2f} Tb/s"
    return f"↑{short(sent)} ↓{short(received)} Gb/s"


def job_line(job: LiveJob, sample: LiveSample, width: int) -> Line:
    """Return the verdict on a job: mark, name, ranks, path, rates, and the slowest NIC."""
    processes = members_of(job, sample)
    mark = _mark(job, processes, sample)
    slowest = job.slowest_nic
    ranks = _count(job, processes)
    path = path_summary(processes, sample)
    rates = rates_text(job, sample)
    slow = "" if slowest is None else f" · {_slowest_nic(slowest)}, {gbps(slowest.rate_gbps)}"
    if slow_rank := _slowest_rank(job, processes):
        slow += f" · {slow_rank}"
    tail: list[Run] = [Run(" · "), Run(rates, _alarm(mark))] if rates else []
    full: Line = (mark, Run(job.name, Tone.TITLE), Run(f" · {ranks} · "), *path, *tail)
    if width_of(full) + len(slow) <= width:
        return (*full, Run(slow))
    brief: Line = (mark, Run(program_of(job.name), Tone.TITLE), Run(" · "), *path, *tail)
    short_path = path_summary(processes, sample, is_brief=True)
    briefest: Line = (mark, Run(program_of(job.name), Tone.TITLE), Run(" · "), *short_path, *tail)
    for line in ((*brief, Run(slow)), full, brief, briefest):
        if width_of(line) <= width:
            return line
    return fit(briefest, width)


def _slowest_nic(nic: SlowestNic) -> str:
    """Name the NIC and the time over which it was the slowest: at this moment another one may be."""
    return f"slowest (mean of {WINDOW_SECONDS:.0f} s): {nic.device}"


def _slowest_rank(job: LiveJob, processes: Sequence[LiveProcess]) -> str:
    """Return "slowest rank 5, bus 41 GB/s, others 48"; "" if no rank is clearly slower."""
    slowest = job.slowest
    if slowest is None:
        return ""
    rank = next((process.rank for process in processes if process.pid == slowest.pid), None)
    name = f"rank {rank}" if isinstance(rank, int) else f"pid {slowest.pid}"
    return f"slowest {name}, bus {short(slowest.bus_gbps)} GB/s, others {short(slowest.others_gbps)}"


def problem_lines(job: LiveJob, sample: LiveSample, width: int, rows: int = 4) -> list[Line]:
    """Draw what is wrong with a job, a sentence for each finding, in at most so many rows.

    A sentence wraps while each finding has a row; those without one are counted.
    """
    lines: list[Line] = []
    labels = {**sample.nic_names, **gpu_labels(sample)}
    problems = findings_about(job, sample)
    for number, finding in enumerate(problems):
        left, others = rows - len(lines), len(problems) - number - 1
        if left <= 0:
            break
        if left == 1 and others and number:
            more = plural(others + 1, "more problem")
            lines.append(fit((Run(f"    and {more}: see the doctor", Tone.WARNING),), width))
            break
        tone = Tone.BAD if finding.severity is Severity.CRITICAL else Tone.WARNING
        # The job is named in the line above.
        text = (
            finding.cause.replace(job.name, program_of(job.name)) if finding.jobs else _title(finding, labels)
        )
        mark = Run("  ✗ " if tone is Tone.BAD else "  ▲ ", tone)
        pieces = _wrapped_to(text, width - 4, tone, max(1, left - others))
        lines += [(Run("    ") if place else mark, *piece) for place, piece in enumerate(pieces)]
    return lines


def _wrapped_to(text: str, width: int, tone: Tone, rows: int) -> list[Line]:
    """Wrap a text to at most so many rows; the last one is cut if there is more."""
    pieces = wrapped(text, width, tone)
    if len(pieces) <= rows:
        return pieces
    rest = " ".join(plain(piece) for piece in pieces[rows - 1 :])
    return [*pieces[: rows - 1], fit((Run(rest, tone),), width)]


def _title(finding: Finding, labels: Mapping[str, str]) -> str:
    """Return "A GPU has fallen off the bus: GPU5."."""
    names = names_of(finding, labels)
    return sentence(f"{finding.title}: {join_limited(names, 3)}" if names else finding.title)


def draw_verdicts(sample: LiveSample, width: int, rows: int) -> list[Line]:
    """Draw the jobs with what is odd in them, in at most so many rows."""
    if isinstance(sample.processes, Unknown):
        return wrapped(f"Processes are unknown ({sample.processes}).", width, Tone.WARNING)[:rows]
    if not sample.jobs:
        return [(Run("No process uses an RDMA NIC or a GPU now.", Tone.DIM),)]
    lines: list[Line] = []
    for number, job in enumerate(sample.jobs):
        left = len(sample.jobs) - number
        if left > 1 and len(lines) == rows - 1:
            names = ", ".join(job.name for job in sample.jobs[number:])
            return [*lines, fit((Run(f"  and {plural(left, 'more job')}: {names}", Tone.DIM),), width)]
        lines.append(job_line(job, sample, width))
        lines.extend(problem_lines(job, sample, width, min(4, rows - len(lines) - (left > 1))))
    return lines[:rows]


def _mark(job: LiveJob, processes: Sequence[LiveProcess], sample: LiveSample) -> Run:
    """Return the mark of a job: green only where no finding concerns it, and its path is known."""
    health = job_health(job, processes, sample)
    return Run(_MARKS.get(health, "● "), TONES[health])


def _silence_text(job: LiveJob) -> str:
    """Return for how long an NCCL job has moved no data: it computes, writes a checkpoint, waits or hangs."""
    seconds = job.silent_seconds if job.role is Role.NCCL else 0
    return f"no traffic for {minutes(seconds)}" if seconds else ""


def _alarm(mark: Run) -> Tone:
    """Return the tone of a job with this mark: red or yellow if something is wrong with it."""
    return mark.tone if mark.tone in (Tone.BAD, Tone.WARNING) else Tone.PLAIN


def _count(job: LiveJob, processes: Sequence[LiveProcess]) -> str:
    """Return "8 ranks", "8 of 64 ranks", "1 process"."""
    count = len(processes)
    if served := engine_text(processes):
        return f"{served}, {plural(count, 'process', 'processes')}"
    if job.role is not Role.NCCL:
        kind = f"{job.role.value}, " if job.role is not Role.OTHER else ""
        return f"{kind}{plural(count, 'process', 'processes')}"
    world = job.world_size
    if not isinstance(world, Unknown) and world > count:
        return f"{count} of {world} ranks"
    return plural(count, "rank")


def draw_overview(
    sample: LiveSample | None,
    facts: Maybe[ProcessFacts] | None,
    gpus: Mapping[int, Sequence[str]],
    width: int,
    far: Collection[int] = (),
    has_findings: bool = False,
) -> list[Line]:
    """Draw what each job is, its path and its rates; GPU programs without RDMA are only counted.

    `sample`: None before the first reading; `facts`: what the last check found about the processes; `gpus`:
    by pid; `far`: pids bound to CPUs far from their GPU; `has_findings`: also what is wrong with each job,
    where no other panel lists that.
    """
    if sample is None:
        return [(Run("reading…", Tone.DIM),)]
    if isinstance(sample.processes, Unknown):
        return wrapped(f"Processes are unknown ({sample.processes}).", width, Tone.WARNING)
    lines: list[Line] = []
    checked = facts if isinstance(facts, ProcessFacts) else None
    ours = {process.pid for process in checked.processes if process.is_ours} if checked is not None else set()
    with_rdma = jobs_with_rdma(sample)
    shown = [job for job in with_rdma if not ours.issuperset(job.pids)]
    for job in shown:
        processes = members_of(job, sample)
        mark = _mark(job, processes, sample)
        of_job = [process for process in checked.processes if process.pid in job.pids] if checked else []
        parts = _paths(processes, sample, width - 2)
        if rates := _silence_text(job) or rates_text(job, sample):
            parts.append((Run(rates, _alarm(mark)),))
        parts += [(Run(part),) for part in (_count(job, processes), _gpus_used(job.pids, gpus)) if part]
        parts += _details(job, processes)
        if count := sum(process.pid in far for process in of_job):
            parts.append((Run(f"{count} bound to CPUs far from the GPU", Tone.WARNING),))
        if checked is not None and width >= _ROOM_FOR_DETAILS:
            parts += [
                (Run(part, Tone.DIM),) for part in (_nccl(of_job), _cpus(of_job, checked.taken_at)) if part
            ]
        name = job.name if width_of((mark, Run(job.name))) <= width else program_of(job.name)
        alarm = _alarm(mark)
        lines.append(fit((mark, Run(name, Tone.TITLE if alarm is Tone.PLAIN else alarm)), width))
        lines += [(Run("  "), *line) for line in flowed(filter(None, parts), width - 2, " · ")]
        if has_findings:
            lines += problem_lines(job, sample, width)
    others = sum(len(job.pids) for job in sample.jobs) - sum(len(job.pids) for job in with_rdma)
    if not shown:
        lines.append((Run("no job uses RDMA" if others else "no job uses RDMA or a GPU", Tone.DIM),))
    if others:
        verb = "process uses" if others == 1 else "processes use"
        lines.append((Run(f"{others} {verb} a GPU without RDMA", Tone.DIM),))
    if checked is None or not checked.not_read:
        return lines
    # There may be processes of other users, or they could not be read.
    text = "needs root to see other users' processes" if checked.unread is None else checked.not_read
    return lines + wrapped(text, width, Tone.DIM)


def _paths(processes: Sequence[LiveProcess], sample: LiveSample, width: int) -> list[Line]:
    """Return the paths of a job, in parts where they are too long for a line."""
    whole = path_summary(processes, sample)
    if width_of(whole) > width:
        whole = path_summary(processes, sample, is_brief=True)
    return [whole] if width_of(whole) <= width else [*_share_lines(processes, sample, is_brief=True)]


def _details(job: LiveJob, processes: Sequence[LiveProcess]) -> list[Line]:
    """Return the slowest NIC and rank, where they are known."""
    slowest = _slowest_nic(job.slowest_nic) if job.slowest_nic is not None else ""
    texts = (slowest, _slowest_rank(job, processes))
    return [(Run(text),) for text in texts if text]


def _gpus_used(pids: Collection[int], gpus: Mapping[int, Sequence[str]]) -> str:
    """Return "GPU0, GPU1" or "8 GPUs"; `gpus`: by pid."""
    used = list(dict.fromkeys(gpu for pid in pids for gpu in gpus.get(pid, ())))
    return ", ".join(used) if len(used) <= 2 else f"{len(used)} GPUs"


def _nccl(job: Sequence[Process]) -> str:
    libraries = (library for process in job for library in known(process.libraries, ()))
    versions = dict.fromkeys(known(library.version, "") for library in libraries if library.name == "libnccl")
    return f"NCCL {', '.join(filter(None, versions))}".rstrip() if versions else ""


def _cpus(job: Sequence[Process], taken_at: float) -> str:
    """Return "16 CPUs busy, 144 GiB": the average since the job started, and its memory on this node."""
    cpus = busy_cpus(job, taken_at)
    if cpus is None:
        return ""
    usages = (process.usage for process in job)
    memory = sum(known(usage.memory_bytes, 0) for usage in usages if not isinstance(usage, Unknown))
    return f"{short(cpus)} CPU{'s' * (short(cpus) != '1')} busy, {gibibytes(memory)}"


def strip(sample: LiveSample | None, width: int) -> Line:
    """Return the jobs in one line: the first one, and how many more there are."""
    if sample is None:
        return (Run("Jobs ", Tone.TITLE), Run("reading…", Tone.DIM))
    if isinstance(sample.processes, Unknown):
        return cut((Run("Jobs ", Tone.TITLE), Run(f"unknown ({sample.processes})", Tone.WARNING)), width)
    shown = jobs_with_rdma(sample)
    if not shown:
        return (Run("Jobs ", Tone.TITLE), Run("no job uses RDMA", Tone.DIM))
    more = f"  and {len(shown) - 1} more" if len(shown) > 1 else ""
    row = job_line(shown[0], sample, width - len("Jobs ") - len(more))
    return (Run("Jobs ", Tone.TITLE), *row, Run(more, Tone.DIM))
