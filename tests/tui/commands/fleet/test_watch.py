"""`gdrtop fleet watch`: which nodes it shows, and how it goes between the table and the dashboards."""

import argparse
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from probes.base.origin import Source
from probes.fleet.summary import NodeSummary, to_json
from tests.support.fleet_screens import FIRST, ORIGIN, FleetOnDemand
from tests.support.summaries import a_summary
from tui.cli import main
from tui.command_line.arguments import UsageError
from tui.commands.fleet import watch
from tui.commands.fleet.check import save_node
from tui.fleet_app import FleetApp, NodeApp, OpenedNode
from tui.runtime.open_host import NoSuchHost, open_simulated

POOL = ThreadPoolExecutor(1)


def options(**values: Any) -> argparse.Namespace:
    usual = {"saved": "", "demo": None, "nodes": "", "hosts": "", "slurm": "", "seed": 0, "root": "/"}
    return argparse.Namespace(
        **{
            **usual,
            "at": "",
            "host": "",
            "over": "",
            "sudo": False,
            "node_set": None,
            "interval": 1.0,
            "read_only": False,
            **values,
        }
    )


def test_without_a_terminal_it_says_what_prints_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fleet", "watch", "--demo"]) == 3
    assert "needs a terminal" in capsys.readouterr().err


def test_nodes_are_named_in_one_way() -> None:
    with pytest.raises(UsageError, match="name the nodes with NODES"):
        watch.watched_fleet(options(), POOL)
    with pytest.raises(UsageError, match="--from shows saved nodes"):
        watch.watched_fleet(options(saved="dir", nodes="gpu1"), POOL)
    with pytest.raises(NoSuchHost, match="unknown simulated node"):
        watch.watched_fleet(options(demo="no-such-node*2"), POOL)


def test_simulated_nodes_are_read_with_progress_and_opened_by_name() -> None:
    fleet = watch.watched_fleet(options(demo="cloud-vm*2"), POOL)
    steps: list[tuple[int, int]] = []
    found: list[NodeSummary] = []
    summaries, unanswered = fleet.read(lambda *step: steps.append(step), found.append)
    assert tuple(found) == summaries
    assert fleet.names == ("gpu01", "gpu02")
    assert [summary.name for summary in summaries] == ["gpu01", "gpu02"]
    assert not unanswered
    assert steps == [(1, 2), (2, 2)]
    assert fleet.open_node("gpu02").origin.label == "cloud-vm"


def test_named_nodes_are_remote_and_not_yet_connected() -> None:
    fleet = watch.watched_fleet(options(nodes="gpu[1-3]"), POOL)
    assert (fleet.origin.source, fleet.origin.label) == (Source.REMOTE, "3 nodes")


@pytest.mark.slow
def test_a_saved_node_opens_its_recording_and_a_document_has_none(tmp_path: Path) -> None:
    assert save_node(open_simulated("cloud-vm"), str(tmp_path / "gpu1.tar.gz")) == ""
    (tmp_path / "gpu2.json").write_text(json.dumps(to_json(a_summary("gpu2"))))
    fleet = watch.watched_fleet(options(saved=str(tmp_path)), POOL)
    summaries, _ = fleet.read(lambda *_: None, lambda _: None)
    assert not fleet.is_live
    recorded = next(summary.name for summary in summaries if summary.name != "gpu2")
    host = fleet.open_node(recorded)
    assert host.origin.source is Source.RECORDED
    with pytest.raises(NoSuchHost, match="only a recording has a dashboard"):
        fleet.open_node("gpu2")
    app = watch.node_app(OpenedNode(recorded, host), options())
    assert app.check_action("record", ()) is False  # it is a replay


@pytest.mark.parametrize("goes_back", [True, False])
def test_after_a_dashboard_the_table_is_shown_again_unless_gdrtop_was_ended(
    monkeypatch: pytest.MonkeyPatch, goes_back: bool
) -> None:
    fleet = FleetOnDemand(FIRST)
    shown: list[str] = []

    def run_fleet(app: FleetApp) -> int:
        shown.append("table")
        if len(shown) == 1:
            app.exit(OpenedNode("gpu1", fleet.open_node("gpu1")))
        return 0

    def run(app: NodeApp) -> int:
        shown.append("dashboard")
        return 0

    monkeypatch.setattr("tui.dashboard.run_fleet", run_fleet)
    monkeypatch.setattr("tui.dashboard.run", run)
    monkeypatch.setattr(NodeApp, "goes_back", goes_back)
    monkeypatch.setattr("tui.runtime.memory.collect_garbage_rarely", lambda: None)
    watched = watch.WatchedFleet(ORIGIN, fleet.read, fleet.open_node)
    assert watch._show(watched, options(), ascii_only=False) == 0
    assert shown == ["table", "dashboard", "table"][: 3 if goes_back else 2]
