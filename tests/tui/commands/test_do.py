"""`gdrtop do`: list, look, confirm, run, look again; exit codes."""

import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.command_line import ROOT
from tests.support.script_shell import ScriptShell
from tui.cli import main

IDLE = "hgx-h100+peermem-not-loaded"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(["do", *arguments])
    told = capsys.readouterr()
    return status, told.out, told.err


def test_the_list_has_one_action_a_line_with_what_is_possible(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "--demo", IDLE, "--list")
    assert status == 0
    head, *listed = out.splitlines()
    assert "SIMULATED" in head
    lines = {line.split()[1]: line for line in listed}
    assert lines["load-peermem"].startswith("▸")
    assert lines["unload-peermem"].startswith("–")
    assert "nvidia_peermem is not loaded" in lines["unload-peermem"]
    assert "fix:peermem-not-loaded" in lines
    marks = [line[0] for line in listed]
    assert marks == sorted(marks, key="▸–".index)


def test_the_list_is_not_cut_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "--demo", "hgx-h100", "--list")
    assert "…" not in out
    assert "none of the 16 switch ports between GPUs and NICs has a redirect enabled" in out


@pytest.mark.slow
def test_the_list_is_the_same_without_the_option_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    _, listed, _ = run(capsys, "--demo", IDLE, "--list")
    _, plain, _ = run(capsys, "--demo", IDLE)
    assert plain.splitlines()[1:] == listed.splitlines()[1:]
    _, told, _ = run(capsys, "--demo", IDLE, "--json")
    actions = json.loads(told)["actions"]
    assert [action["id"] for action in actions] == [line.split()[1] for line in listed.splitlines()[1:]]
    load = next(action for action in actions if action["id"] == "load-peermem")
    assert load["possible"] is True
    assert load["steps"][0]["argv"] == ["modprobe", "nvidia_peermem"]


@pytest.mark.slow
def test_a_dry_run_shows_all_and_runs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "--demo", IDLE, "load-peermem", "--dry-run", "--yes")
    assert status == 0
    assert "modprobe nvidia_peermem" in out
    assert "undo: rmmod nvidia_peermem" in out
    assert "✓ done" not in out


def test_without_yes_and_without_a_terminal_nothing_is_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    status, out, err = run(capsys, "--demo", IDLE, "load-peermem")
    assert status == 2
    assert "✓ done" not in out
    assert "--yes" in err


@pytest.mark.slow
def test_what_is_done_is_told_and_the_node_looked_at_again(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "--demo", IDLE, "load-peermem", "--yes")
    assert status == 0
    assert "on the simulated node" in out
    assert "✓ done" in out
    checked = out.partition("CHECKED AGAIN")[2]
    assert re.search(r"fixed +✓ peermem-not-loaded nvidia_peermem is loaded", checked)


@pytest.mark.slow
def test_what_somebody_feels_is_not_confirmed_by_yes(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "--demo", "hgx-h100", "unload-peermem", "--yes")
    assert status == 2
    assert "train.py (alice, Slurm job 4711): 8 processes use GPUs and RDMA" in out
    assert "--disturb hgx-h100" in err
    assert run(capsys, "--demo", "hgx-h100", "unload-peermem", "--disturb", "other")[0] == 2
    status, out, _ = run(capsys, "--demo", "hgx-h100", "unload-peermem", "--disturb", "hgx-h100")
    assert status == 1  # the kernel refuses: a job holds it
    assert "is in use" in out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "explained", "kernel"),
    [
        ("peermem-unknown-symbol-inbox-core", "the kernel's own ib_core is loaded", "Unknown symbol"),
        ("peermem-symbol-version-mismatch", "built against a different version", "disagrees about version"),
        (
            "secure-boot-key-rejected",
            "is not signed with a key that the kernel knows",
            "unavailable key is rejected",
        ),
        ("peermem-parameter-invalid", "are valid for peerdirect_support", "invalid peerdirect_support"),
    ],
)
def test_an_error_of_modprobe_is_explained_with_what_the_kernel_said(
    capsys: pytest.CaptureFixture[str], fault: str, explained: str, kernel: str
) -> None:
    status, out, _ = run(capsys, "--demo", f"hgx-h100+{fault}", "load-peermem", "--yes")
    assert status == 1
    assert explained in " ".join(out.split())
    assert kernel in out.partition("kernel log during this step:")[2]


@pytest.mark.slow
def test_equal_steps_are_folded_and_the_script_and_json_have_all(capsys: pytest.CaptureFixture[str]) -> None:
    demo = "hgx-h100+acs-on"
    _, out, _ = run(capsys, "--demo", demo, "acs-redirect-off", "--dry-run")
    assert "16 switch ports, starting with:" in out
    assert "… 15 more like this" in out
    assert out.count("\n  setpci ") == 1
    assert "--script prints every step" in out
    _, script, _ = run(capsys, "--demo", demo, "acs-redirect-off", "--script")
    assert script.count("\nsetpci ") == 16
    _, told, _ = run(capsys, "--demo", demo, "--json")
    clear = next(load for load in json.loads(told)["actions"] if load["id"] == "acs-redirect-off")
    assert sum(step["argv"][:1] == ["setpci"] for step in clear["steps"]) == 16
    assert not any("group" in step for step in clear["steps"])


