"""Runs gdrtop as a user does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from probes.simulation.host import SimulatedHost
from tests.support.pilot import SteppedClock
from tui.cli import main
from tui.commands.record import record
from tui.runtime.recorder import Recorded

ROOT = Path(__file__).parents[2]


def gdrtop(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tui", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "LC_ALL": "C.UTF-8", **environment},
    )


def printed(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    assert main(arguments) == status
    return capsys.readouterr().out


def recorded(path: Path, name: str = "hgx-h100", seconds: int = 3, redact: bool = False) -> Recorded:
    """A simulated node recorded under a clock that steps."""
    clock = SteppedClock()

    def wait(seconds: float) -> None:
        clock.now += seconds

    return record(SimulatedHost(name, clock=clock), str(path), seconds, redact, sys.stderr, clock, wait)
