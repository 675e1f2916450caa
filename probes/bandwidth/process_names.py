"""How processes that would feel a test are named, in a bounded line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from probes.examination import Examination
from probes.processes import ProcessFacts
from probes.unknown import Unknown

_MOST_NAMED = 3


def process_names(examination: Examination) -> dict[int, str]:
    """What processes are called, by pid; those without a name that may be read are left out."""
    facts = examination.processes
    processes = facts.processes if isinstance(facts, ProcessFacts) else ()
    return {one.pid: one.comm for one in processes if not isinstance(one.comm, Unknown)}


def named(pids: Sequence[int], names: Mapping[int, str]) -> str:
    """As "41000 (python3), 41001 (python3) and 6 more"."""
    told = ", ".join(f"{pid} ({names[pid]})" if pid in names else f"{pid}" for pid in pids[:_MOST_NAMED])
    return f"{told} and {len(pids) - _MOST_NAMED} more" if len(pids) > _MOST_NAMED else told
