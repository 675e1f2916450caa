"""`gdrtop do --measure`: what an action changed, by bandwidth tests before and after it."""

from __future__ import annotations

from pathlib import Path

import pytest

from probes.base.plan import Plan, Step
from probes.simulation.host import SimulatedHost
from probes.snapshot.examination import examine
from tui.actions.audit_log import Actor, Audit, MemoryLog, measured_line, past_runs
from tui.actions.dispatcher import Dispatcher
from tui.actions.events import RunOutcome
from tui.cli import main
from tui.commands.bench.proof import affected_pair
from tui.controllers.report_reader import read_report
from widgets.report.html import html_of
from widgets.report.markdown import markdown_of


@pytest.mark.slow
def test_a_fix_is_proven_by_the_pair_that_it_affects(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tui.bandwidth.simulated_processes.time.sleep", lambda seconds: None)
    demo = "hgx-h100+acs-on"
    options = ("--demo", demo, "acs-redirect-off", "--measure", "--disturb", "hgx-h100")
    assert main(["do", *options]) == 0
    *_, text, _, ticket = capsys.readouterr().out.rstrip().splitlines()
    assert text.startswith("GPU0 → mlx5_0: ")
    assert "more than before the action (" in text
    assert ticket.startswith("For a ticket: hgx-h100, ")
    assert ticket.endswith(text)


@pytest.mark.parametrize("option", ["--script", "--rehearse", "--dry-run"])
def test_what_runs_nothing_measures_nothing(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["do", "--demo", "hgx-h100+acs-on", "acs-redirect-off", "--measure", option]) == 3
    assert "--measure needs an ACTION that runs" in capsys.readouterr().err


def test_the_pair_is_one_whose_path_the_plan_changes() -> None:
    examination = examine(SimulatedHost("hgx-h100"))
    topology = examination.topology
    gpu, nics = list(topology.best_nics.items())[3]
    hops = topology.paths[gpu, nics[0]].hops
    port = next(hop.id for hop in hops if hop.kind == "downstream port")
    plan = Plan("Clear", (Step("Clear it", ("setpci", "-s", port, "ECAP_ACS+6.w=0")),))
    request = affected_pair(examination, plan, ())
    assert (request.gpu, request.nic) == (hops[0].id, nics[0])
    assert affected_pair(examination, Plan("Load", ()), (hops[-1].id,)).gpu == hops[0].id
    # Where no path tells, it is the pair that gdrtop bench takes.
    assert affected_pair(examination, Plan("Load", ()), ()).gpu is None


def log_of(text: str) -> MemoryLog:
    log = MemoryLog()
    audit = Audit(log, Actor("hgx-h100", "boot", "root", 1), lambda: 1000.0)
    audit.begin("acs-redirect-off", Plan("Clear ACS redirects", ()))
    audit.end(RunOutcome.DONE, "")
    (run,) = past_runs(log.lines())
    log.append(measured_line(run.id, text, 1001.0))
    return log


def test_the_difference_stands_with_the_run_in_the_report() -> None:
    text = "GPU0 → mlx5_0: 388 Gb/s: 157 % more than before the action (151 Gb/s)."
    (run,) = past_runs(log_of(text).lines())
    assert (run.measured, run.outcome) == (text, RunOutcome.DONE)
    host = SimulatedHost("hgx-h100")
    report = read_report(host, dispatcher=Dispatcher(host, log=log_of(text)))
    assert report.changes[0].measured == text
    assert f"<p>Measured: {text}</p>" in html_of(report, "1")
    assert "Measured: GPU0 → mlx5" in markdown_of(report, "1")


def test_hostile_text_in_the_log_is_printed_as_text() -> None:
    (run,) = past_runs(log_of("\x1b[31mred").lines())
    assert "\x1b" not in run.measured


def test_the_log_of_a_run_has_the_difference(tmp_path: Path) -> None:
    log = log_of("x")
    host = SimulatedHost("hgx-h100")
    Dispatcher(host, log=log).note_measured("acs-redirect-off", "GPU0 is faster")
    assert past_runs(log.lines())[0].measured == "GPU0 is faster"
