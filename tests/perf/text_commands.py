"""The text commands from the shell and back, in CPU time of the process and its children."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

from tests.perf.mounted_node import mounted_node
from tests.perf.table import GDRTOP, child_seconds, row

_SECONDS = 0.35
_GRAPH_SECONDS = 0.5  # of what draws the graph, with networkx
_TIMES = 5


def bench_text() -> None:
    """Commands on a simulated node, which they build first, and a check of the same node's files in /sys."""
    commands = (
        *(("check --demo", _SECONDS), ("metrics --demo", _SECONDS)),
        *(("topo --demo", _GRAPH_SECONDS), ("modules --demo", _SECONDS)),
    )
    for command, budget in commands:
        _row(f"gdrtop {command}", _times_of([*GDRTOP[:3], *command.split()]), budget)
    with mounted_node() as (before, _):
        is_refused = subprocess.run([*before, "true"], check=False, capture_output=True).returncode
        check = [*before, sys.executable, "-m", "tui", "check"]
        _row("gdrtop check", [] if is_refused else _times_of(check), _SECONDS)


def _times_of(argv: Sequence[str]) -> list[float]:
    return [child_seconds(argv)[0] for _ in range(_TIMES)]


def _row(what: str, values: list[float], seconds: float) -> None:
    budget = f"{seconds * 1e3:.0f} ms"
    if not values:
        row(what, "not measured (the mount namespace needs root)", budget, None)
        return
    row(what, f"{min(values) * 1e3:.0f} ms CPU", budget, min(values) <= seconds, values)
