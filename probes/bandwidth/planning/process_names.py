"""How processes that would feel a test are named, in a bounded line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from probes.facts.jobs.processes import Process, ProcessFacts, names_of
from probes.snapshot.examination import Examination

_MOST_NAMED = 3


def processes_by_pid(examination: Examination) -> dict[int, Process]:
    """Return the processes that use GPUs or RDMA, by pid."""
    facts = examination.processes
    processes = facts.processes if isinstance(facts, ProcessFacts) else ()
    return {process.pid: process for process in processes}


def named(pids: Sequence[int], processes: Mapping[int, Process]) -> str:
    """As "train.py (alice, pids 41000, 41001 and 6 more)"; those that cannot be read as "pid 41000"."""
    unread = [pid for pid in pids if pid not in processes]
    more = f" and {len(unread) - _MOST_NAMED} more" if len(unread) > _MOST_NAMED else ""
    parts = (
        names_of(processes[pid] for pid in pids if pid in processes),
        ", ".join(f"pid {pid}" for pid in unread[:_MOST_NAMED]) + more,
    )
    return ", ".join(filter(None, parts))
