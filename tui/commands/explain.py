"""`gdrtop explain`: a job from its user's view: devices, distances, limits, paths, and what to change."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TextIO, TypedDict

from probes.base.evidence import Severity
from probes.base.origin import Source
from probes.base.text import printable
from probes.base.unknown import Unknown, known
from probes.checks.judgment import judge
from probes.facts.jobs.pods import LOGS, given_devices, pod_names
from probes.facts.jobs.processes import name_of
from probes.facts.system import platform as cloud_facts
from probes.host.protocol import Host
from probes.live.explain import ProcessExplanation, concerning, explain_process
from probes.live.job_examination import examine_and_sample
from probes.live.live_sampler import LiveSampler
from probes.live.model.sample import LiveProcess, LiveSample, PathJudgment
from probes.queries.finding import Finding
from probes.setup.env.advice import Advice, Setting
from probes.setup.env.own_container import ContainerRow, container_rows, request_of
from probes.setup.env.recommend import recommend
from probes.snapshot.examination import Examination
from tui.command_line.arguments import UsageError, add_arguments, whole_number
from tui.command_line.options import OutputOptions, parsed
from tui.runtime.json_values import Changed, node_document, object_from, plain_value, url_json, write_json
from tui.runtime.open_host import open_host
from tui.runtime.printing import heading, print_lines, text_width
from widgets.base.lines import Line, Run, Tone, line, wrapped
from widgets.doctor.findings import mark_of
from widgets.live.explain import draw_changes, draw_container, draw_processes, draw_summary, needs_admin

EXIT_FINDINGS, EXIT_UNKNOWN = 1, 3
_BETWEEN_READINGS = 1.1  # seconds, a little more than the shortest time between two readings
_UID = re.compile(r"[0-9a-f]{8}(?:-?[0-9a-f-]{1,28})?")
_MOST_PID = 1 << 22  # PID_MAX_LIMIT of 64-bit kernels


# In this document, the path has been any text.
_ANY_PATH = Changed(path=Annotated[PathJudgment, Changed(word=str)])
_FINDING = Annotated[
    Finding,
    Changed(
        only=("id", "severity", "title", "impact", "cause"),
        optional=("url",),
        **{"needs_admin": bool, "steps": tuple[str, ...], "url": str},
    ),
]


class ExplainDocument(TypedDict):
    """`gdrtop explain --json`."""

    processes: tuple[Annotated[ProcessExplanation, _ANY_PATH], ...]
    findings: tuple[_FINDING, ...]  # what these processes feel
    settings: tuple[Setting, ...]  # what jobs on this node need
    container: tuple[ContainerRow, ...]  # what the container of gdrtop has; empty: it runs in none
    request: tuple[str, ...]  # to the admin, a line each; empty: nothing is missing in the container
    not_explained: str  # why there is no process; empty if there is one
    exit_status: int


def add_options(parser: argparse.ArgumentParser) -> None:
    add_arguments(
        parser,
        {
            "[PID]": "the process; without it, list all",
            "--job ID": "all processes of this Slurm job",
            "--pod POD": "all processes of this pod: its name, NAMESPACE/NAME, or 8 digits of its UID",
            "--json": "print JSON (gdrtop schema explain)",
        },
        pid={"type": _pid},
        job={"default": ""},
        pod={"default": ""},
    )


def _pid(text: str) -> int:
    if text[:1].isalpha():
        hint = f"gdrtop env --explain {text} explains a variable"
        raise argparse.ArgumentTypeError(f"{text!r} is not a process id; {hint}")
    return whole_number(1, _MOST_PID, "process id")(text)


def run(options: argparse.Namespace, out: TextIO) -> int:
    """Explain what the options name, and return the exit status."""
    if sum((options.pid is not None, bool(options.job), bool(options.pod))) > 1:
        raise UsageError("give one of PID, --job and --pod")
    host = open_host(options)
    job = f"Slurm job {options.job}" if options.job else _pod(host, options.pod) if options.pod else ""
    return write_explanation(host, out, options.pid, job, parsed(OutputOptions, options))


def _pod(host: Host, wanted: str) -> str:
    """Return the job of a pod by its name, with or without its namespace, or by its UID."""
    if _UID.fullmatch(wanted):
        return f"pod {wanted[:8]}"
    named = [job for job, name in pod_names(host).items() if wanted in (name, name.partition("/")[2])]
    if len(named) > 1:
        raise UsageError(f"{len(named)} pods are named {printable(wanted)}; give NAMESPACE/NAME")
    if not named:
        raise UsageError(f"{LOGS} has no pod {printable(wanted)}; give the first 8 digits of its UID")
    return named[0]


def _read(host: Host, wait: Callable[[float], object]) -> tuple[Examination, LiveSample]:
    """Examine the node with its jobs; what moves an engine's KV caches shows after a second."""
    sampler = LiveSampler(settles=False)
    examination, sample = examine_and_sample(host, sampler=sampler)
    engines = any(process.is_engine and process.transfer is None for process in known(sample.processes, ()))
    if not engines or host.origin.source not in (Source.LIVE, Source.REMOTE, Source.SIMULATED):
        return examination, sample
    wait(_BETWEEN_READINGS)
    return examine_and_sample(host, before=examination, sampler=sampler)


