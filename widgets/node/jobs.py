"""The jobs that use GPUs or RDMA devices with NCCL: one row for each program, user and job."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from probes.base.unknown import Maybe, Unknown, known
from probes.facts.jobs.processes import Process, ProcessFacts, busy_cpus, name_of, program_of, user_of
from widgets.base.figures import gibibytes, short
from widgets.base.lines import Line, Run, Tone, cut, wrapped


def jobs_of(facts: ProcessFacts) -> tuple[tuple[Process, ...], ...]:
    """Return the processes that use NCCL, or whose libraries only root can see, by program, user and job.

    Processes that gdrtop has started are left out.
    """
    groups: dict[tuple[str, str, str], list[Process]] = {}
    for process in facts.processes:
        if not process.is_ours and _uses_nccl(process):
            key = program_of(process), user_of(process), process.job
            groups.setdefault(key, []).append(process)
    return tuple(map(tuple, groups.values()))


def _uses_nccl(process: Process) -> bool:
    if isinstance(process.libraries, Unknown):
        return True
    return any(library.name == "libnccl" for library in process.libraries)


def draw(
    facts: Maybe[ProcessFacts] | None,
    gpus: Mapping[int, Sequence[str]],
    width: int,
    far: Collection[int] = (),
) -> list[Line]:
    """Draw one row a job: GPUs (`gpus`: by pid), program, user, job, NCCL, NICs, CPUs; None: not checked yet.

    `far`: pids that are bound to CPUs far from their GPU.
    """
    if facts is None:
        return [(Run("checking…", Tone.DIM),)]
    if isinstance(facts, Unknown):
        return wrapped(f"Processes are unknown ({facts}).", width, Tone.WARNING)
    jobs = jobs_of(facts)
    lines = [_row(job, gpus, width, facts.taken_at, far) for job in jobs]
    note = hidden_note(facts, width)
    lines.extend(note)
    if not note and not jobs:
        lines.append((Run("no job uses a GPU", Tone.DIM),))
    others = sum(not process.is_ours for process in facts.processes) - sum(map(len, jobs))
    if others:
        verb = "process without NCCL has" if others == 1 else "processes without NCCL have"
        lines.append((Run(f"{others} {verb} a GPU or NIC open", Tone.DIM),))
    return lines


def hidden_note(facts: ProcessFacts, width: int) -> list[Line]:
    """Return that other users' processes need root, if there may be any."""
    if isinstance(facts.hidden, Unknown) or facts.hidden:
        return wrapped("needs root to see other users' processes", width, Tone.DIM)
    return []


def _row(
    job: Sequence[Process],
    gpus: Mapping[int, Sequence[str]],
    width: int,
    taken_at: float,
    far: Collection[int],
) -> Line:
    """Return "8 GPUs  train.py (alice, Slurm job 4711, 8 processes)  NCCL 2.27.7  10 NICs open  16 CPUs"."""
    first = job[0]
    name = name_of(first)
    if len(job) > 1:
        about = (user_of(first), first.job, f"{len(job)} processes")
        name = f"{program_of(first)} ({', '.join(filter(None, about))})"
    where = gpus_used([process.pid for process in job], gpus)
    head = f"{where}  " if where else ""
    row: Line = (Run(head), Run(name), *about_processes(job, taken_at, far))
    return cut(row, width)


def gpus_used(pids: Collection[int], gpus: Mapping[int, Sequence[str]]) -> str:
    """Return "GPU0, GPU1" or "8 GPUs"; `gpus`: by pid."""
    used = list(dict.fromkeys(gpu for pid in pids for gpu in gpus.get(pid, ())))
    return ", ".join(used) if len(used) <= 2 else f"{len(used)} GPUs"


def about_processes(job: Sequence[Process], taken_at: float, far: Collection[int] = ()) -> Line:
    """Return "  2 bound to CPUs far from the GPU  NCCL 2.27.7  10 NICs open  16 CPUs busy, 144 GiB"."""
    rest = "".join(f"  {part}" for part in (_nccl(job), _nics(job), _cpus(job, taken_at)) if part)
    count = sum(process.pid in far for process in job)
    warning = f"  {count} bound to CPUs far from the GPU" if count else ""
    return Run(warning, Tone.WARNING), Run(rest, Tone.DIM)


def _nccl(job: Sequence[Process]) -> str:
    libraries = (library for process in job for library in known(process.libraries, ()))
    versions = dict.fromkeys(known(library.version, "") for library in libraries if library.name == "libnccl")
    return f"NCCL {', '.join(filter(None, versions))}".rstrip() if versions else ""


def _nics(job: Sequence[Process]) -> str:
    count = len({file for process in job for file in known(process.uverbs_files, ())})
    return f"{count} NIC{'s' if count > 1 else ''} open" if count else ""


def _cpus(job: Sequence[Process], taken_at: float) -> str:
    """Return "16 CPUs busy, 144 GiB": the average since the job started, and its memory on this node."""
    cpus = busy_cpus(job, taken_at)
    if cpus is None:
        return ""
    usages = (process.usage for process in job)
    memory = sum(known(usage.memory_bytes, 0) for usage in usages if not isinstance(usage, Unknown))
    return f"{short(cpus)} CPU{'s' * (short(cpus) != '1')} busy, {gibibytes(memory)}"


def strip(facts: Maybe[ProcessFacts] | None, gpus: Mapping[int, Sequence[str]], width: int) -> Line:
    """Return the panel in one line."""
    rows = draw(facts, gpus, 10_000)
    more = f"  and {len(rows) - 1} more" if len(rows) > 1 else ""
    head: Line = (Run("Jobs ", Tone.TITLE), *rows[0])
    left = width - len(more)
    return (*cut(head, left), Run(more, Tone.DIM))
