"""The text commands from the shell and back, in CPU time of the process and its children."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import psutil

from tests.perf.command import Command, NotMeasured, measure
from tests.perf.mounted_node import is_permitted, mounted_node
from tests.perf.table import GDRTOP, row, slowness
from tui.commands.consumers.checked_node import ROOTS_DIRECTORY, VERDICT_LINE
from tui.commands.manifest import boot_files

_SECONDS = 0.35
_CONSUMED_SECONDS, _PROLOG_SECONDS, _LOGIN_SECONDS = 0.3, 0.4, 0.05
_WATCH_SECONDS, _WATCH_PERCENT, _WATCH_BYTES = 20.0, 0.4, 45e6
_GRAPH_SECONDS = 0.5  # of what draws the graph, with networkx
_TIMES = 7
_NOT_MEASURED = "not measured (the mount namespace needs root)"


class _Time(NamedTuple):
    """CPU time of a command, and the machine's speed just after it."""

    seconds: float
    slowness: float


def bench_text() -> None:
    """Commands on a simulated node, which they build first, and a check of the same node's files in /sys."""
    commands = (
        ("check --demo", _SECONDS, "ACTIVE via peermem · 8 of 8 GPUs"),
        ("topo --demo", _GRAPH_SECONDS, "GPU0 H100"),
        ("modules --demo", _SECONDS, "nvidia_peermem"),
    )
    for command, budget, output in commands:
        argv = [*GDRTOP[:3], *command.split()]
        _row(f"gdrtop {command}", _times_of(Command(argv, (0,), output)), budget)
    with mounted_node() as (before, _):
        can_run = is_permitted(before)
        verdict = "ACTIVE|READY|DEGRADED|BROKEN"  # with the libraries of this machine
        for command, budget, statuses, output in (
            ("check", _SECONDS, (0, 1, 2), f"({verdict}).* of 8 GPUs"),
            ("check --one-line", _CONSUMED_SECONDS, (0, 1, 2), verdict),
            ("metrics", _CONSUMED_SECONDS, (0,), r"gdrtop_gpus 8\.0"),
        ):
            argv = [*before, sys.executable, "-m", "tui", *command.split()]
            _row(f"gdrtop {command}", _times_of(Command(argv, statuses, output)) if can_run else [], budget)


def bench_scheduler() -> None:
    """What Slurm and logins run on a node: the prolog, and the line of the boot check."""
    job = {"SLURM_JOB_GPUS": "5", "SLURMD_NODENAME": "hgx-h100", "SLURM_JOB_ID": "1"}
    # What it prints, it prints on stderr.
    prolog = ["sh", "-c", '"$@" 2>&1', "sh", *GDRTOP[:3], "--demo", "hgx-h100+xid-79-fell-off-bus", "prolog"]
    _row("gdrtop prolog --demo", _times_of(Command(prolog, (1,), "Drain hgx-h100", job)), _PROLOG_SECONDS)
    with tempfile.TemporaryDirectory() as directory:
        verdict = Path(directory) / VERDICT_LINE
        verdict.write_text("gdrtop 11-27 14:03 ● ACTIVE via peermem, 8 of 8 GPUs, 8 NICs\n")
        script = boot_files()["60-gdrtop"].replace(f"{ROOTS_DIRECTORY}/{VERDICT_LINE}", str(verdict))
        _row(
            "line at login",
            _times_of(Command(["sh", "-c", script], (0,), "gdrtop .*ACTIVE via peermem")),
            _LOGIN_SECONDS,
        )


def bench_watch() -> None:
    """gdrtop watch, the service, on a node's files in /sys, with the commands that it runs."""
    budget = f"{_WATCH_PERCENT} %, {_WATCH_BYTES / 1e6:.0f} MB"
    with mounted_node() as (before, directory):
        if not is_permitted(before):
            row("gdrtop watch", _NOT_MEASURED, budget, None)
            return
        argv = [*before, sys.executable, "-m", "tui", "watch", "--dir", str(directory / "ring")]
        command = Command(argv, (0,), "keeps at most[\\s\\S]*gdrtop was terminated")
        told = directory / "told"
        with told.open("wb") as out, command.start(stdout=out, stderr=out) as process:
            time.sleep(_WATCH_SECONDS / 2)
            if process.poll() is not None:
                raise NotMeasured(f"{' '.join(argv)} ended with {process.poll()}: {told.read_text()[:200]!r}")
            watched = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
            began = _seconds_of(watched)
            time.sleep(_WATCH_SECONDS)
            percent = (_seconds_of(watched) - began) / _WATCH_SECONDS * 100
            size = sum(each.memory_full_info().uss for each in watched)
            process.terminate()
        command.require(process.wait(), told.read_text())
    normal = percent / slowness()
    row(
        "gdrtop watch",
        f"{percent:.2f} % of a core, {normal:.2f} at full speed, {size / 1e6:.0f} MB",
        budget,
        normal <= _WATCH_PERCENT and size <= _WATCH_BYTES,
    )


def _seconds_of(processes: Sequence[psutil.Process]) -> float:
    """Return the CPU time of processes and of the children that they have waited for."""
    return sum(sum(process.cpu_times()[:4]) for process in processes)


def _times_of(command: Command) -> list[_Time]:
    """Measure a command; the speed of the machine may be another one a second later."""
    return [_Time(measure(command).cpu_seconds, slowness()) for _ in range(_TIMES)]


def _row(what: str, times: Sequence[_Time], seconds: float) -> None:
    budget = f"{seconds * 1e3:.0f} ms"
    if not times:
        row(what, _NOT_MEASURED, budget, None)
        return
    measured = median(time.seconds for time in times)
    normal = median(time.seconds / time.slowness for time in times)
    text = f"{measured * 1e3:.0f} ms CPU, {normal * 1e3:.0f} at full speed"
    row(what, text, budget, normal <= seconds, [time.seconds for time in times])
