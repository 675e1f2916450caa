"""A run that may cut the terminal off goes on without it, and the log has its end."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from probes.base.plan import FileChange, Plan, Step
from probes.base.unknown import Reason, Unknown
from tests.support.command_line import ROOT
from tests.tui.actions.test_runner import free, until
from tui.actions import supervisor
from tui.actions.audit_log import Actor, AuditLogFile, past_runs
from tui.actions.events import Printed, RunBegan, RunEnded, RunEvent, RunOutcome, StepBegan, StepEnded
from tui.actions.supervisor import DetachedRun, Order
from tui.runtime.lock import ActionLock

HERE = Actor("h100-07", "boot-1", "root (sudo by alice)", 1)
# The supervisor is a program of its own: what its allow-list takes is said there.
ALLOWED = "from tui.actions import manual_steps; manual_steps._PROGRAMS |= {'sh'}; "


def step(script: str) -> Step:
    return Step("tries it", ("sh", "-c", script), needs_root=False)


def order(tmp_path: Path, *steps: Step) -> Order:
    return Order("test", Plan("Test", steps), HERE, str(tmp_path / "log.jsonl"), str(tmp_path / "run"))


@pytest.fixture(autouse=True)
def harmless_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    head, _, rest = supervisor.PROGRAM.partition("from ")
    monkeypatch.setattr(supervisor, "PROGRAM", f"{head}{ALLOWED}from {rest}")
    monkeypatch.setattr(supervisor, "SYSTEMD", "/nothing/is/here")


def log_of(tmp_path: Path) -> list[str]:
    return AuditLogFile(str(tmp_path / "log.jsonl")).lines()


def test_a_detached_run_is_followed_to_its_end(tmp_path: Path) -> None:
    events: list[RunEvent] = []
    steps = (step("echo one; echo two"), step("exit 3"), step("echo never"))
    ended = DetachedRun(order(tmp_path, *steps), events.append).run()
    assert ended.outcome is RunOutcome.FAILED
    assert ended.left == steps[2:]
    assert [event.text for event in events if isinstance(event, Printed)] == ["one", "two"]
    assert [event.number for event in events if isinstance(event, StepBegan)] == [1, 2]
    began = next(event for event in events if isinstance(event, RunBegan))
    assert "detached from this terminal (process " in began.as_root
    (run,) = past_runs(log_of(tmp_path))
    assert [step.outcome for step in run.steps] == [RunOutcome.DONE, RunOutcome.FAILED]
    assert run.actor.user == HERE.user
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["actions.lock"]


def test_only_one_detached_run_at_a_time(tmp_path: Path) -> None:
    with ActionLock(str(tmp_path / "run")):
        ended = DetachedRun(order(tmp_path, step("true")), lambda event: None).run()
    assert ended.outcome is RunOutcome.REFUSED
    assert f"pid {os.getpid()}" in ended.why
    assert log_of(tmp_path) == []


def test_quitting_ends_the_following_and_not_the_run(tmp_path: Path) -> None:
    go = tmp_path / "go"
    wait = step(f"echo begun; until [ -e {go} ]; do sleep 0.05; done")
    runs: list[DetachedRun] = []

    def leave(event: RunEvent) -> None:
        if isinstance(event, Printed):
            runs[0].stop("gdrtop was left")

    runs.append(DetachedRun(order(tmp_path, wait, step(f"touch {tmp_path}/after")), leave))
    ended = runs[0].run()
    assert ended.outcome is RunOutcome.STILL_RUNNING
    assert "still running without gdrtop" in ended.why
    assert not free(str(tmp_path / "run"))
    go.touch()
    until((tmp_path / "after").exists)
    until(lambda: [run.outcome for run in past_runs(log_of(tmp_path))] == [RunOutcome.DONE])


def test_a_removed_order_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that ends without having claimed its order."""
    monkeypatch.setattr(supervisor, "PROGRAM", "")
    ended = DetachedRun(order(tmp_path, step(f"touch {tmp_path}/never")), lambda event: None).run()
    assert ended.outcome is RunOutcome.REFUSED
    assert "did not start" in ended.why
    assert list((tmp_path / "run").iterdir()) == []
    supervisor.main(str(tmp_path / "run" / "run-1.order"))
    assert not (tmp_path / "never").exists()


CHILD = """
import sys
sys.path[:] = [{root!r}, *sys.path]
from pathlib import Path
import tests.tui.actions.test_supervisor as test
from tui.actions import supervisor
from tui.actions.supervisor import DetachedRun
supervisor.SYSTEMD = "/nothing/is/here"
supervisor.PROGRAM = {program!r}
tmp = Path({tmp!r})
unload = test.step(f"echo unloaded; until [ -e {{tmp}}/go ]; do sleep 0.05; done; echo to nobody")
load = test.step(f"touch {{tmp}}/loaded")
order = test.order(tmp, unload, load)
DetachedRun(order, lambda event: print(event, flush=True)).run()
"""


