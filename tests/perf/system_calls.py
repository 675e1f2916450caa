"""System calls and opened files of the dashboard, with a simulated node's /sys in a mount namespace."""

from __future__ import annotations

import re
import shutil
import signal
import sys
from pathlib import Path
from subprocess import DEVNULL

from tests.perf.command import Command
from tests.perf.mounted_node import is_permitted, mounted_node
from tests.perf.table import row
from tests.perf.terminal import Terminal, dashboard

_SECONDS = 10.0
_ROW = "system calls a second, 8 GPU + 10 NIC"


def bench_system_calls() -> None:
    """Count the system calls of the whole program, with perf or strace, in a mount namespace: needs root."""
    if shutil.which("perf") is None and shutil.which("strace") is None:
        row(_ROW, "neither perf nor strace is installed", "250", None)
        return
    with mounted_node() as (before, directory):
        if not is_permitted(before):
            row(_ROW, "not measured (the mount namespace needs root)", "250", None)
            return
        terminal = Terminal(dashboard([*before, sys.executable, "-m", "tui"]))
        try:
            terminal.wait_for(terminal.command.output)
            terminal.read_for(10.0)
            calls = _counted(terminal, directory / "calls")
            terminal.require_running()
        finally:
            terminal.close()
    if not calls.get("all"):
        row(_ROW, "not measured (perf and strace were refused)", "250", None)
        return
    total, opened = calls["all"], calls.get("openat", 0.0)
    row(_ROW, f"{total:.0f}", "250", total <= 250, [total])
    row("opened files a second", f"{opened:.0f}", "", None, [opened])


def _counted(terminal: Terminal, output: Path) -> dict[str, float]:
    """Return the system calls a second of the program and all its threads: those named, and "all"."""
    if shutil.which("perf") is not None:  # does not slow the program down, which would read less often
        events = {f"syscalls:sys_enter_{name}": name for name in ("openat", "read", "pread64", "close")}
        events["raw_syscalls:sys_enter"] = "all"
        command = ["perf", "stat", "-x,", "-o", str(output), "-e", ",".join(events)]
        text = _traced(terminal, output, command)
        fields = [line.split(",") for line in text.splitlines()]
        found = {events[row[2]]: float(row[0]) for row in fields if len(row) > 2 and row[0].isdecimal()}
        if found:
            return {name: count / _SECONDS for name, count in found.items()}
    text = _traced(terminal, output, ["strace", "-c", "-f", "-q", "-o", str(output)])
    lines = re.findall(r"^ *[\d.]+ +[\d.]+ +\d+ +(\d+) +(?:\d+ +)?(\w+)$", text, re.M)
    found = {name: int(count) / _SECONDS for count, name in lines if name != "total"}
    return {**found, "all": sum(found.values())} if found else {}


def _traced(terminal: Terminal, output: Path, command: list[str]) -> str:
    """Return what a tracer wrote about the program."""
    # A tracer that was refused writes no counts.
    with Command([*command, "-p", str(terminal.pid)], (0,), "").start(stderr=DEVNULL) as tracer:
        terminal.read_for(_SECONDS)
        tracer.send_signal(signal.SIGINT)
    return output.read_text() if output.exists() else ""
