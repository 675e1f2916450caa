"""A node that worked, and its files."""

import io
import os
from pathlib import Path

from probes.base.origin import Origin, Source
from probes.simulation.host import SimulatedHost
from tui.commands.check import CheckOptions, write_check

GOOD, BAD = "hgx-h100", "hgx-h100+nvidia-not-loaded"


def this_node(name: str) -> SimulatedHost:
    """A simulated node as if it were this machine."""
    host = SimulatedHost(name, clock=lambda: 1000.0)
    host.origin = Origin(Source.LIVE)
    return host


def checked(name: str, **options: object) -> str:
    out = io.StringIO()
    write_check(this_node(name), out, CheckOptions(**options))  # type: ignore[arg-type]
    return out.getvalue()


def worked(saved: Path, hours: int = 3) -> Path:
    """Let the node have worked some hours ago; return the file with its facts."""
    checked(GOOD)
    (file,) = saved.iterdir()
    at = this_node(GOOD).wall_clock() - hours * 3600
    os.utime(file, (at, at))
    return file
