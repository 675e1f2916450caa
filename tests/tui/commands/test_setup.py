"""`gdrtop setup`: the list, one step, choices, the script, and running a step."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from probes.checks.judgment import judge
from probes.simulation.host import SimulatedHost
from probes.simulation.node.model.description import simulated_names
from probes.snapshot.examination import examine
from probes.snapshot.verdict import State
from tests.support.documents import valid
from tests.support.script_shell import SHELLCHECK, PlayedCommands, ScriptShell
from tests.support.tiers import usual
from tui.cli import main
from tui.files import NotWritten
from tui.files.append_file import AppendFile
from tui.files.setup_log import OPEN, PATH, PREPARED, SKIP, UNSKIP, DiskSetupLog, SetupLog, record_of


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test goes on where another one stopped."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(["setup", *arguments])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def test_the_list_shows_the_node_the_path_and_every_step(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "--demo", "hgx-h100+acs-on")
    assert status == 1
    assert "GPU driver        570.211.01, open modules" in out
    assert "next: Disable ACS redirects" in out
    assert "▸ Disable ACS redirects" in out
    assert "✓ Load the modules" in out


def test_a_step_shows_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "--demo", "hgx-h100+acs-on", "acs")
    assert status == 1
    assert "setpci -s 0000:17:00.0 ECAP_ACS+6.w=" in out
    assert "undo: setpci" in out


@pytest.mark.slow
def test_a_step_runs_after_its_plan_was_shown(capsys: pytest.CaptureFixture[str]) -> None:
    name = "hgx-h100+acs-on"
    status, out, err = run(capsys, "--demo", name, "acs", "--run")
    assert status == 2
    assert "confirm with --disturb hgx-h100" in err
    status, out, _ = run(capsys, "--demo", name, "acs", "--run", "--disturb", "hgx-h100")
    assert status == 0
    assert "ACS redirect is enabled between GPU and NIC" in out


def test_a_step_that_is_done_runs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "--demo", "hgx-h100", "acs", "--run", "--yes")
    assert (status, out) == (0, "")
    assert "nothing was run; acs is done" in err


def test_a_blocked_step_runs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(capsys, "--demo", "hgx-h100", "measure-all", "--run", "--yes")
    assert status == 2
    assert "blocked: waiting for: Measure one GPU and its NIC" in err


def test_a_wrong_step_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(capsys, "--demo", "hgx-h100", "modulesx")
    assert status == 3
    assert "modules" in err


@pytest.mark.parametrize(
    "arguments", [("acs", "--run", "--json"), ("acs", "--script"), ("--paths", "--json")], ids=" ".join
)
def test_options_of_which_one_would_be_ignored_are_refused(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(capsys, "--demo", "hgx-h100", *arguments)
    assert (status, out) == (3, "")
    assert "gdrtop" in err


@pytest.mark.slow
def test_the_script_stops_at_errors_and_has_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "--demo", "hgx-h100+acs-on", "--script")
    assert status == 0
    assert out.startswith("#!/bin/sh\n")
    assert "set -eu" in out
    assert out.count("setpci -s 0000:17:00.0 ECAP_ACS+6.w=0000:000c\n") == 1
    status, out, err = run(capsys, "--demo", "hgx-h100", "--script")
    assert (status, err) == (0, "")
    assert "Nothing to script: only tests, a reboot or the report are left" in out


def test_the_script_prints_manual_steps_and_stops_there(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    status, script, _ = run(capsys, "--demo", "pcie-l40s+no-gdr-path", "--script")
    assert status == 0
    programs = ("dnf", "dracut", "grubby", "modprobe")
    script = script.replace("/etc/", f"{tmp_path}/etc/")
    status, printed = ScriptShell(tmp_path, programs).run(script)
    assert status == 2
    assert "dnf -y module enable nvidia-driver:open-dkms\n" in printed
    assert printed.index("dnf -y install nvidia-open\n") < printed.index("These steps are yours:")
    assert "   systemctl reboot\n" in printed
    assert printed.endswith("Then check the node: gdrtop check\n")


@pytest.mark.slow
def test_the_script_sets_a_new_node_up_to_the_reboot(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Each command changes the simulated node; only a person can choose the version of Fabric Manager."""
    name = "hgx-b200+new-node"
    _, script, _ = run(capsys, "--demo", name, "--script")
    host, programs = SimulatedHost(name), ("apt-get", "dpkg", "modprobe", "systemctl", "wget")
    with PlayedCommands(host, tmp_path) as node:
        shell = ScriptShell(tmp_path, programs, node)
        status, printed = shell.run(script)
        assert (status, "Install the nvidia-fabricmanager package" in printed) == (2, True)
        following = printed.rpartition("argument ")[2].partition(".")[0]
        assert host.perform(("apt-get", "-y", "install", "nvidia-fabricmanager=580.159.03*")).exit_status == 0
        status, printed = shell.run(script, following)
    assert "gdrtop bench --list" in printed  # the last step is a person's again
    verdict = judge(examine(host)).verdict
    assert (status, verdict.state) == (2, State.READY)


