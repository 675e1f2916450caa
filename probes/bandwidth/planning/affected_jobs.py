"""Who would feel a test: jobs that use its GPUs, and who uses its NICs."""

from __future__ import annotations

from collections.abc import Iterable

from probes.bandwidth.model.planned_test import PlannedTest
from probes.bandwidth.planning.affected_nics import of_nics
from probes.bandwidth.planning.process_names import named, processes_by_pid
from probes.base.unknown import Unknown, known
from probes.facts.gpu.gpus import Gpu, GpuFacts
from probes.facts.jobs.processes import Process
from probes.host.nvml import NvmlLive
from probes.snapshot.examination import Examination
from probes.snapshot.rates import Reading

BUSY_PERCENT = 5
"""Utilisation from which on somebody is taken to be using a GPU; an idle one shows 0."""
HELD_BYTES = 2 << 30
"""GPU memory from which on somebody is taken to hold it: the driver itself takes less than 1 GiB."""
_MOST_NAMED = 8


def affected_by(
    examination: Examination, tests: Iterable[PlannedTest], before: Reading | None = None
) -> tuple[str, ...]:
    """Who would feel these tests, a line each; `before` is a reading some time before the examination's.

    What cannot be read is told as well: nobody may be taken for idle because it was not seen.
    """
    tests = tuple(tests)
    lines = (
        *_of_peers(tests),
        *_of_gpus(examination, tests),
        *of_nics(examination, tests, before),
    )
    if len(lines) <= _MOST_NAMED:
        return lines
    return (*lines[: _MOST_NAMED - 1], f"and {len(lines) - _MOST_NAMED + 1} more")


def _of_peers(tests: tuple[PlannedTest, ...]) -> list[str]:
    """The nodes on which gdrtop starts an end itself."""
    peers = dict.fromkeys(end.host for test in tests for end in test.processes if end.host)
    return [
        f"whether somebody at {peer} would feel it is not known: gdrtop does not look there" for peer in peers
    ]


def _of_gpus(examination: Examination, tests: tuple[PlannedTest, ...]) -> list[str]:
    facts, live = examination.node.gpus, examination.reading.gpus
    used = [gpu for gpu in facts.gpus if _is_used(gpu, tests)] if isinstance(facts, GpuFacts) else []
    if not used:
        return []
    if isinstance(live, Unknown):
        return [f"whether somebody uses the GPUs is not known: {live}"]
    processes = processes_by_pid(examination)
    lines = []
    for gpu in used:
        now = live.get(gpu.bdf)
        told = "NVML does not list it" if now is None else _of_gpu(now, processes)
        if told:
            lines.append(f"GPU{gpu.index}: {told}")
    return lines


def _of_gpu(now: NvmlLive, processes: dict[int, Process]) -> str:
    if isinstance(now.processes, Unknown):
        return f"whether somebody uses it is not known: {now.processes}"
    busy = known(now.utilisation_percent, 0)
    used = f", {busy} % busy" if busy >= BUSY_PERCENT else ""
    if now.processes:
        return f"{named(now.processes, processes)} computes on it{used}"
    held = known(now.memory_used_bytes, 0)
    if not used and held >= HELD_BYTES:
        # A job between two steps, in another container whose processes are not seen here.
        return f"{held / (1 << 30):.0f} GiB of its memory are in use, by nobody that is seen from here"
    return used.removeprefix(", ")


def _is_used(gpu: Gpu, tests: tuple[PlannedTest, ...]) -> bool:
    ends = [test.settings for test in tests] + [test.far for test in tests if test.far is not None]
    return any(gpu.index in settings.gpu_indices for settings in ends)
