"""gdrtop beside other monitors: in the same seconds, under the same load, in terminals of one size."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil

from tests.perf.command import Command, NotMeasured, measure
from tests.perf.mounted_node import is_permitted, mounted_node
from tests.perf.table import GDRTOP, row
from tests.perf.terminal import RUNNING, Cost, Terminal, costs_over, dashboard

_SETTLE_SECONDS = 10.0
_WINDOW_SECONDS = 10.0
_WINDOWS = 3
_CPUS = os.cpu_count() or 1
_LOADS = (("quiet", 0, 0), ("busy", 300, _CPUS))  # processes in all, and of them spinning
# Of btop, whose bytes depend least on what the processes do.
_MOST_CPU, _MOST_BYTES = 1.1, 0.04
_MOST_MEMORY = 70e6
_LOAD = """
ulimit -t 600  # ends them also if the benchmark was killed
for kind in sleeping spinning; do
    count=0
    while [ $count -lt "$1" ]; do
        if [ $kind = sleeping ]; then sleep 600 & else while :; do :; done & fi
        count=$((count + 1))
    done
    shift
done
wait
"""


@dataclass(frozen=True)
class Monitor:
    """A program that draws once a second, the first it writes, and what it reads."""

    name: str
    argv: tuple[str, ...]
    content: str
    reads: str


_DEMO, _MOUNTED, _BTOP = "gdrtop --demo", "gdrtop", "btop"
_PEERS = (
    Monitor("top", ("top", "-d", "1"), "load average", "every process"),
    Monitor("htop", ("htop", "--delay=10"), "CPU", "every process and thread"),
    Monitor(_BTOP, ("btop", "--utf-force"), "cpu", "every process, with graphs"),
    Monitor("nvitop", ("nvitop", "--monitor", "--interval=1"), "NVITOP", "the GPUs and their processes"),
    Monitor("nvtop", ("nvtop", "--delay=10"), "Device", "the GPUs and their processes"),
)


@contextmanager
def load(sleeping: int, spinning: int) -> Iterator[int]:
    """Keep so many processes asleep and so many busy; yield the pid of their parent."""
    argv = ["sh", "-c", _LOAD, "load", str(sleeping), str(spinning)]
    # Without processes there is nothing that it waits for.
    command = Command(argv, RUNNING if sleeping + spinning else (0, *RUNNING), "")
    parent = command.start(start_new_session=True)
    try:
        yield parent.pid
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
        command.require(parent.wait(), "")


def bench_running() -> None:
    """CPU of one core, bytes to a terminal of 120×40, and resident memory, of all in the same seconds.

    Each draws once a second (btop waits a second after each drawing), with its default settings otherwise.
    "quiet" is this machine as it is; "busy" adds a spinning process a core, and sleeping ones up to 300.
    The work is not the same: gdrtop reads GPUs, NICs and modules, the peers each process. So their CPU time
    grows with the number of processes, and htop writes more the more figures change: 0.1 kB/s with no process
    to show, 4 kB/s on a busy machine. Medians of three times ten seconds. The budgets are for "busy", whose
    number of processes is the same everywhere.
    """
    with ExitStack() as stack:
        running: dict[str, Terminal] = {}
        settings = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (settings / "btop").mkdir()  # btop reads its interval from a file alone
        (settings / "btop" / "btop.conf").write_text("update_ms = 1000\n")
        before, _ = stack.enter_context(mounted_node())
        demo = Monitor(_DEMO, tuple(GDRTOP), dashboard(()).output, "a simulated node; all its figures move")
        mounted = (*before, sys.executable, "-m", "tui")
        files = Monitor(_MOUNTED, mounted, dashboard(()).output, "that node's files, mounted over /sys")
        for monitor in (demo, *([files] if is_permitted(before) else []), *_PEERS):
            terminal = _started(monitor, settings)
            if isinstance(terminal, Terminal):
                stack.callback(terminal.close)
                running[monitor.name] = terminal
            reads = terminal if isinstance(terminal, str) else f"reads {monitor.reads}"
            row(f"  {monitor.name}{_version(monitor)}", reads, "", None)
        for variant, processes, spinning in _LOADS:
            with load(max(0, processes - len(psutil.pids()) - spinning), spinning):
                _measure(variant, running)


def _started(monitor: Monitor, settings: Path) -> Terminal | str:
    """Return the program, drawn for the first time, or why this machine cannot run it.

    Raises:
        NotMeasured: it could, but does not.
    """
    program = _program(monitor.argv[0])
    if program is None:
        return "not installed"
    argv, environment = (program, *monitor.argv[1:]), {"XDG_CONFIG_HOME": str(settings)}
    terminal = Terminal(Command(argv, RUNNING, monitor.content, environment))
    try:
        terminal.wait_for(monitor.content)
    except NotMeasured:
        terminal.close()
        needs = {"nvitop": "an NVIDIA driver", "nvtop": "a GPU"}
        if monitor.name not in needs:
            raise
        return f"did not start (needs {needs[monitor.name]})"
    return terminal


def _program(name: str) -> str | None:
    folders = (str(Path(sys.executable).parent), os.environ.get("PATH", ""))
    return shutil.which(name, path=os.pathsep.join(folders))


def _version(monitor: Monitor) -> str:
    """Return the version that a peer prints, after a space."""
    program = _program(monitor.name)
    if monitor not in _PEERS or program is None:
        return ""
    option = "-V" if monitor.name == "top" else "--version"
    version = r"\d+(?:\.\d+)+"
    found = re.search(version, measure(Command([program, option], (0,), version)).text)
    return f" {found[0]}" if found else ""


def _measure(variant: str, running: Mapping[str, Terminal]) -> None:
    """Print the load of these seconds, what each program costs, and gdrtop against btop."""
    terminals = tuple(running.values())
    costs_over(terminals, _SETTLE_SECONDS)
    psutil.cpu_percent()
    windows = [costs_over(terminals, _WINDOW_SECONDS) for _ in range(_WINDOWS)]
    busy = psutil.cpu_percent() / 100 * _CPUS
    text = f"{len(psutil.pids())} processes, {busy:.1f} of {_CPUS} cores busy"
    row(f"{variant}: this machine", text, "", None)
    costs = dict(zip(running, zip(*windows, strict=True), strict=True))
    for name, own in costs.items():
        if not any(cost.bytes_written for cost in own):
            raise NotMeasured(f"{name} draws nothing any more")
        cpu, rate = median(map(_percent, own)), median(map(_kilobytes, own))
        text = f"{cpu:.2f} %, {rate:.2f} kB/s, {own[-1].rss_bytes / 1e6:.0f} MB"
        row(f"  {name}, {variant}", text, "", None)
    for name in (_DEMO, _MOUNTED):
        if name in costs:
            _compare(f"{name}, {variant}", costs[name], costs.get(_BTOP), has_budget=variant == "busy")
    if variant == "quiet":
        # A simulated node is itself some 4 MB of the process.
        for name, has_budget in ((_MOUNTED, True), (_DEMO, _MOUNTED not in costs)):
            if name in costs:
                memory = costs[name][-1]
                text = f"{memory.rss_bytes / 1e6:.0f} MB resident, {memory.uss_bytes / 1e6:.0f} MB its own"
                kept = memory.rss_bytes <= _MOST_MEMORY if has_budget else None
                row(f"memory, {name}", text, f"{_MOST_MEMORY / 1e6:.0f} MB" if has_budget else "", kept)


def _compare(what: str, ours: Sequence[Cost], theirs: Sequence[Cost] | None, has_budget: bool) -> None:
    """Print gdrtop's CPU time and bytes as shares of btop's in the same seconds."""
    for figure, share, most in (("CPU", _percent, _MOST_CPU), ("bytes", _kilobytes, _MOST_BYTES)):
        values = [share(cost) for cost in ours]
        if theirs is None:
            row(f"{figure}, {what}", f"{_BTOP} does not run", "", None, values)
            continue
        ratio = median(own / max(share(peer), 1e-9) for own, peer in zip(values, theirs, strict=True))
        budget, kept = (f"× {most:g}", ratio <= most) if has_budget else ("", None)
        row(f"{figure}, {what}", f"× {ratio:.3g} of {_BTOP}", budget, kept, values)


def _percent(cost: Cost) -> float:
    return 100 * cost.cpu_seconds / cost.seconds


def _kilobytes(cost: Cost) -> float:
    return cost.bytes_written / cost.seconds / 1e3