SCRIPTED = [
    "hgx-h100+iommu-translated,acs-on",
    "pcie-l40s+no-gdr-path",
    "dgx-a100+peermem-unknown-symbol-inbox-core",
]


@pytest.mark.slow
@pytest.mark.parametrize("name", usual([*SCRIPTED, *simulated_names()], set(SCRIPTED)))
def test_shellcheck_finds_nothing_in_the_script(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    status, script, told = run(capsys, "--demo", name, "--script")
    if not script:  # nothing can be set up, or by no command
        assert status in (2, 3)
        assert "cannot work on this node" in told or "no command can complete" in told
        return
    file = tmp_path / "setup.sh"
    file.write_text(script)
    ended = subprocess.run([SHELLCHECK, file], text=True, capture_output=True)
    assert (ended.returncode, ended.stdout) == (0, "")


def test_the_script_has_what_an_admin_runs_and_no_module_twice(capsys: pytest.CaptureFixture[str]) -> None:
    _, script, _ = run(capsys, "--demo", "dgx-a100+peermem-unknown-symbol-inbox-core", "--script")
    commands = script.split("\n")
    assert commands.index("depmod -a") < commands.index("modprobe nvidia_peermem")
    assert commands.count("modprobe nvidia_peermem") == 1
    _, script, _ = run(capsys, "--demo", "hgx-h100+iommu-translated", "--script")
    assert "\nupdate-grub\n" in script
    assert script.index("update-grub") < script.index("systemctl reboot")


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [(), ("--paths",), ("--json",), ("--script",), ("modules",), ("modules", "--run"), ("--path", "dmabuf")],
    ids=" ".join,
)
def test_where_it_can_never_work_setup_does_not_apply(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    status, out, err = run(capsys, "--demo", "slingshot+confidential-computing-on", *arguments)
    assert status == 3
    if "--json" not in arguments:
        assert (out + err).count("GPUDirect RDMA cannot work on this node") <= 1
        assert "confidential computing keeps NICs out of GPU memory" in out + err


def test_a_dgx_spark_is_set_up_for_its_own_path(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "--demo", "dgx-spark")
    assert status == 1
    assert "path through host memory, by design: GB10" in out
    assert "cannot work on this node" not in out
    assert "ACS" not in out
    assert "next: Set the NCCL environment" in " ".join(out.split())


def test_a_gpu_that_pci_ids_does_not_know_has_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "--demo", "dgx-spark")
    assert "1 × NVIDIA GB10" in out


