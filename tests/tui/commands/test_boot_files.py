"""`gdrtop check --wait --save` and `gdrtop manifest boot-check`: the verdict after boot, and at login."""

from __future__ import annotations

import configparser
import io
import json
import os
import shutil
import stat
import subprocess
import time
from pathlib import Path

import pytest

from probes.simulation.host import SimulatedHost
from tests.support.pilot import SteppedClock
from tui.cli import main
from tui.commands.check import CheckOptions, write_check
from tui.commands.consumers.checked_node import ONE_LINE_BYTES
from tui.commands.manifest import boot_files

MISSING = "hgx-h100+no-gdr-path"


def show(script: str, verdict: Path, *options: str) -> str:
    """Run one of the scripts of the login on another file."""
    text = boot_files()[script].replace("/run/gdrtop/verdict", str(verdict))
    return subprocess.run(["sh", *options, "-c", text], capture_output=True, text=True, check=True).stdout


def test_the_saved_line_is_shown_at_login(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = tmp_path / "gdrtop"
    assert main(["--demo", MISSING, "check", "--one-line", "--save", str(saved)]) == 2
    printed = capsys.readouterr().out
    line = show("60-gdrtop", saved / "verdict")
    assert line.endswith("\n")
    assert len(line.encode()) <= ONE_LINE_BYTES + 1
    assert line.startswith(f"gdrtop {time.strftime('%m-%d')} ")
    assert "SIMULATED ✗ BROKEN (" in line
    assert "SIMULATED ✗ BROKEN (" in printed
    document = json.loads((saved / "check.json").read_text())
    assert document["verdict"]["state"] == "BROKEN"
    assert document["exit_status"] == 2
    for path in saved.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
    # A login shell shows it, a script that reads the profile does not.
    assert show("gdrtop.sh", saved / "verdict", "-i") == line
    assert show("gdrtop.sh", saved / "verdict") == ""


def test_before_the_check_has_ended_a_login_shows_nothing(tmp_path: Path) -> None:
    assert show("60-gdrtop", tmp_path / "verdict") == ""


def test_a_directory_that_cannot_be_written_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["--demo", "hgx-h100", "check", "--save", str(tmp_path / "file" / "x")]) == 3
    assert "cannot be created" in capsys.readouterr().err


@pytest.mark.slow
def test_it_waits_until_nothing_is_critical() -> None:
    clock = SteppedClock()
    host = SimulatedHost("hgx-h100+fabric-manager-down", clock=clock)
    waited: list[float] = []

    def wait(seconds: float) -> None:
        clock.now += seconds
        waited.append(seconds)
        if len(waited) == 2:
            assert host.perform(("systemctl", "start", "nvidia-fabricmanager")).exit_status == 0

    assert write_check(host, io.StringIO(), CheckOptions(wait=60), wait) in (0, 1)
    assert len(waited) == 2


@pytest.mark.slow
def test_it_gives_up_in_time() -> None:
    clock = SteppedClock()

    def wait(seconds: float) -> None:
        clock.now += seconds

    began = clock.now
    host = SimulatedHost(MISSING, clock=clock)
    assert write_check(host, io.StringIO(), CheckOptions(wait=20), wait) == 2
    assert 20 <= clock.now - began <= 30


def test_a_broken_node_keeps_the_unit_and_what_requires_it_from_starting() -> None:
    units = {}
    for name in ("gdrtop-boot-check.service", "gdrtop-boot-check.conf"):
        units[name] = configparser.ConfigParser(strict=False, interpolation=None)
        units[name].optionxform = str  # type: ignore[assignment,method-assign]
        units[name].read_string(boot_files()[name])
    service = units["gdrtop-boot-check.service"]["Service"]
    assert service["SuccessExitStatus"].split() == ["1", "3", "70"]
    assert " check --one-line --wait 180 --save /run/gdrtop" in service["ExecStart"]
    assert int(service["TimeoutStartSec"]) > 180
    assert units["gdrtop-boot-check.conf"]["Unit"]["Requires"] == "gdrtop-boot-check.service"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    program = tmp_path / "gdrtop"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / "gdrtop-boot-check.service"
    command = next(line for line in boot_files()[unit.name].splitlines() if line.startswith("ExecStart="))
    unit.write_text(boot_files()[unit.name].replace(command, f"ExecStart={program} check"))
    ended = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "SYSTEMD_LOG_LEVEL": "warning"},
    )
    assert ended.returncode == 0, ended.stderr
