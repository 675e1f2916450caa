"""The text commands from the shell and back, in CPU time of the process and its children."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from tests.perf.mounted_node import mounted_node
from tests.perf.table import GDRTOP, child_seconds, row, slowness
from tui.commands.export.boot_files import boot_files
from tui.files.verdict_file import ROOTS_DIRECTORY, VERDICT_LINE

_SECONDS = 0.35
_CONSUMED_SECONDS, _PROLOG_SECONDS, _LOGIN_SECONDS = 0.3, 0.4, 0.05
_WATCH_SECONDS, _WATCH_PERCENT, _WATCH_BYTES = 20.0, 0.4, 45e6
_GRAPH_SECONDS = 0.5  # of what draws the graph, with networkx
_TIMES = 5


def bench_text() -> None:
    """Commands on a simulated node, which they build first, and a check of the same node's files in /sys."""
    commands = (
        *(("check --demo", _SECONDS), ("check --one-line --demo", _CONSUMED_SECONDS)),
        ("metrics --demo", _CONSUMED_SECONDS),
        *(("topo --demo", _GRAPH_SECONDS), ("modules --demo", _SECONDS)),
    )
    for command, budget in commands:
        _row(f"gdrtop {command}", _times_of([*GDRTOP[:3], *command.split()]), budget)
    with mounted_node() as (before, _):
        is_refused = subprocess.run([*before, "true"], check=False, capture_output=True).returncode
        check = [*before, sys.executable, "-m", "tui", "check"]
        _row("gdrtop check", [] if is_refused else _times_of(check), _SECONDS)


def bench_scheduler() -> None:
    """What Slurm, logins and a service run on a node: the prolog, the line of the boot check, and watch."""
    job = {"SLURM_JOB_GPUS": "5", "SLURMD_NODENAME": "hgx-h100", "SLURM_JOB_ID": "1"}
    # What it prints, it prints on stderr.
    prolog = ["sh", "-c", '"$@" 2>&1', "sh", *GDRTOP[:3], "--demo", "hgx-h100+xid-79-fell-off-bus", "prolog"]
    _row("gdrtop prolog --demo", [child_seconds(prolog, job)[0] for _ in range(_TIMES)], _PROLOG_SECONDS)
    with tempfile.TemporaryDirectory() as directory:
        verdict = Path(directory) / VERDICT_LINE
        verdict.write_text("gdrtop 11-27 14:03 ● ACTIVE via peermem, 8 of 8 GPUs, 8 NICs\n")
        script = boot_files()["60-gdrtop"].replace(f"{ROOTS_DIRECTORY}/{VERDICT_LINE}", str(verdict))
        times = [child_seconds(["sh", "-c", script])[0] for _ in range(_TIMES)]
        _row("line at login", times, _LOGIN_SECONDS)
        watch = [*GDRTOP[:3], "watch", "--demo", "hgx-h100", "--dir", str(Path(directory) / "ring")]
        with subprocess.Popen(watch, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            watched = psutil.Process(process.pid)
            time.sleep(_WATCH_SECONDS / 2)
            before = sum(watched.cpu_times()[:2])
            time.sleep(_WATCH_SECONDS)
            percent = (sum(watched.cpu_times()[:2]) - before) / _WATCH_SECONDS * 100
            normal = percent / slowness()
            size = watched.memory_full_info().uss
            process.terminate()
    row(
        "gdrtop watch --demo",
        f"{percent:.2f} % of a core, {normal:.2f} at full speed, {size / 1e6:.0f} MB",
        f"{_WATCH_PERCENT} %, {_WATCH_BYTES / 1e6:.0f} MB",
        normal <= _WATCH_PERCENT and size <= _WATCH_BYTES,
    )


def _times_of(argv: Sequence[str]) -> list[float]:
    return [child_seconds(argv)[0] for _ in range(_TIMES)]


def _row(what: str, values: list[float], seconds: float) -> None:
    budget = f"{seconds * 1e3:.0f} ms"
    if not values:
        row(what, "not measured (the mount namespace needs root)", budget, None)
        return
    measured, normal = min(values), min(values) / slowness()
    text = f"{measured * 1e3:.0f} ms CPU, {normal * 1e3:.0f} at full speed"
    row(what, text, budget, normal <= seconds, values)