@pytest.mark.slow
def test_what_would_cut_the_session_needs_the_host_name(capsys: pytest.CaptureFixture[str]) -> None:
    over_nic = ("--demo", "dgx-a100+ssh-over-nic", "restart-openibd")
    status, out, err = run(capsys, *over_nic, "--yes")
    assert status == 2
    told = " ".join(out.split())
    assert "takes down ens4np0, which carries this SSH session (from 10.0.0.5)" in told
    assert "finish even if the connection drops" in told
    assert "--disturb dgx-a100" in err
    _, elsewhere, _ = run(capsys, "--demo", "dgx-a100", "restart-openibd", "--dry-run")
    assert "takes down" not in elsewhere


def test_an_unknown_action_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(capsys, "--demo", IDLE, "make-coffee\x1b[2J")
    assert status == 3
    assert "no action" in err
    assert "\x1b" not in err


@pytest.mark.slow
def test_an_impossible_action_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(capsys, "--demo", IDLE, "reload-peermem", "--yes")
    assert status == 2
    assert "nothing was run: nvidia_peermem is not loaded" in err
    status, _, err = run(capsys, "--demo", "dgx-spark", "load-peermem", "--yes")
    assert status == 2
    assert "nvidia_peermem cannot be loaded" in err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("demo", "action", "why"),
    [
        ("hgx-h100", "load-modules", "all needed modules are loaded"),
        ("hgx-h100", "load-peermem", "nvidia_peermem is already loaded"),
        ("hgx-h100", "acs-redirect-off", "has a redirect enabled"),
        ("hgx-h100", "acs-redirect-back", "gdrtop has not cleared them"),
        ("hgx-h100", "mrrs", "already 4096 bytes"),
        ("hgx-h100", "persistence-on", "persistence mode is on"),
        ("hgx-h100", "raise-ports", "is disabled"),
        ("hgx-h100", "unpersist-modules", "lists no module"),
        ("hgx-h100", "replace-nv-peer-mem", "nv_peer_mem is not loaded"),
        ("hgx-h100", "fix:nvidia-not-loaded", "nvidia driver is loaded"),
        (IDLE, "unload-peermem", "nvidia_peermem is not loaded"),
    ],
)
def test_an_action_with_nothing_left_to_do_has_succeeded(
    capsys: pytest.CaptureFixture[str], demo: str, action: str, why: str
) -> None:
    """A fleet script runs it on every node, twice: done and refused must differ."""
    status, out, err = run(capsys, "--demo", demo, action, "--yes")
    assert (status, err) == (0, "")
    assert "nothing is left to do" in out
    assert why in " ".join(out.split())
    listed = json.loads(run(capsys, "--demo", demo, "--json")[1])["actions"]
    assert all(offer["done"] for offer in listed if offer["id"] == action)
    status, script, _ = run(capsys, "--demo", demo, action, "--script")
    assert status == 0
    assert subprocess.run(["sh"], input=script, text=True, capture_output=True).returncode == 0


@pytest.mark.parametrize("options", [("--read-only", "do", "--demo", IDLE), ("do", "--root", "{tree}")])
def test_nothing_runs_where_nothing_may(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, options: tuple[str, ...]
) -> None:
    arguments = [option.replace("{tree}", str(tmp_path)) for option in options]
    status = main([*arguments, "load-peermem", "--yes"])
    assert status == 2
    assert "✓ done" not in capsys.readouterr().out


def test_the_script_is_one_that_a_shell_takes(capsys: pytest.CaptureFixture[str]) -> None:
    for action in ("load-peermem", "persist-modules"):
        status, out, _ = run(capsys, "--demo", IDLE, action, "--script")
        assert status == 0
        assert out.startswith("#!/bin/sh\n")
        assert subprocess.run(["sh", "-n"], input=out, text=True).returncode == 0


def test_the_script_of_a_file_writes_that_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    _, out, _ = run(capsys, "--demo", IDLE, "persist-modules", "--script")
    path = tmp_path / "etc" / "gdrtop.conf"
    script = out.replace("/etc/modules-load.d/gdrtop.conf", str(path)).replace(
        "/etc/modules-load.d", str(path.parent)
    )
    shell = ScriptShell(tmp_path)
    assert shell.run(script)[0] == 0
    first = path.read_text()
    assert "nvidia_uvm" in first
    path.write_text("mine\n")
    assert shell.run(script)[0] == 0
    assert path.read_text() == first
    assert Path(f"{path}.before").read_text() == "mine\n"


@pytest.mark.slow
def test_ctrl_c_ends_a_run_after_the_step_under_way(tmp_path: Path) -> None:
    """Of sixteen steps some are done; the rest is not begun, and the node is looked at again."""
    demo = "hgx-h100+acs-on"
    master, slave = pty.openpty()
    argv = [sys.executable, "-m", "tui", "do", "--demo", demo, "acs-redirect-off", "--disturb", "hgx-h100"]
    environment = {**os.environ, "COLUMNS": "120", "NO_COLOR": "1"}
    child = subprocess.Popen(
        argv, cwd=ROOT, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
    )
    os.close(slave)
    out = b""
    deadline = time.monotonic() + 60
    while b"\n3 setpci" not in out.replace(b"\r", b""):
        assert time.monotonic() < deadline, out[-2000:]
        out += os.read(master, 1 << 16)
    child.send_signal(signal.SIGINT)
    while True:
        try:
            piece = os.read(master, 1 << 16)
        except OSError:
            break
        if not piece:
            break
        out += piece
    assert child.wait(60) == 130
    text = out.decode("utf-8", "replace").replace("\r", "")
    assert "■ stopped" in text
    assert "interrupted; the remaining steps were not run" in text
    assert "not run:" in text
    assert "CHECKED AGAIN" in text
    os.close(master)
