"""Who would be affected by a test: jobs that use its GPUs, and users of its NICs."""

from __future__ import annotations

from collections.abc import Iterable

from probes.bandwidth.model.planned_test import PlannedTest
from probes.bandwidth.planning.affected_nics import affected_on_nics, processes_by_pid, summary_of
from probes.base.unknown import Unknown, known
from probes.facts.gpu.gpus import Gpu, GpuFacts
from probes.facts.jobs.processes import Process
from probes.host.nvml import NvmlLive
from probes.snapshot.examination import Examination
from probes.snapshot.rates import Reading

BUSY_PERCENT = 5
"""GPU utilization from which on a GPU counts as used; an idle one shows 0."""
HELD_BYTES = 2 << 30
"""GPU memory from which on it counts as used; the driver itself takes less than 1 GiB."""
_MOST_LINES = 8


def affected_by(
    examination: Examination, tests: Iterable[PlannedTest], before: Reading | None = None
) -> tuple[str, ...]:
    """Return who would be affected by these tests, a line each.

    `before` is a reading some time before the examination's. What cannot be read has a line too: a job
    that gdrtop cannot see is not taken for idle.
    """
    tests = tuple(tests)
    lines = (
        *_on_peers(tests),
        *_on_gpus(examination, tests),
        *affected_on_nics(examination, tests, before),
    )
    if len(lines) <= _MOST_LINES:
        return lines
    return (*lines[: _MOST_LINES - 1], f"and {len(lines) - _MOST_LINES + 1} more")


def _on_peers(tests: tuple[PlannedTest, ...]) -> list[str]:
    """Return a line for each node on which gdrtop itself starts a process."""
    peers = dict.fromkeys(process.host for test in tests for process in test.processes if process.host)
    return [f"{peer}: unknown which jobs would be affected there, gdrtop does not check" for peer in peers]


def _on_gpus(examination: Examination, tests: tuple[PlannedTest, ...]) -> list[str]:
    facts, live = examination.node.gpus, examination.reading.gpus
    used = [gpu for gpu in facts.gpus if _is_used(gpu, tests)] if isinstance(facts, GpuFacts) else []
    if not used:
        return []
    if isinstance(live, Unknown):
        return [f"unknown which jobs use the GPUs: {live}"]
    processes = processes_by_pid(examination)
    lines = []
    for gpu in used:
        now = live.get(gpu.bdf)
        text = "NVML does not list it" if now is None else _on_gpu(now, processes)
        if text:
            lines.append(f"GPU{gpu.index}: {text}")
    return lines


def _on_gpu(now: NvmlLive, processes: dict[int, Process]) -> str:
    if isinstance(now.processes, Unknown):
        return f"unknown which jobs use it: {now.processes}"
    busy = known(now.utilization_percent, 0)
    utilization = f"{busy} % busy" if busy >= BUSY_PERCENT else ""
    if now.processes:
        return ", ".join(filter(None, (f"used by {summary_of(now.processes, processes)}", utilization)))
    held = known(now.memory_used_bytes, 0)
    if not utilization and held >= HELD_BYTES:
        # A job between two steps, in another container whose processes are not visible here.
        return f"{held / (1 << 30):.0f} GiB of its memory are in use, by a process that is not visible here"
    return utilization


def _is_used(gpu: Gpu, tests: tuple[PlannedTest, ...]) -> bool:
    settings = [test.settings for test in tests] + [test.far for test in tests if test.far is not None]
    return any(gpu.index in each.gpu_indices for each in settings)