@pytest.mark.slow
def test_only_a_step_or_a_choice_is_written_down(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Listing the steps changes nothing, as all looking."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for arguments in ((), ("--json",), ("--script",), ("acs",), ("acs", "--run")):
        run(capsys, "--demo", "hgx-h100", *arguments)
    assert not list(tmp_path.iterdir())
    run(capsys, "--demo", "hgx-h100", "--skip", "ports")
    (path,) = tmp_path.rglob("setup.jsonl")
    assert len(DiskSetupLog(str(path), roots=f"{tmp_path}/absent").record().boots) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", usual(simulated_names(), {"hgx-h100"}))
def test_json_is_what_its_schema_says(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "--demo", name, "--json")
    document = valid("setup", out)
    assert document["steps"][0]["id"] == "hardware"


@pytest.mark.slow
def test_a_bandwidth_step_runs_its_tests(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "--demo", "hgx-h100", "measure-host", "--run", "--yes")
    assert status == 0
    assert "host memory" in out


def test_a_test_of_gpu_memory_is_not_done_by_one_of_host_memory(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "--demo", "hgx-h100+perftest-without-cuda", "measure-pair")
    assert "measured on" not in out
    assert "blocked" in out


# What is remembered


def test_choices_last_in_the_log(tmp_path: object) -> None:
    path = f"{tmp_path}/state/setup.jsonl"
    log = DiskSetupLog(path, roots=f"{tmp_path}/absent")
    log.add(PATH, "nvidia-peermem")
    log.add(SKIP, "skipped by alice on 2026-11-22", "ports")
    again = DiskSetupLog(path, roots=f"{tmp_path}/absent").record()
    assert again.path == "nvidia-peermem"
    assert again.skipped == {"ports": "skipped by alice on 2026-11-22"}
    log.add(UNSKIP, "", "ports")
    log.add(PATH, "")
    assert (log.record().path, log.record().skipped) == ("", {})


@pytest.mark.slow
def test_who_chose_the_path_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "--demo", "hgx-h100", "--path", "peermem")
    assert status == 1
    assert "path nvidia-peermem, chosen by " in out
    assert "not the recommended DMA-BUF" in out


def test_a_boot_in_which_a_step_was_open_stays_open() -> None:
    log = SetupLog()
    log.add(PREPARED, "boot-1")
    log.add(OPEN, "boot-2")
    log.add(PREPARED, "boot-2")
    assert log.record().boots == {"boot-1": False, "boot-2": True}


@pytest.mark.parametrize(
    "line", ["", "{", "[]", "null", '{"kind": 3}', '{"kind": "skip", "step": ["x"]}', "[" * 9000, '"\\u0000"']
)
def test_lines_that_are_none_of_ours_are_left_out(line: str) -> None:
    good = json.dumps({"kind": PATH, "step": "", "value": "DMA-BUF"})
    assert record_of([line, good]).path == "DMA-BUF"


def test_control_characters_of_the_log_do_not_reach_the_screen() -> None:
    log = SetupLog()
    log.add(SKIP, "\x1b]0;x\x07 by eve", "ports")
    assert "\x1b" not in (log.record().skipped or {})["ports"]


@pytest.mark.slow
def test_a_choice_that_cannot_be_saved_is_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc")
    status, _, err = run(capsys, "--demo", "hgx-h100", "--path", "peermem")
    assert status == 3
    assert "the setup log /proc/gdrtop/simulated/hgx-h100/setup.jsonl cannot be written" in err


def test_with_a_strict_umask_others_can_still_read_roots_choices(tmp_path: object) -> None:
    path = f"{tmp_path}/log/setup.jsonl"
    before = os.umask(0o077)
    try:
        AppendFile(path, "the setup log", NotWritten, 4096, all_may_read=True).append("{}")
    finally:
        os.umask(before)
    assert os.stat(path).st_mode & 0o777 == 0o644
    assert os.stat(os.path.dirname(path)).st_mode & 0o777 == 0o755


def test_a_step_is_rehearsed_on_a_copy_and_nothing_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    node = ["setup", "--demo", "pcie-l40s+nvidia-not-loaded"]
    main([*node, "--json"])
    before = capsys.readouterr().out
    assert main([*node, "modules", "--rehearse"]) == 0
    shown = capsys.readouterr().out
    assert "EXPECTED AFTERWARDS (rehearsed on a copy; this node was not changed)" in shown
    assert "fixed   ✓ nvidia-not-loaded" in shown
    main([*node, "--json"])
    steps = [
        [step["state"] for step in json.loads(text)["steps"]] for text in (before, capsys.readouterr().out)
    ]
    assert steps[0] == steps[1]


def test_what_has_no_commands_cannot_be_rehearsed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["setup", "--demo", "pcie-l40s", "measure-host", "--rehearse"]) == 2
    assert "measure-host has no commands to rehearse" in capsys.readouterr().err
    assert main(["setup", "--demo", "pcie-l40s", "--rehearse"]) == 3
    assert "--rehearse needs a STEP" in capsys.readouterr().err
