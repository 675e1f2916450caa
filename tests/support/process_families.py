"""Programs that stand for tests, with children that obey or do not, and what is left of them."""

import contextlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tui.bandwidth import supervisor
from tui.bandwidth.processes import LocalProcessStarter, ProcessExit, ToolProcess

ROOT = Path(__file__).parents[2]
LONG = 120.0  # nothing here takes so long: what does has failed
GRACE_SECONDS = 0.3  # enough for these programs to obey SIGTERM; the tests need not wait longer
FAMILY = """
import os, signal, sys, time
def deaf():
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
def group():
    os.setpgid(0, 0)
def child(*preparations):
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        for prepare in preparations:
            prepare()
        os.write(write, b"x")
        while True:
            time.sleep(60)
    os.read(read, 1)
    print("PID", pid, flush=True)
    return pid
def daemon():
    if os.fork() == 0:
        os.setsid()
        child(deaf)
        os._exit(0)
    os.wait()
print("PID", os.getpid(), flush=True)
"""
STAYS = "print('READY', flush=True)\nwhile True: time.sleep(60)"
FAMILIES = {
    "one that obeys": "",
    "one that ignores signals": "deaf()",
    "a child": "child()",
    "a child that ignores signals": "child(deaf)",
    "a child in a group of its own": "child(group)",
    "a deaf child in a group of its own": "child(group, deaf)",
    "a child in a session of its own": "child(os.setsid)",
    "a daemon that ignores signals": "daemon()",
    "a child that is stopped": "os.kill(child(group), signal.SIGSTOP)",
}
every_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)


def start(code: str, seconds: float = LONG) -> ToolProcess:
    """Python stands for a tool: it is on no trusted path in every place where these tests run."""
    return LocalProcessStarter(lambda _: sys.executable, GRACE_SECONDS).start(["python", "-c", code], seconds)


def start_family(family: str) -> tuple[ToolProcess, list[int]]:
    process = start(f"{FAMILY}\n{family}\n{STAYS}")
    lines = until_line(process, "READY")
    return process, [int(line.split()[1]) for line in lines if line.startswith("PID ")]


def until_line(process: ToolProcess, wanted: str) -> list[str]:
    lines: list[str] = []
    until = time.monotonic() + LONG
    while wanted not in lines:
        assert time.monotonic() < until, lines
        assert process.ended is None, (lines, process.ended)
        lines += process.lines(1.0)
    return lines


def to_the_end(process: ToolProcess) -> tuple[list[str], ProcessExit]:
    lines: list[str] = []
    until = time.monotonic() + LONG
    while (ended := process.ended) is None:
        assert time.monotonic() < until, lines
        lines += process.lines(1.0)
    return lines, ended


def gone(pid: int) -> bool:
    """Whether it has ended; where nobody takes an orphan's status, a zombie stays in the table."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def supervisors_of(pid: int) -> list[int]:
    found = []
    for child in psutil.Process(pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):  # a zombie has no arguments either
            if supervisor.__file__ in child.cmdline():
                found.append(child.pid)
    return found


def my_supervisor() -> int:
    (pid,) = supervisors_of(os.getpid())
    return pid


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))
