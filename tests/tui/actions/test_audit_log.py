"""The log says what was begun and how it ended, and what can be taken back."""

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.plan import FileChange, Plan
from probes.simulation.faults.catalogue import FAULTS
from probes.simulation.host import SimulatedHost
from tests.support.plans import offers_on
from tests.support.sample_plan import LOAD, PLAN, WRITE
from tests.support.tiers import USUAL_FAULTS, usual
from tui.actions.audit_log import (
    Actor,
    Audit,
    AuditError,
    AuditLogFile,
    MemoryLog,
    PastRun,
    is_undone,
    own_log,
    past_runs,
    undo_plan,
)
from tui.actions.dispatcher import Dispatcher
from tui.actions.events import RunOutcome
from tui.actions.manual_steps import runnable
from tui.screens.history import HistoryState
from widgets.base.lines import plain
from widgets.doctor.plan import consequences

HERE = Actor("h100-07", "boot-1", "root", 4242)


def run_of(log: MemoryLog, action: str = "load-peermem", *, ends: bool = True) -> None:
    audit = Audit(log, HERE, clock=lambda: 1_700_000_000.0 + len(log.lines()))
    audit.begin(action, PLAN)
    audit.begin_step(1, LOAD, "")
    audit.end_step(1, RunOutcome.DONE, 0, 0.25, "")
    audit.begin_step(2, WRITE, "/etc/modules-load.d/gdrtop.conf.before-x")
    if ends:
        audit.end_step(2, RunOutcome.FAILED, 1, 0.1, "the disk is full")
        audit.end(RunOutcome.FAILED, "step 2: the disk is full")


def test_every_line_is_json_with_time_user_and_command() -> None:
    log = MemoryLog()
    run_of(log)
    lines = [json.loads(line) for line in log.lines()]
    assert [line["event"] for line in lines] == ["begin", "step", "step end", "step", "step end", "end"]
    assert lines[0]["user"] == "root"
    assert lines[0]["host"] == "h100-07"
    assert lines[1]["argv"] == ["modprobe", "nvidia_peermem"]
    assert lines[2]["exit_status"] == 0
    assert all(line["time"].startswith("2023-11-14T") for line in lines)
    assert len({line["run"] for line in lines}) == 1


def test_a_run_is_read_as_it_was_logged() -> None:
    log = MemoryLog()
    run_of(log)
    (run,) = past_runs(log.lines())
    assert (run.action, run.title, run.outcome) == ("load-peermem", "Load nvidia_peermem", RunOutcome.FAILED)
    assert [step.outcome for step in run.steps] == [RunOutcome.DONE, RunOutcome.FAILED]
    assert run.steps[1].explanation == "the disk is full"


def test_a_run_without_an_end_has_an_unknown_outcome() -> None:
    log = MemoryLog()
    run_of(log, ends=False)
    (run,) = past_runs(log.lines())
    assert run.outcome is RunOutcome.UNKNOWN
    assert [step.outcome for step in run.steps] == [RunOutcome.DONE, RunOutcome.UNKNOWN]


def test_only_completed_steps_are_undone_last_first() -> None:
    log = MemoryLog()
    audit = Audit(log, HERE)
    audit.begin("load-peermem", PLAN)
    for number, (step, kept) in enumerate(((LOAD, ""), (WRITE, "/kept")), 1):
        audit.begin_step(number, step, kept)
        audit.end_step(number, RunOutcome.DONE, 0, 0.1, "")
    audit.end(RunOutcome.DONE, "")
    (run,) = past_runs(log.lines())
    plan = undo_plan(run, "boot-1")
    assert isinstance(plan, Plan)
    assert plan.steps[0].file == FileChange("/etc/modules-load.d/gdrtop.conf", None, "/kept")
    assert plan.steps[1].argv == ("rmmod", "nvidia_peermem")
    # Modules do not outlive a boot, files do.
    later = undo_plan(run, "boot-2")
    assert isinstance(later, Plan)
    assert [step.file for step in later.steps] == [plan.steps[0].file]


def logged(plan: Plan) -> PastRun:
    """A run in which every step was done."""
    log = MemoryLog()
    audit = Audit(log, HERE)
    audit.begin("an-action", plan)
    for number, step in enumerate(plan.steps, 1):
        audit.begin_step(number, step, "")
        audit.end_step(number, RunOutcome.DONE, 0, 0.1, "")
    return past_runs(log.lines())[0]


