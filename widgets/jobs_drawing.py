"""The processes that use GPUs or RDMA devices with NCCL: one row each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from probes.processes import Process, ProcessFacts, name_of
from probes.unknown import Maybe, Unknown, known
from widgets.lines import Line, Run, Tone, fit, width_of, wrapped


def jobs_of(facts: ProcessFacts) -> tuple[Process, ...]:
    """The processes of other programs than gdrtop that use NCCL, or whose libraries only root can see."""
    return tuple(process for process in facts.processes if not process.is_ours and _uses_nccl(process))


def _uses_nccl(process: Process) -> bool:
    if isinstance(process.libraries, Unknown):
        return True
    return any(library.name == "libnccl" for library in process.libraries)


def draw(facts: Maybe[ProcessFacts] | None, gpus: Mapping[int, Sequence[str]], width: int) -> list[Line]:
    """One row a process: program, user, pid, GPUs (`gpus`: by pid), NCCL, NICs; None: not checked yet."""
    if facts is None:
        return [(Run("checking…", Tone.DIM),)]
    if isinstance(facts, Unknown):
        return wrapped(f"Processes are unknown ({facts}).", width, Tone.WARNING)
    jobs = jobs_of(facts)
    lines: list[Line] = []
    names = [name_of(process) for process in jobs]
    cells = max(map(len, names), default=0)
    for process, name in zip(jobs, names, strict=True):
        row: Line = (Run(f"{name:<{cells}}"), Run(_uses(process, gpus.get(process.pid, ())), Tone.DIM))
        lines.append(fit(row, width) if width_of(row) > width else row)
    hidden = facts.hidden
    if isinstance(hidden, Unknown) or hidden:
        lines.extend(wrapped("needs root to see other users' processes", width, Tone.DIM))
    elif not jobs:
        lines.append((Run("no job uses a GPU", Tone.DIM),))
    others = sum(not process.is_ours for process in facts.processes) - len(jobs)
    if others:
        verb = "process without NCCL has" if others == 1 else "processes without NCCL have"
        lines.append((Run(f"{others} {verb} a GPU or NIC open", Tone.DIM),))
    return lines


def _uses(process: Process, gpus: Sequence[str]) -> str:
    """As "  GPU0  NCCL 2.27.7  10 NICs open"."""
    parts = [", ".join(gpus) if len(gpus) <= 2 else f"{len(gpus)} GPUs"] if gpus else []
    for library in known(process.libraries, ()):
        if library.name == "libnccl":
            parts.append(f"NCCL {known(library.version, '')}".rstrip())
            break
    nics = len(known(process.uverbs_files, ()))
    if nics:
        parts.append(f"{nics} NIC{'s' if nics > 1 else ''} open")
    return "".join(f"  {part}" for part in parts)


def strip(facts: Maybe[ProcessFacts] | None, gpus: Mapping[int, Sequence[str]], width: int) -> Line:
    """The panel in one line."""
    rows = draw(facts, gpus, 10_000)
    more = f"  … {len(rows) - 1} more" if len(rows) > 1 else ""
    head: Line = (Run("Jobs ", Tone.TITLE), *rows[0])
    left = width - len(more)
    cut = fit(head, left) if width_of(head) > left else head
    return (*cut, Run(more, Tone.DIM))
