"""A slow bandwidth result is a finding of the node, in the dashboard and in every command."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from probes.bandwidth.model.result import Result
from probes.simulation.host import SimulatedHost
from probes.snapshot.condition import BELOW_LIMIT
from probes.snapshot.verdict import State
from tests.support.pilot import SteppedClock, examined, overview, readings, stepped_app, until
from tests.support.slow_results import NODE, measured
from tests.support.watched_node import Watched
from tui.app import GdrtopApp
from tui.bandwidth.results_store import MemoryResultsStore
from tui.cli import main
from tui.commands.check import CheckOptions, write_check
from tui.commands.live.live import LiveOptions, write_live
from tui.commands.topo import TopologyOptions, write_topology
from tui.controllers.report_reader import read_report

TITLE = "A bandwidth test was slow"
# Simulated nodes that end with gdrtop have no results of earlier runs; here they do.
SLOW, GOOD = measured(taken_at=1.8e9), measured(190.0, taken_at=1.8e9 + 60)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryResultsStore:
    kept = MemoryResultsStore()
    monkeypatch.setattr("tui.bandwidth.results_store.open_results_store", lambda origin: kept)
    monkeypatch.setattr("tui.bandwidth.slow_results.saved_results", lambda origin: kept.results())
    return kept


def state_by_check() -> tuple[str, set[str]]:
    out = io.StringIO()
    write_check(SimulatedHost(NODE, clock=lambda: 1000.0), out, CheckOptions(json=True))
    content = json.loads(out.getvalue())
    return content["verdict"]["state"], {finding["id"] for finding in content["findings"]}


@pytest.mark.slow
async def test_the_dashboard_is_degraded_until_a_newer_result_is_good(store: MemoryResultsStore) -> None:
    clock = SteppedClock()
    async with stepped_app(SimulatedHost(NODE, clock=clock)).run_test(size=(120, 40)) as pilot:
        app = pilot.app
        assert isinstance(app, GdrtopApp)

        async def measure(result: Result) -> None:
            store.add(result)
            app.bandwidth.setup.load_results()  # as at the end of a series
            await until(pilot, lambda: result in app.bandwidth.worker.kept)
            await readings(pilot, clock, 2)

        await examined(pilot, clock)
        state = overview(pilot).state
        assert state is not None
        assert state.verdict is not None
        assert state.verdict.state is State.ACTIVE
        await measure(SLOW)
        assert state.verdict.state is State.DEGRADED
        assert TITLE in state.verdict.reason
        await measure(GOOD)
        assert state.verdict.state is State.ACTIVE


@pytest.mark.slow
def test_check_lists_a_slow_result_until_a_newer_one_is_good(store: MemoryResultsStore) -> None:
    assert state_by_check() == ("ACTIVE", set())
    store.add(SLOW)
    assert state_by_check() == ("DEGRADED", {BELOW_LIMIT})
    store.add(GOOD)
    assert state_by_check() == ("ACTIVE", set())


@pytest.mark.slow
def test_topo_live_and_report_say_what_check_says(store: MemoryResultsStore) -> None:
    store.add(SLOW)
    clock = SteppedClock()

    def wait(seconds: float) -> None:
        clock.now += seconds

    host = SimulatedHost(NODE, clock=clock)
    for write in (
        lambda out: write_topology(host, out, TopologyOptions("json")),
        lambda out: write_live(host, out, LiveOptions(json=True, seconds=1), clock=clock, wait=wait),
    ):
        out = io.StringIO()
        write(out)
        assert json.loads(out.getvalue())["verdict"]["reason"] == TITLE
    for redact in (False, True):
        report = read_report(host, redact, wait, store)
        assert report.judgment.verdict.reason == TITLE
        assert BELOW_LIMIT in [finding.id for finding in report.judgment.listed]


def slow_on(node: str) -> Result:
    """Return the slow result of a node with a fault."""
    return measured(taken_at=1.8e9, origin=f"simulated {node}")


def test_do_shows_the_fix_of_the_finding_that_check_lists(
    store: MemoryResultsStore, capsys: pytest.CaptureFixture[str]
) -> None:
    store.add(SLOW)
    assert main(["do", "--demo", NODE, f"fix:{BELOW_LIMIT}"]) == 2
    assert "gdrtop bench --sweep" in capsys.readouterr().out


@pytest.mark.parametrize("how", ["--yes", "--rehearse"])
def test_an_action_that_measures_nothing_does_not_fix_a_slow_result(
    how: str, store: MemoryResultsStore, capsys: pytest.CaptureFixture[str]
) -> None:
    node = f"{NODE}+peermem-not-loaded"
    store.add(slow_on(node))
    assert main(["do", "--demo", node, "load-peermem", how]) == 0
    changed = capsys.readouterr().out.partition("CHECKED AGAIN" if how == "--yes" else "EXPECTED")[2]
    assert changed.count("DEGRADED") == 2
    assert BELOW_LIMIT not in changed


@pytest.mark.slow
def test_watch_reports_results_that_are_saved_while_it_runs(
    store: MemoryResultsStore, tmp_path: Path
) -> None:
    node = f"{NODE}+rank-stopped"
    slow = slow_on(node)
    store.add(slow)
    watched = Watched(tmp_path / "ring", name=node)
    watched.seconds(5)
    assert TITLE not in watched.out.getvalue()
    store.add(replace(slow, taken_at=slow.taken_at + 60, judgment=GOOD.judgment))
    watched.seconds(50)  # until a rank stops, and the node is checked again
    assert f"ended: {TITLE}" in watched.end()


@pytest.mark.parametrize("content", [b"\xff\x00{[", b"[" * 100_000, b'{"schema": 1}\nnull\n3\n'], ids=len)
def test_a_broken_results_file_does_not_break_check(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tui.bandwidth.results_store import DiskResultsStore

    (tmp_path / "results.jsonl").write_bytes(content)
    kept = DiskResultsStore(str(tmp_path))
    monkeypatch.setattr("tui.bandwidth.slow_results.saved_results", lambda origin: kept.results())
    assert state_by_check() == ("ACTIVE", set())
