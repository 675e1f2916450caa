"""What all budgets share: the node, rows of the table, and what a program costs once it has settled."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

from tests.perf.command import Command, NotMeasured
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


ROWS: list[dict[str, object]] = []
"""What has been measured, as `make bench JSON=file` writes it."""


def row(what: str, measured: str, budget: str, kept: bool | None, values: Sequence[float] = ()) -> None:
    """One line of the table; `values`: the single measurements, of which less is better."""
    ROWS.append({"what": what, "measured": measured, "budget": budget, "kept": kept, "values": list(values)})
    mark = {True: "kept", False: "MISSED", None: "–"}[kept]
    print(f"{what:<46} {measured:<44} {budget:<16} {mark}", flush=True)


def running_cost(command: Command, keys: bytes = b"") -> Cost:
    """What a program costs once it has settled, after these keys."""
    terminal = Terminal(command)
    try:
        terminal.wait_for(command.output)
        if keys:
            terminal.read_for(4.0)
            terminal.send(keys)
        terminal.read_for(6.0)
        cost = terminal.cost_over(SECONDS)
        if not cost.bytes_written:
            raise NotMeasured(f"{' '.join(command.argv)} draws nothing any more")
        return cost
    finally:
        terminal.close()