@pytest.mark.parametrize("fault", usual(FAULTS, USUAL_FAULTS | {"efa-peermem-unusable", "half-rate"}))
def test_a_plan_promises_no_more_than_its_steps_and_their_undo(fault: str) -> None:
    for offer in offers_on(f"{FAULTS[fault].on}+{fault}").values():
        plan = offer.plan
        if plan is None:
            continue
        told = " · ".join(consequences(plan))
        assert ("can be undone" in told) == any(step.undo or step.file for step in plan.steps), offer.id
        if "does not affect running jobs" in told:
            assert not any(step.is_instruction for step in plan.steps), offer.id
            commands = " ".join(" ".join(step.argv) for step in plan.steps)
            assert not re.search(r"\b(restart|stop|reboot|reset|rmmod|setpci|dnf|zypper)\b|-r ", commands), (
                offer.id
            )
        if steps := runnable(plan):
            undo = undo_plan(logged(replace(plan, steps=steps)), HERE.boot_id)
            told = " · ".join(consequences(replace(plan, steps=steps)))
            assert isinstance(undo, Plan) == ("can be undone" in told), offer.id
            assert ("changes nothing" in told) == (isinstance(undo, str) and "nothing to undo" in undo)


def test_an_undo_disturbs_what_the_run_disturbed() -> None:
    log = MemoryLog()
    Audit(log, HERE).begin("acs-redirect-off", replace(PLAN, disturbs="DMA of running jobs is routed anew"))
    (run,) = past_runs(log.lines())
    assert run.disturbs == "DMA of running jobs is routed anew"
    run_of(log)
    done = replace(past_runs(log.lines())[0], disturbs=run.disturbs)
    plan = undo_plan(done, "boot-1")
    assert isinstance(plan, Plan)
    assert plan.disturbs == run.disturbs


def test_an_undone_run_is_known_as_undone() -> None:
    log = MemoryLog()
    run_of(log)
    (run,) = past_runs(log.lines())
    assert not is_undone(run, [run])
    undo = Audit(log, HERE)
    undo.begin(f"undo:{run.id}", PLAN)
    undo.end(RunOutcome.DONE, "")
    runs = past_runs(log.lines())
    assert is_undone(runs[-1], runs)


@pytest.mark.slow
@given(
    st.lists(st.text() | st.binary().map(repr) | st.sampled_from(MemoryLog().lines() or ["{}", "[]", "1"]))
)
def test_no_log_content_stops_the_screen(lines: list[str]) -> None:
    past_runs(lines)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = (
    "run",
    "event",
    "step",
    "at",
    "host",
    "boot_id",
    "user",
    "pid",
    "action",
    "title",
    "why",
    "argv",
    "undo",
    "file",
    "kept",
    "outcome",
    "exit_status",
    "seconds",
)


@pytest.mark.slow
@given(
    st.lists(
        st.dictionaries(st.sampled_from(FIELDS), JSON | st.sampled_from(["begin", "step", "end"])), max_size=6
    )
)
def test_no_value_in_a_log_stops_the_screen(lines: list[dict[str, object]]) -> None:
    for run in past_runs(json.dumps({"run": "1", **line}) for line in lines):
        undo_plan(run, "boot-1")


# On disk


def test_the_log_is_private_to_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "state" / "gdrtop" / "actions.jsonl"
    log = AuditLogFile(str(path))
    log.append("one")
    log.append("two")
    assert [line for line in log.lines() if line] == ["one", "two"]
    assert not path.stat().st_mode & 0o022


def test_a_log_that_others_may_write_is_neither_read_nor_written(tmp_path: Path) -> None:
    path = tmp_path / "actions.jsonl"
    path.write_text("{}\n")
    path.chmod(0o666)
    log = AuditLogFile(str(path))
    assert log.lines() == []
    with pytest.raises(AuditError, match=r"actions\.jsonl.*other users can write"):
        log.append("one")
    runs, unread = Dispatcher(SimulatedHost("hgx-h100"), log=log).history()
    assert not runs
    state = HistoryState("h100-07")
    state.set_runs(runs, unread)
    told = " ".join(plain(line) for line in state.list_lines(200))
    assert "other users can write to it (mode 0666)" in told
    assert "Nothing was run" not in told


def test_a_symlink_instead_of_the_log_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("")
    (tmp_path / "actions.jsonl").symlink_to(target)
    with pytest.raises(AuditError):
        AuditLogFile(str(tmp_path / "actions.jsonl")).append("one")
    assert target.read_text() == ""


def test_a_log_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AuditError, match="cannot be written"):
        AuditLogFile(str(tmp_path / "file" / "actions.jsonl")).append("one")


def test_a_full_log_is_rotated_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tui.files.append_file.FULL_BYTES", 10)
    log = AuditLogFile(str(tmp_path / "actions.jsonl"))
    for text in ("first line", "second line", "third line"):
        log.append(text)
    assert [line for line in log.lines() if line] == ["third line"]
    assert (tmp_path / "actions.jsonl.1").read_text() == "second line\n"


def test_the_log_of_a_user_is_in_the_state_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert own_log() == "/state/gdrtop/actions.jsonl"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/admin")
    assert own_log() == "/home/admin/.local/state/gdrtop/actions.jsonl"
