"""Nodes behind a connection that are this machine: what would start a program there starts it here."""

import os
import sys
from collections.abc import Callable, Sequence

from probes.host.remote.transport import Target
from tests.support.process_families import FAMILY, GRACE_SECONDS, LONG, STAYS, until_line
from tui.bandwidth.pairs.remote_processes import RemoteNodeProcesses
from tui.bandwidth.processes import ToolProcess

PATH = f"{os.path.dirname(sys.executable)}:$PATH"  # of a python3


def target(script: str = 'shift; exec "$@"') -> Target:
    """A node that is reached by a shell script; its arguments are the node's name and the command."""
    return Target("gpu1", ("sh", "-c", f"PATH={PATH}; {script}", "sh", "{host}"))


def loopback(script: str = 'shift; exec "$@"') -> RemoteNodeProcesses:
    return RemoteNodeProcesses(target(script), GRACE_SECONDS)


def python(code: str) -> Sequence[str]:
    """Python stands for a tool; a shell is on every trusted path and finds it."""
    return ["sh", "-c", 'exec "$0" -c "$1"', sys.executable, code]


def start_family(processes: RemoteNodeProcesses, family: str) -> tuple[ToolProcess, list[int]]:
    process = processes.start(python(f"{FAMILY}\n{family}\n{STAYS}"), LONG)
    lines = until_line(process, "READY")
    return process, [int(line.split()[1]) for line in lines if line.startswith("PID ")]


Start = Callable[[str], RemoteNodeProcesses]