def write_explanation(
    host: Host,
    out: TextIO,
    pid: int | None,
    job: str,
    options: OutputOptions,
    wait: Callable[[float], object] = time.sleep,
) -> int:
    """Explain a process, the processes of a job ("Slurm job 4711"), or list all."""
    examination, sample = _read(host, wait)
    chosen = [
        process
        for process in known(sample.processes, ())
        if (process.pid == pid if pid is not None else _job_of(process) == job or not job)
    ]
    findings = judge(examination).findings
    has_pods = any(process.process.job.startswith("pod ") for process in chosen)
    given = given_devices(host) if has_pods else {}
    explained = [explain_process(process, findings, examination, given) for process in chosen]
    felt = concerning(findings, explained, chosen, examination.topology)
    advice = recommend(examination, cloud_facts.probe_cloud(host))
    rows = container_rows(examination)
    request = request_of(examination, rows)
    why = "" if chosen else _why_none(sample, pid, job)
    if request:
        status = EXIT_FINDINGS
    elif why:
        status = EXIT_UNKNOWN
    else:
        status = EXIT_FINDINGS if felt else 0 if all(each.is_clear for each in explained) else EXIT_UNKNOWN
    if options.json:
        content = {
            "processes": [plain_value(each) for each in explained],
            "findings": [_finding_json(finding) for finding in felt],
            "settings": [plain_value(setting) for setting in advice.settings],
            "container": [plain_value(row) for row in rows],
            "request": list(request),
            "not_explained": why,
            "exit_status": status,
        }
        write_json(node_document("explain", examination.node, host.wall_clock(), content), out)
        return status
    width = text_width(out)
    lines: list[Line] = [heading(examination.node)]
    if why:
        lines += wrapped(why, width)
    elif pid is None and not job:
        felt_by = {
            each.pid: concerning(findings, [each], [process], examination.topology)
            for each, process in zip(explained, chosen, strict=True)
        }
        lines += _list(chosen, felt_by)
    else:
        lines += _text(explained, felt, advice, examination, width)
    lines += draw_container(rows, request, width)
    print_lines(lines, out, options.ascii)
    return status


def _job_of(process: LiveProcess) -> str:
    """Return the job without its name, which may be known already: "Slurm job 4711 (llama)"."""
    return process.process.job.partition(" (")[0]


def _list(processes: Sequence[LiveProcess], felt_by: Mapping[int, Sequence[Finding]]) -> list[Line]:
    """Return the processes to choose from, each with the mark of its worst finding."""
    pids = max(len(str(process.pid)) for process in processes)
    paths = max(len(process.path_text) for process in processes)
    lines: list[Line] = []
    order = list(Severity)
    for each in processes:
        worst = min(felt_by[each.pid], key=lambda row: order.index(row.severity), default=None)
        mark = Run(" ") if worst is None else mark_of(worst)
        lines.append(line(mark, f" {each.pid:>{pids}}  {each.path_text:<{paths}}  {name_of(each.process)}"))
    return [*lines, (), line("gdrtop explain PID explains one of them, --job ID a whole job.")]


def _text(
    explained: Sequence[ProcessExplanation],
    findings: Sequence[Finding],
    advice: Advice,
    examination: Examination,
    width: int,
) -> list[Line]:
    changes, processes = draw_changes(findings, explained, width), draw_processes(explained, width)
    # Of a whole job, what to change stands before the blocks of its processes.
    is_job = len(explained) > 1
    lines = [*draw_summary(explained, width), *changes, *processes] if is_job else [*processes, *changes]
    if advice.settings:
        lines += [(), line(Run("What jobs on this node need", Tone.TITLE))]
        for setting in advice.settings:
            lines += wrapped(f"{setting.name}={setting.value}: {setting.reason}", width, indent="  ")
    if isinstance(examination.processes, Unknown):
        lines += [(), *wrapped(f"Processes unknown: {examination.processes}", width)]
    return lines


def _why_none(sample: LiveSample, pid: int | None, job: str) -> str:
    """Return why nothing is explained, as a sentence."""
    what = f"Process {pid}" if pid is not None else printable(job, 80) if job else "No process"
    does = "uses a GPU or RDMA here" if not (pid or job) else "is not among the processes with a GPU or RDMA"
    if isinstance(sample.processes, Unknown):
        return f"Processes are unknown ({sample.processes})."
    missing = f" {sample.missing}" if sample.missing else ""
    jobs = set(map(_job_of, known(sample.processes, ())))
    hint = f" It is a job: gdrtop explain --job {pid}." if f"Slurm job {pid}" in jobs else ""
    return f"{what} {does}.{missing}{hint}"


def _finding_json(finding: Finding) -> dict[str, Any]:
    steps = [] if finding.fix is None else [step.why for step in finding.fix.steps]
    return object_from(finding, _FINDING, needs_admin=needs_admin(finding), steps=steps, **url_json(finding))
