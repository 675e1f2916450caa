"""`gdrtop fleet bench`: plan, confirmation, answer, JSON and exit status."""

import argparse
import io
import signal
from pathlib import Path
from typing import Any

import pytest

from probes.base.origin import Origin, Source
from tests.support.documents import valid
from tests.support.pairs_fleet import GOOD, SLOW, Fleet, fleet
from tui.commands.fleet import bench
from tui.commands.fleet.bench_run import FleetBench


class Terminal(io.StringIO):
    """A terminal on which a person types."""

    def isatty(self) -> bool:
        return True


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    bench.add_options(parser)
    return argparse.Namespace(**vars(parser.parse_args(words)), ascii=False, read_only=False)


def ran(scene: Fleet, *words: str, answers: str = "", directory: Path | None = None) -> tuple[int, str]:
    out = io.StringIO()
    run = FleetBench(
        options("--memory", "host", *words),
        scene.nodes,
        out,
        Terminal(answers),
        scene.clock,
        scene.clock.pause,
        None if directory is None else str(directory),
    )
    status = run.run()
    assert scene.alive == {}
    return status, out.getvalue()


def live(scene: Fleet) -> Fleet:
    """The same nodes, taken for real ones."""
    for host in scene.hosts.values():
        host.origin = Origin(Source.LIVE, host.origin.label)
    return scene


def without_head(text: str) -> str:
    """Return what is below the first line, which says that the nodes are simulated."""
    head, _, rest = text.partition("\n")
    assert "SIMULATED" in head
    return rest


def test_a_slow_nic_is_the_answer_and_the_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    status, text = ran(fleet(GOOD, GOOD, SLOW, GOOD))
    assert status == 1
    assert without_head(text).startswith(
        "4 nodes, rail 0: gpu2 mlx5_0 reaches 94 of 189 Gb/s with every partner\n"
    )
    progress = capsys.readouterr().err
    assert "4 nodes, 1 rail, host memory\nabout 9 s for one round with each node once\n" in progress
    assert "[1] quick round, host memory: 2 pairs, 2 tests · about 9 s\n" in progress


def test_a_healthy_fleet() -> None:
    status, text = ran(fleet(GOOD, GOOD))
    assert status == 0
    assert without_head(text).startswith(
        "2 nodes, 1 rail: no pair is slow. The usual NIC reaches 188 Gb/s with host memory.\n"
    )


@pytest.mark.parametrize("words", [(), ("--dry-run",), ("--full",)])
def test_the_json_document_is_what_its_schema_says(words: tuple[str, ...]) -> None:
    status, text = ran(fleet(GOOD, SLOW, GOOD), "--json", *words)
    document: dict[str, Any] = valid("fleet-bench", text)
    assert document["exit_status"] == status == (0 if "--dry-run" in words else 1)
    assert document["nodes"] == ["gpu0", "gpu1", "gpu2"]
    assert ("results" in document) == ("--dry-run" not in words)
    if words == ():
        assert {len(result["client_nic"]) for result in document["results"]} == {6}
        assert all(result["gbps"] for result in document["results"])


def test_a_refusal_is_a_document_too() -> None:
    status, text = ran(fleet("slingshot", GOOD), "--json")
    document = valid("fleet-bench", text)
    assert document["exit_status"] == status == 2
    assert document["left_out"][0]["name"] == "gpu0"
    assert "a pair needs two nodes" in document["exit_reason"]


def test_real_nodes_are_measured_only_after_a_confirmation(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    scene = live(fleet(GOOD, GOOD, with_jobs=False))
    status, text = ran(scene, answers="n\n", directory=tmp_path)
    assert (status, text) == (2, "")
    assert "not confirmed; nothing was run" in capsys.readouterr().err
    assert all(watched.started == [] for watched in scene.processes.values())
    assert ran(scene, "--json", answers="y\n", directory=tmp_path)[0] == 2  # nobody sees the question
    assert ran(scene, answers="y\n", directory=tmp_path)[0] == 0


def test_read_only_and_one_node_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert ran(fleet(GOOD))[0] == 2
    wanted = options()
    wanted.read_only = True
    scene = fleet(GOOD, GOOD)
    assert bench.run(wanted, scene.nodes, io.StringIO(), Terminal()) == 2
    error = capsys.readouterr().err
    assert "not measured: a pair needs two nodes" in error
    assert "not measured: gpu0: gdrtop was started with --read-only" in error
    assert all(watched.is_closed for watched in scene.processes.values())


@pytest.mark.slow
def test_ctrl_c_stops_all_ends_prints_what_there_is_and_the_next_run_goes_on(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    scene = fleet(GOOD, GOOD, GOOD, GOOD)

    def interrupt() -> None:
        if len(scene.processes["gpu0"].started) == 2:
            scene.clock.on_pause.clear()
            signal.raise_signal(signal.SIGINT)

    scene.clock.on_pause.append(interrupt)
    status, text = ran(scene, "--full", directory=tmp_path)
    assert status == 130
    assert "interrupted: all ends stopped, 2 tests completed" in capsys.readouterr().err
    assert without_head(text).startswith("4 nodes, 1 rail: no pair is slow.")
    assert ran(fleet(GOOD, GOOD, GOOD, GOOD), "--full", directory=tmp_path)[0] == 0
    progress = capsys.readouterr().err
    assert "an earlier run was interrupted: 2 results of it are used" in progress
    assert "quick round" not in progress


def test_restart_measures_all_again(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    scene = fleet(GOOD, GOOD)
    scene.clock.on_pause.append(
        lambda: scene.processes["gpu0"].started and signal.raise_signal(signal.SIGINT)
    )
    assert ran(scene, directory=tmp_path)[0] == 130
    assert ran(fleet(GOOD, GOOD), "--restart", directory=tmp_path)[0] == 0
    assert "[1] quick round" in capsys.readouterr().err


def test_rails_are_numbers_and_ranges(capsys: pytest.CaptureFixture[str]) -> None:
    assert options("--rails", "0-2,5").rails == (0, 1, 2, 5)
    for wrong in ("x", "3-1", "64", "", "1,,2", "0-99", "²"):
        with pytest.raises(SystemExit):
            options("--rails", wrong)
    assert "are not rails from 0 to 63, such as 0-3,5" in capsys.readouterr().err
    status, _ = ran(fleet(GOOD, GOOD), "--rails", "7")
    assert status == 2
    assert "it has none of the chosen rails" in capsys.readouterr().err


def test_a_demo_has_nodes_of_these_descriptions() -> None:
    nodes = bench.demo_nodes({"gpu1": GOOD, "gpu2": SLOW})
    assert {name: host.origin.label for name, (host, _) in nodes.items()} == {"gpu1": GOOD, "gpu2": SLOW}
    for _, processes in nodes.values():
        processes.close()
