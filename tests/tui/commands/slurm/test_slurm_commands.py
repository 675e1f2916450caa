"""What slurmd runs: Prolog, Epilog and HealthCheckProgram, on simulated nodes that Slurm knows."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from probes.base.origin import Origin, Source
from probes.base.unknown import Reason, Unknown
from probes.checks.judgment import Judgment, conclude
from probes.simulation.faults.catalogue import FAULTS
from probes.simulation.host import SimulatedHost
from probes.slurm.slurm_node import read_node
from probes.snapshot.examination import examine
from tests.support.command_line import ROOT
from tests.support.pilot import SteppedClock
from tests.support.tiers import USUAL_FAULTS, usual
from tui.actions.dispatcher import Dispatcher
from tui.actions.rehearsal import SimulatedCommands
from tui.cli import main
from tui.commands.check import CheckOptions, examine_host, write_check
from tui.commands.slurm.session import Session
from tui.runtime.lock import ActionLock

LOST = "dgx-a100+xid-79-fell-off-bus"  # GPU 5
REASON = "gdrtop: xid-79-fell-off-bus 0000:86:00.0"
Slurmd = Callable[..., tuple[int, str]]


def node(name: str) -> SimulatedHost:
    return SimulatedHost(name, clock=SteppedClock())


@pytest.fixture(autouse=True)
def job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    monkeypatch.setenv("SLURM_JOB_GPUS", "5")
    monkeypatch.setenv("SLURMD_NODENAME", "dgx-a100")
    monkeypatch.setattr("tui.commands.slurm.session.write_syslog", lambda *_: None)
    monkeypatch.setattr("tui.cli.write_syslog", lambda *_: None)


@pytest.fixture
def slurmd(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Slurmd:
    def run(host: SimulatedHost, command: str, *options: str) -> tuple[int, str]:
        module = command.replace("-", "_")
        monkeypatch.setattr(f"tui.commands.slurm.{module}.open_host", lambda _: host)
        return main([command, *options]), capsys.readouterr().err

    return run


def test_a_job_that_gets_a_lost_gpu_does_not_start(slurmd: Slurmd) -> None:
    host = node(LOST)
    status, told = slurmd(host, "prolog")
    assert status == 1
    assert "prolog, job 4711: xid-79-fell-off-bus: " in told
    assert "Drain dgx-a100: done" in told
    assert host.tree.drained_for == REASON


def test_a_job_with_other_gpus_starts(slurmd: Slurmd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_GPUS", "0-4")
    host = node(LOST)
    assert slurmd(host, "prolog") == (0, "")
    assert host.tree.drained_for is None


def test_a_job_without_gpus_starts_without_a_look_at_the_node(
    slurmd: Slurmd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_JOB_GPUS")
    monkeypatch.setattr("tui.commands.slurm.prolog.examine", lambda *_, **__: pytest.fail("it is read"))
    assert slurmd(node(LOST), "prolog") == (0, "")


def test_other_warnings_never_stop_a_job(slurmd: Slurmd) -> None:
    assert slurmd(node("dgx-a100+acs-on"), "prolog")[0] == 0


@pytest.mark.parametrize("command", ["prolog", "health-check"])
def test_what_a_job_has_set_itself_keeps_no_other_job_away(slurmd: Slurmd, command: str) -> None:
    host = node("dgx-a100+nccl-ib-disabled")
    assert status_of_check(host) == 2
    assert slurmd(host, command) == (0, "")
    assert host.tree.drained_for is None


def checked(host: SimulatedHost, **options: Any) -> tuple[int, str]:
    """What check says, of the node with its jobs, and its exit status."""
    out = io.StringIO()
    return write_check(host, out, CheckOptions(read_only=True, **options)), out.getvalue()


@pytest.mark.parametrize(
    "fault", usual(FAULTS, USUAL_FAULTS | {"gpu-recovery-action", "nccl-ib-disabled", "job-tcp"})
)
def test_every_output_has_the_same_answer_to_whether_a_job_may_start(
    slurmd: Slurmd, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    host = node(f"{FAULTS[fault].on}+{fault}")
    monkeypatch.setenv("SLURM_JOB_GPUS", "0-15")
    monkeypatch.setenv("SLURMD_NODENAME", host.tree.description.hostname)
    examination = examine_host(host)
    monkeypatch.setattr("tui.commands.check.examine_host", lambda *_: examination)
    status, reason = checked(host, consumer="slurm")
    is_kept_away = bool(reason)
    assert status == checked(host, consumer="nhc")[0] == int(is_kept_away)
    health = slurmd(host, "health-check", "--dry-run")[1]
    # Some of the nodes are not in Slurm.
    told = [line for line in health.splitlines() if not re.search("in Slurm is unknown|no verdict", line)]
    assert bool(told) == is_kept_away, health
    assert ("would do: Drain" in health) == (is_kept_away and "in Slurm is unknown" not in health)
    action = checked(host, severity_map={})[1].split("\n")[0]
    assert (action in ("isolate", "reset")) == is_kept_away
    if is_kept_away:  # a node that is DEGRADED, too, is a problem to Node Problem Detector
        assert checked(host, consumer="npd")[0] == 1
    said = slurmd(host, "prolog", "--dry-run")[1]
    assert ("would exit with 1" in said) == is_kept_away, said


def test_a_broken_node_that_no_finding_explains_gets_no_job(
    slurmd: Slurmd, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = node("dgx-a100+no-gdr-path")
    verdict = conclude(examine(host).usability, ())
    monkeypatch.setattr("tui.commands.slurm.prolog.judge", lambda _: Judgment(verdict))
    monkeypatch.setenv("SLURMD_NODENAME", host.tree.description.hostname)
    status, told = slurmd(host, "prolog")
    assert status == 1, told
    assert host.tree.drained_for is not None
    assert host.tree.drained_for.startswith("gdrtop: BROKEN: ")


@pytest.mark.parametrize(
    ("gres", "gpus", "status"),
    [
        # GPU 5, /dev/nvidia5, is lost.
        ("File=/dev/nvidia[4-7]", "0", 0),
        ("File=/dev/nvidia[4-7]", "1", 1),
        ("File=/dev/nvidia[4-7]", "5", 0),
        ("File=/dev/nvidia[0-7]", "5", 1),
        ("File=/dev/nvidia5", "0", 1),
    ],
)
def test_gres_conf_says_which_gpus_a_job_gets(
    slurmd: Slurmd, monkeypatch: pytest.MonkeyPatch, gres: str, gpus: str, status: int
) -> None:
    host = node("hgx-h100+xid-79-fell-off-bus")
    host.tree.add("/etc/slurm/gres.conf", f"NodeName=hgx-h[1-200] Name=gpu {gres}\n")
    monkeypatch.setenv("SLURM_JOB_GPUS", gpus)
    monkeypatch.setenv("SLURMD_NODENAME", "hgx-h100")
    ended, told = slurmd(host, "prolog", "--no-drain")
    assert ended == status, told
    assert "unknown" not in told


@pytest.mark.parametrize(("gpus", "status"), [("5", 1), ("4", 1), ("0", 0)])
def test_of_an_unknown_order_every_gpu_counts_that_the_job_can_get(
    slurmd: Slurmd, monkeypatch: pytest.MonkeyPatch, gpus: str, status: int
) -> None:
    """GPU 5 is lost; by device file it is the fifth, because its file and that of GPU 4 are exchanged."""
    host = node(LOST)
    for gpu, minor in ((4, 5), (5, 4)):
        path = f"/proc/driver/nvidia/gpus/{host.tree.gpus[gpu].bdf}/information"
        text = host.read(path)
        assert isinstance(text, str)
        host.tree.add(path, text.replace(f"Device Minor: \t {gpu}", f"Device Minor: \t {minor}"))
    host.tree.add("/etc/slurm/gres.conf", "AutoDetect=nvml\n")
    monkeypatch.setenv("SLURM_JOB_GPUS", gpus)
    ended, told = slurmd(host, "prolog")
    assert ended == status, told
    assert host.tree.drained_for == (f"{REASON} (order of GPUs unknown)" if status else None)
    assert ("which GPUs the job gets is unknown" in told) == bool(status)


def status_of_check(host: SimulatedHost) -> int:
    return write_check(host, io.StringIO(), CheckOptions())


def test_health_check_and_check_for_slurm_give_the_same_reason(slurmd: Slurmd) -> None:
    for name in (LOST, "dgx-a100", "dgx-a100+no-gdr-path", "dgx-a100+nccl-ib-disabled"):
        host, out = node(name), io.StringIO()
        write_check(node(name), out, CheckOptions(consumer="slurm"))
        slurmd(host, "health-check")
        assert out.getvalue().replace(f"SIMULATED {name}: ", "").strip() == (host.tree.drained_for or "")


def test_a_dry_run_says_what_it_would_do(slurmd: Slurmd) -> None:
    host = node(LOST)
    status, told = slurmd(host, "prolog", "--dry-run")
    assert status == 0
    assert "would do: Drain dgx-a100" in told
    assert "would exit with 1" in told
    assert host.tree.drained_for is None


def test_only_logging_stops_no_job(slurmd: Slurmd) -> None:
    host = node(LOST)
    status, told = slurmd(host, "prolog", "--log-only", "--heal")
    assert status == 0
    assert "xid-79-fell-off-bus: " in told
    assert host.tree.drained_for is None


def test_the_reason_of_somebody_else_stays(slurmd: Slurmd) -> None:
    host = node(LOST)
    host.tree.drained_for = "kernel update tonight"
    status, told = slurmd(host, "prolog")
    assert status == 1
    assert "dgx-a100 is draining already, with the reason “kernel update tonight”" in told
    assert host.tree.drained_for == "kernel update tonight"


@pytest.mark.slow
def test_a_missing_module_is_loaded_only_if_asked(slurmd: Slurmd) -> None:
    host = node("dgx-a100+no-gdr-path")
    assert slurmd(host, "prolog", "--no-drain")[0] == 1
    status, told = slurmd(host, "prolog", "--heal")
    assert status == 0, told
    assert "Load missing modules: done" in told
    assert host.tree.drained_for is None


def test_without_slurm_the_job_is_stopped_and_the_node_left_to_slurmd(
    slurmd: Slurmd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURMD_NODENAME")
    status, told = slurmd(node(LOST), "prolog")
    assert status == 1
    assert "SLURMD_NODENAME is not set" in told


@pytest.mark.slow
def test_the_health_check_drains_and_resumes_its_own(slurmd: Slurmd) -> None:
    host = node(LOST)
    assert slurmd(host, "health-check")[0] == 0
    assert host.tree.drained_for == REASON
    healthy = node("dgx-a100")
    healthy.tree.drained_for = REASON
    status, told = slurmd(healthy, "health-check")
    assert status == 0
    assert "Resume dgx-a100: done" in told
    assert healthy.tree.drained_for is None


def test_the_health_check_resumes_no_other_node(slurmd: Slurmd) -> None:
    healthy = node("dgx-a100")
    healthy.tree.drained_for = "kernel update tonight"
    assert slurmd(healthy, "health-check") == (0, "")
    assert healthy.tree.drained_for == "kernel update tonight"


@pytest.mark.parametrize("command", ["prolog", "epilog", "health-check"])
def test_a_mistake_in_its_options_drains_no_node(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--nonsense"]) == 0
    assert "which says nothing about the node" in capsys.readouterr().err


def test_a_crash_drains_no_node(slurmd: Slurmd, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(_: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr("tui.commands.slurm.prolog.examine", crash)
    monkeypatch.setattr("tui.files.crash_file.describe_crash", lambda error: f"crashed: {error}")
    status, told = slurmd(node(LOST), "prolog")
    assert status == 0
    assert "gdrtop failed with status 70" in told


@pytest.mark.slow
def test_a_node_that_hangs_ends_in_time(tmp_path: Path) -> None:
    hang = "import time, sys; import tui.commands.slurm.prolog as p; "
    hang += "p.examine = lambda *_, **__: time.sleep(60); "
    hang += "from tui.cli import main; sys.exit(main(['--demo', 'dgx-a100', 'prolog', '--limit', '1']))"
    began = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-c", hang],
        cwd=ROOT,
        env={"SLURM_JOB_GPUS": "0", "SLURM_JOB_ID": "1", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert ended.returncode == 0
    assert "no result within 1 s" in ended.stderr
    assert time.monotonic() - began < 40
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SimulatedHost:
    """A simulated node that says it is this machine."""
    monkeypatch.setattr("tui.files.job_file.ROOTS_DIRECTORY", str(tmp_path / "run"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("tui.files.job_file.why_not_as_root", lambda _: "")
    host = node("dgx-a100")
    host.origin = Origin(Source.LIVE)
    return host


@pytest.fixture
def slurm_here(here: SimulatedHost, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SimulatedHost:
    """The same with a lost GPU, where another gdrtop has the lock and no log can be written."""
    (tmp_path / "log").write_text("a file where the directory should be")
    monkeypatch.setattr(
        "tui.actions.dispatcher.own_log", lambda _="": str(tmp_path / "log" / "actions.jsonl")
    )
    monkeypatch.setattr("tui.actions.dispatcher.why_no_root", lambda: "")
    monkeypatch.setattr("tui.runtime.lock.runtime_directory", lambda: str(tmp_path / "lock"))
    monkeypatch.setattr("tui.files.job_file.differences_directory", lambda: str(tmp_path / "saved" / "jobs"))
    host = node(LOST)
    host.origin = here.origin
    monkeypatch.setattr(Dispatcher, "_real", lambda *_: SimulatedCommands(host))
    return host


def test_a_node_is_drained_while_another_gdrtop_has_the_lock_and_the_log_is_full(
    slurmd: Slurmd, slurm_here: SimulatedHost
) -> None:
    with ActionLock():
        status, told = slurmd(slurm_here, "prolog")
    assert status == 1
    assert slurm_here.tree.drained_for == REASON
    assert "Drain dgx-a100: done (not logged: the log " in told


def test_the_reason_of_slurmd_is_cleared_where_the_prolog_could_not_give_its_own(
    slurmd: Slurmd, slurm_here: SimulatedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    healthy = node("dgx-a100")
    healthy.origin = slurm_here.origin
    monkeypatch.setattr(Dispatcher, "_real", lambda *_: SimulatedCommands(healthy))
    healthy.tree.drained_for = "Prolog error"
    assert slurmd(healthy, "health-check")[0] == 0
    assert healthy.tree.drained_for == "Prolog error", "it may be that of another prolog"
    silent = Unknown(Reason.TIMED_OUT, "sinfo")
    monkeypatch.setattr("tui.commands.slurm.session.read_node", lambda *_: silent)
    assert slurmd(slurm_here, "prolog")[0] == 1
    monkeypatch.setattr("tui.commands.slurm.session.read_node", read_node)
    assert "Resume dgx-a100: done" in slurmd(healthy, "health-check")[1]
    assert healthy.tree.drained_for is None
    slurmd(healthy, "health-check")  # sees the node without this reason
    healthy.tree.drained_for = "Prolog error"
    assert slurmd(healthy, "health-check")[0] == 0
    assert healthy.tree.drained_for == "Prolog error"


@pytest.mark.parametrize("name", ["slurm_node", "carry_out"])
def test_what_fails_after_the_decision_does_not_change_it(
    name: str, slurmd: Slurmd, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Session, name, fail)
    status, told = slurmd(node(LOST), "prolog")
    assert status == 1
    assert "xid-79-fell-off-bus: " in told
    assert "an error in gdrtop: MemoryError" in told


def test_the_system_log_comes_before_stderr(
    slurmd: Slurmd, slurm_here: SimulatedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    logged: list[str] = []
    monkeypatch.setattr("tui.commands.slurm.session.write_syslog", lambda line, _: logged.append(line))
    monkeypatch.setattr(sys.stderr, "write", fail)
    assert slurmd(slurm_here, "prolog")[0] == 1
    assert any("xid-79-fell-off-bus: " in line for line in logged)


def test_the_epilog_saves_what_the_ports_did(slurmd: Slurmd, here: SimulatedHost, tmp_path: Path) -> None:
    saved = tmp_path / "jobs"
    assert slurmd(here, "prolog") == (0, "")
    clock = here._clock
    assert isinstance(clock, SteppedClock)
    clock.now += 60.0
    assert slurmd(here, "epilog", "--save", str(saved))[0] == 0
    (path,) = saved.iterdir()
    assert path.name == "job-4711.json"
    document = json.loads(path.read_text())
    assert document["job"] == "4711"
    assert document["seconds"] == pytest.approx(60.0)
    assert any(port["sent_bytes"] for port in document["ports"])
    assert not list((tmp_path / "run").glob("*"))


def test_an_epilog_without_a_prolog_says_so(slurmd: Slurmd, here: SimulatedHost, tmp_path: Path) -> None:
    status, told = slurmd(here, "epilog", "--save", str(tmp_path / "jobs"))
    assert status == 0
    assert "job-4711.json does not exist" in told


@pytest.mark.slow
def test_only_the_newest_files_are_kept(
    slurmd: Slurmd, here: SimulatedHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tui.files.job_file.MOST_DIFFERENCES", 2)
    saved = tmp_path / "jobs"
    saved.mkdir()
    (saved / "notes.txt").write_text("mine")
    for number in range(4):
        monkeypatch.setenv("SLURM_JOB_ID", str(number))
        slurmd(here, "prolog")
        slurmd(here, "epilog", "--save", str(saved))
        os.utime(saved / f"job-{number}.json", (number, number))
    assert sorted(path.name for path in saved.iterdir()) == ["job-2.json", "job-3.json", "notes.txt"]