@pytest.mark.slow
def test_a_run_continues_after_the_terminal_has_gone(tmp_path: Path) -> None:
    """A session whose terminal closes and whose processes are killed in the middle, as by a dropped SSH."""
    code = CHILD.format(root=str(ROOT), program=supervisor.PROGRAM, tmp=str(tmp_path))
    pid, master = pty.fork()  # a session of its own, with this terminal
    if pid == 0:
        os.chdir(ROOT)
        os.execv(sys.executable, [sys.executable, "-c", code])
    shown = b""
    while b"Printed(text='unloaded')" not in shown:
        shown += os.read(master, 4096)
    os.close(master)  # the kernel sends SIGHUP to the session
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert not (tmp_path / "loaded").exists()
    (tmp_path / "go").touch()
    until((tmp_path / "loaded").exists)
    until(lambda: [run.outcome for run in past_runs(log_of(tmp_path))] == [RunOutcome.DONE])
    (run,) = past_runs(log_of(tmp_path))
    assert [step.outcome for step in run.steps] == [RunOutcome.DONE, RunOutcome.DONE]
    until(lambda: free(str(tmp_path / "run")))


def test_a_killed_supervisor_leaves_an_unknown_outcome(tmp_path: Path) -> None:
    def kill(event: RunEvent) -> None:
        if isinstance(event, Printed):
            os.kill(int(event.text), signal.SIGKILL)

    ended = DetachedRun(order(tmp_path, step("echo $PPID; sleep 0.2")), kill).run()
    assert ended.outcome is RunOutcome.UNKNOWN
    assert "exited before the run finished" in ended.why


def test_with_systemd_the_run_is_a_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """systemd-run, played: it starts the program and ends."""
    argv: list[list[str]] = []

    def start(words: list[str], environment: dict[str, str]) -> bool:
        argv.append(words)
        subprocess.Popen(words[words.index("--") + 1 :], env=environment, start_new_session=True)
        return True

    monkeypatch.setattr(supervisor, "_succeeds", start)
    monkeypatch.setattr(supervisor, "SYSTEMD", "/")
    monkeypatch.setattr(supervisor, "find_command", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr("tui.actions.supervisor.os.geteuid", lambda: 0)
    if os.getuid() != 0:
        pytest.skip("root's own directory cannot be played by another user")
    events: list[RunEvent] = []
    ended = DetachedRun(order(tmp_path, step("true")), events.append).run()
    assert ended.outcome is RunOutcome.DONE
    assert argv[0][:3] == ["/usr/bin/systemd-run", "--quiet", "--collect"]
    assert any("unit gdrtop-run-" in event.as_root for event in events if isinstance(event, RunBegan))


def test_a_unit_that_does_not_start_is_replaced_by_a_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SELinux may refuse it: systemd-run has ended with 0, and nothing runs."""
    monkeypatch.setattr(supervisor, "_succeeds", lambda argv, environment: True)
    monkeypatch.setattr(supervisor, "SYSTEMD", "/")
    monkeypatch.setattr(supervisor, "UNIT_SECONDS", 0.0)
    monkeypatch.setattr(supervisor, "find_command", lambda name: f"/usr/bin/{name}")
    if os.getuid() != 0:
        monkeypatch.setattr(supervisor.DetachedRun, "_start_unit", lambda self, unit, order: True)
    events: list[RunEvent] = []
    ended = DetachedRun(order(tmp_path, step("true")), events.append).run()
    assert ended.outcome is RunOutcome.DONE
    assert any("(process " in event.as_root for event in events if isinstance(event, RunBegan))


def test_a_truncated_event_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = (
        "from tui.actions import supervisor;"
        " supervisor.json.dumps = lambda fields, dumps=supervisor.json.dumps:"
        " dumps(fields)[:9] if fields.get('event') == 'printed' else dumps(fields); from "
    )
    head, _, rest = supervisor.PROGRAM.partition("from ")
    monkeypatch.setattr(supervisor, "PROGRAM", f"{head}{broken}{rest}")
    events: list[RunEvent] = []
    ended = DetachedRun(order(tmp_path, step("echo half")), events.append).run()
    assert ended.outcome is RunOutcome.DONE
    assert not [event for event in events if isinstance(event, Printed)]


def test_a_supervisor_that_dies_with_its_order_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "PROGRAM", "import os, sys; os.unlink(sys.argv[1])")
    ended = DetachedRun(order(tmp_path, step("true")), lambda event: None).run()
    assert ended.outcome is RunOutcome.UNKNOWN


@pytest.mark.parametrize(
    "event",
    [
        Printed("a \x1b[31mline"),
        StepEnded(1, RunOutcome.FAILED, 1, 2.5, "why", ("one", "two")),
        StepEnded(2, RunOutcome.STILL_RUNNING, None, 2.5, "", Unknown(Reason.NEEDS_ROOT, "/dev/kmsg", "no")),
        RunEnded(RunOutcome.REFUSED, "no"),
    ],
)
def test_events_survive_the_json(event: RunEvent) -> None:
    sent = json.loads(json.dumps(supervisor.event_json(event)))
    assert supervisor.event_of(sent, Plan("Test", (step("true"),)), "") == event


def test_an_order_survives_the_json(tmp_path: Path) -> None:
    changes = Step("writes", file=FileChange("/etc/x.conf", "text"), group="files")
    undone = Step("runs", ("ip", "link"), undo=("ip", "link", "x"))
    sent = order(tmp_path, changes, undone)
    assert supervisor.CODEC.decode(Order, json.loads(json.dumps(supervisor.CODEC.encode(sent)))) == sent
