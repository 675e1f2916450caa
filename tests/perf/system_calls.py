"""System calls and opened files of the dashboard, with a simulated node's /sys in a mount namespace."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.perf.table import NODE, row
from tests.perf.terminal import Terminal

_SECONDS = 10.0
_BIND = 'mount --rbind "$0/sys" /sys && exec "$@"'
_ROW = "system calls a second, 8 GPU + 10 NIC"


def bench_system_calls() -> None:
    """Count what strace sees of the whole program; it needs root, and so does the namespace."""
    if shutil.which("strace") is None:
        row(_ROW, "strace is not installed", "250", None)
        return
    from probes.simulation.host import SimulatedHost
    from tests.simulated_tree import write_tree

    with tempfile.TemporaryDirectory() as directory:
        write_tree(SimulatedHost(NODE), Path(directory))
        terminal = Terminal(["unshare", "--mount", "sh", "-c", _BIND, directory, sys.executable, "-m", "tui"])
        try:
            terminal.wait_for(b"gdrtop")
            terminal.read_for(10.0)
            calls = _counted(terminal, Path(directory) / "calls")
        except (TimeoutError, OSError) as error:
            row(_ROW, f"not measured ({type(error).__name__}: needs root)", "250", None)
            return
        finally:
            terminal.close()
    if not calls:
        row(_ROW, "not measured (strace was refused)", "250", None)
        return
    total, opened = sum(calls.values()) / _SECONDS, calls.get("openat", 0) / _SECONDS
    row(_ROW, f"{total:.0f}", "250", total <= 250, [total])
    row("opened files a second", f"{opened:.0f}", "", None, [opened])


def _counted(terminal: Terminal, output: Path) -> dict[str, int]:
    """Return the system calls of the program and all its threads by name."""
    argv = ["strace", "-c", "-f", "-q", "-o", str(output), "-p", str(terminal.pid)]
    with subprocess.Popen(argv, stderr=subprocess.DEVNULL) as tracer:
        terminal.read_for(_SECONDS)
        tracer.terminate()
    text = output.read_text() if output.exists() else ""
    lines = re.findall(r"^ *[\d.]+ +[\d.]+ +\d+ +(\d+) +(?:\d+ +)?(\w+)$", text, re.M)
    return {name: int(count) for count, name in lines if name != "total"}
