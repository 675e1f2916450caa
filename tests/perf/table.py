"""What all budgets share: the node, rows of the table, and what a program costs once it has settled."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from tests.perf.terminal import Cost, Terminal

NODE = "hgx-h100"
GDRTOP = [sys.executable, "-m", "tui", "--demo", NODE]
SECONDS = 20.0
_LOOPS = 1_000_000
_LOOP_SECONDS = 0.045  # of CPU, on the machine of the budgets when nothing else ran


def best(measure: Callable[[], float], times: int) -> float:
    """The least of several measurements: what the machine can do when nothing else wants it."""
    return min(measure() for _ in range(times))


def slowness() -> float:
    """Return how much longer a fixed loop takes now than on the machine of the budgets, at least 1.

    Budgets in seconds and in percent of a core are of that machine. A virtual machine may run at half its
    speed for hours, so what is measured is divided by this, which is measured next to it.
    """

    def loop() -> float:
        began = time.process_time()
        total = 0
        for number in range(_LOOPS):
            total += number * number % 7
        return time.process_time() - began

    return max(1.0, best(loop, 5) / _LOOP_SECONDS)


class NotMeasured(Exception):
    """What was timed did not do its work, so its time says nothing."""


def require(argv: Sequence[str], status: int | None, printed: str, content: str) -> None:
    """Raise NotMeasured unless a command has ended well, and has printed this.

    Statuses up to 2 count findings in some commands, and 1 says in grep that nothing was found.
    """
    if status not in (0, 1, 2) or content not in printed:
        begin = printed.strip()[:300] or "nothing"
        raise NotMeasured(f"{' '.join(argv)[:300]}: status {status}, no {content!r}; it printed: {begin}")


def child_seconds(
    argv: Sequence[str], content: str, environment: Mapping[str, str] | None = None
) -> tuple[float, str]:
    """Return the CPU seconds of a command and its children, and what it printed, with `content` in it."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        argv, check=False, capture_output=True, text=True, env={**os.environ, **(environment or {})}
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    require(argv, done.returncode, done.stdout, content)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


ROWS: list[dict[str, object]] = []
"""What has been measured, as `make bench JSON=file` writes it."""


def row(what: str, measured: str, budget: str, kept: bool | None, values: Sequence[float] = ()) -> None:
    """One line of the table; `values`: the single measurements, of which less is better."""
    ROWS.append({"what": what, "measured": measured, "budget": budget, "kept": kept, "values": list(values)})
    mark = {True: "kept", False: "MISSED", None: "–"}[kept]
    print(f"{what:<46} {measured:<44} {budget:<16} {mark}", flush=True)


def running_cost(argv: list[str], content: bytes, keys: bytes = b"") -> Cost:
    """What a program costs once it has settled, after these keys."""
    terminal = Terminal(argv)
    try:
        terminal.wait_for(content)
        if keys:
            terminal.read_for(4.0)
            terminal.send(keys)
        terminal.read_for(6.0)
        return terminal.cost_over(SECONDS)
    finally:
        terminal.close()
