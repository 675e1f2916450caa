"""A recording made in the guest says outside what the guest said."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.node_vm.guest import PATIENCE, TIMED_OUT, Guest
from tests.recordings import NODE_VM

HOLD = "/sys/module/nvidia_peermem/parameters/hold"
REFCNTS = (0, 3, 7, 0)  # references that last without a process would be a finding


def told_outside(*arguments: str) -> str:
    """What a gdrtop command of this checkout prints."""
    command = [sys.executable, "-m", "tui", *arguments]
    # As wide as in the guest, whatever width these tests have been given.
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout


def outside(*arguments: str) -> Any:
    """The same as JSON."""
    return json.loads(told_outside(*arguments, "--json"))


def drawing(text: str) -> list[str]:
    """The text without its heading, which says what is RECORDED."""
    return text.splitlines()[1:]


def without_origin(told: dict[str, Any]) -> dict[str, Any]:
    """Returns what two gdrtops say of a node; the guest has a built package, whose version has a date."""
    return {name: value for name, value in told.items() if name not in ("gdrtop", "time", "source", "label")}


def record(node: Guest) -> bytes:
    """Readings while the refcount goes up, ended early."""
    node.shell(
        f"echo {REFCNTS[0]} > {HOLD}; rm -f /tmp/node.tar.gz;"
        "gdrtop record /tmp/node.tar.gz --seconds 600 >/tmp/told 2>&1 & recorder=$!;"
        "until find /tmp -name '.node.tar.gz.*.part' -size +0 | grep -q .; do sleep 0.5; done; sleep 3;"
        f"for held in {' '.join(map(str, REFCNTS))}; do echo $held > {HOLD}; sleep 4; done;"
        "kill -TERM $recorder; wait $recorder"
    )
    return node.fetch("/tmp/node.tar.gz")


@pytest.fixture
def recorded(node: Guest, tmp_path: Path) -> Iterator[Path]:
    """A recording in which every question has its answer; small, so without the list of PCI ids."""
    node.run("mount", "--bind", "/dev/null", "/usr/share/misc/pci.ids")
    node.shell("modprobe mlx5_ib; modprobe nvidia_uvm; modprobe nvidia_peermem")
    file = tmp_path / "node.tar.gz"
    for _ in range(PATIENCE):
        file.write_bytes(record(node))
        if TIMED_OUT not in json.dumps(outside("topo", "--replay", str(file))):
            break
    yield file
    node.run("umount", "/usr/share/misc/pci.ids")


def test_a_recording_says_outside_what_the_guest_said(
    node: Guest, recorded: Path, request: pytest.FixtureRequest
) -> None:
    node.write(HOLD, str(REFCNTS[-1]))  # a recording is shown as it was at its end
    for command in ("topo", "modules"):
        replayed = outside(command, "--replay", str(recorded))
        assert without_origin(replayed) == without_origin(node.json(command))
        # What the screens are drawn with.
        drawn = told_outside(command, "--replay", str(recorded))
        assert "RECORDED" in drawn.splitlines()[0]
        assert drawing(drawn) == drawing(node.run_gdrtop(command))
    if request.config.getoption("--keep-recording"):
        NODE_VM.write_bytes(recorded.read_bytes())
