"""`gdrtop repair`: where it stands, one step after the other, and what holds a node back."""

from __future__ import annotations

import argparse
import io
from dataclasses import replace
from typing import Any

import pytest

from probes.acceptance.certificate import EarlierCertificate, certificate_of
from probes.acceptance.profile import SHIPPED, shipped
from probes.base.plan import Step, make_plan
from probes.checks.new_jobs import Row
from probes.plans.common import reboot_step
from probes.repair.runbook import PastRuns, RepairFacts, runbook_of
from probes.simulation.host import SimulatedHost
from tests.support.documents import valid
from tui.cli import main
from tui.commands.repair import RepairCommand

NODE = "hgx-h100+no-gdr-path"
REASON = "gdrtop repair: peermem-not-loaded nvidia_peermem"


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test goes on where another one stopped."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    status = main(["--demo", NODE, "repair", *arguments])
    printed = capsys.readouterr()
    return status, printed.out + printed.err


def stands(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return valid("repair", run(capsys, "--json")[1])


def test_a_repair_goes_step_by_step_and_each_command_continues(capsys: pytest.CaptureFixture[str]) -> None:
    status, text = run(capsys)
    assert (status, "Slurm: hgx-h100 is mixed" in text, "▸ Drain the node" in text) == (1, True, True)
    status, text = run(capsys, "--next")
    assert (status, "nothing was run; confirm with --yes" in text) == (2, True)
    assert stands(capsys)["next"] == "drain"
    assert run(capsys, "--next", "--yes")[0] == 0
    now = stands(capsys)
    assert (now["state"], now["reason"], now["next"]) == ("drained", REASON, "act")
    assert "▸ Apply the fix" in run(capsys)[1]
    assert run(capsys, "--next", "--yes")[0] == 0
    now = stands(capsys)
    assert (now["reason"], now["next"]) == (REASON, "measure")  # Slurm still says why
    assert now["steps"][-1]["state"] == "blocked"
    status, text = run(capsys, "--next", "--yes", "--anyway", "no time to measure")
    assert (status, "Resume hgx-h100, although open: Measure every GPU with its NIC" in text) == (0, True)
    assert stands(capsys)["reason"] == ""


class Terminal(io.StringIO):
    """What an admin types."""

    def isatty(self) -> bool:
        return True


def test_on_a_terminal_each_step_is_asked_for_until_one_takes_minutes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = {"ascii": False, "read_only": False, "certificate": "", "reason": "", "anyway": ""}
    asked = argparse.Namespace(**given, json=False, next=True, yes=False, disturb="", host="", seed=None)
    out = io.StringIO()
    assert RepairCommand(SimulatedHost(NODE), out, asked, Terminal("y\ny\n")).run() == 0
    assert "Run it? [y/N]" in out.getvalue()
    now = stands(capsys)
    assert (now["state"], now["reason"], now["next"]) == ("drained", REASON, "measure")


def facts_on(name: str, drained: str = "") -> RepairFacts:
    host = SimulatedHost(name)
    if drained:
        host.perform(("scontrol", "update", "NodeName=hgx-h100", "State=DRAIN", f"Reason={drained}"))
    return facts_of(host)


def facts_of(host: SimulatedHost) -> RepairFacts:
    given = {"ascii": False, "read_only": False, "certificate": "", "reason": "", "anyway": ""}
    return RepairCommand(host, io.StringIO(), argparse.Namespace(**given))._read().facts


def test_a_node_returns_with_open_steps_only_for_a_reason() -> None:
    facts = facts_on(NODE, drained=REASON)
    step = runbook_of(facts).steps[-1]
    assert step.reason == "waiting for: Apply the fix (--anyway WHY returns it all the same)"
    step = runbook_of(replace(facts, anyway="only a login node")).steps[-1]
    assert step.plan is not None
    assert "Apply the fix" in step.plan.title  # what the log says
    assert "only a login node" in step.plan.title


def test_what_another_admin_has_drained_stays_drained() -> None:
    facts = facts_on("hgx-h100", drained="new DIMMs")
    steps = {step.id: step for step in runbook_of(facts).steps}
    assert (steps["reason"].reason, steps["drain"].state.value) == ("new DIMMs", "done")
    assert steps["return"].plan is None
    assert "was not drained by gdrtop: “new DIMMs”; who drained it returns it" in steps["return"].reason


def test_what_another_admin_has_cordoned_stays_cordoned() -> None:
    host = SimulatedHost("pcie-l40s+k8s-operators")
    host.perform(("kubectl", "cordon", "pcie-l40s"))
    facts = facts_of(host)
    step = runbook_of(facts).steps[-1]
    assert (step.id, step.plan) == ("return", None)
    step = runbook_of(replace(facts, past=PastRuns(has_drained=True), anyway="a test")).steps[-1]
    assert step.plan is not None
    assert step.plan.steps[0].argv == ("kubectl", "uncordon", "pcie-l40s")


def test_the_health_check_loses_a_node_that_it_has_drained_to_the_repair() -> None:
    facts = facts_on(NODE, drained=REASON.replace("gdrtop repair:", "gdrtop:"))
    step = runbook_of(facts).steps[1]
    assert (step.id, step.state.value) == ("drain", "to do")
    assert step.plan is not None
    assert step.plan.steps[0].argv[-1] == f"Reason={REASON}"


@pytest.mark.parametrize("name", ["hgx-h100", "hgx-h100+acs-on"])
def test_without_a_finding_that_keeps_jobs_away_nothing_is_drained(name: str) -> None:
    facts = facts_on(name)
    assert runbook_of(facts).steps == ()
    given = replace(facts, given="gdrtop repair: acs-redirect-enabled")
    state = {step.id: step.state.value for step in runbook_of(given).steps}
    assert (state["reason"], state["drain"]) == ("done", "to do")


def test_a_fix_that_needs_a_reboot_waits_for_it_once_applied() -> None:
    facts = facts_on(NODE, drained=REASON)
    (first,) = (row for row in facts.left if row.finding is not None)
    assert first.finding is not None
    plan = make_plan("Fix it", Step("Load it", ("modprobe", "x")), reboot_step(), needs_reboot=True)
    row = Row(first.action, first.id, replace(first.finding, fix=plan))
    facts = replace(facts, rows=(row,))
    steps = {step.id: step for step in runbook_of(facts).steps}
    assert (steps["act"].state.value, steps["reboot"].state.value) == ("to do", "blocked")
    assert steps["act"].plan is not None
    assert [step.command for step in steps["act"].plan.steps] == ["modprobe x"]
    assert isinstance(facts.boot_id, str)
    facts = replace(facts, past=PastRuns(REASON, boots=frozenset({facts.boot_id})))
    steps = {step.id: step for step in runbook_of(facts).steps}
    assert (steps["act"].state.value, steps["reboot"].state.value) == ("done", "to do")
    assert steps["check"].state.value == "blocked"


def test_what_was_met_before_must_be_met_again() -> None:
    facts = facts_on(NODE, drained=REASON)
    judgment, profile = facts.judgment, shipped(SHIPPED[0])
    earlier = EarlierCertificate("2026-11-01", {"path": "pass"}, {})
    certificate = certificate_of(profile, facts.examination, judgment, (), (), earlier)
    facts = replace(facts, certificate=certificate, earlier=earlier)
    steps = {step.id: step for step in runbook_of(facts).steps}
    assert steps["compare"].reason == "no longer passed: path"


def test_another_node_is_measured_there() -> None:
    facts = replace(facts_on("hgx-h100", drained=REASON), is_local=False)
    steps = {step.id: step for step in runbook_of(facts).steps}
    assert steps["measure"].state.value == "unknown"
    assert steps["return"].state.value == "blocked"


def test_one_node_is_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    status, text = run(capsys, "gpu017")
    assert (status, "NODE is short for --host NODE" in text) == (3, True)
