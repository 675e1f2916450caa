"""`gdrtop bench`: earlier results, baselines and tickets."""

import json
import re
import signal
import sys
from pathlib import Path

import pytest

from probes.bandwidth.model.rating import Assessment, Rating
from probes.bandwidth.results.against_earlier import machine_type
from probes.snapshot.examination import examine
from tests.support.sample_results import MORNING, result
from tests.tui.commands.bench.scene import Scene, Signals, Terminal, words
from tui.bandwidth.results_store import DiskResultsStore
from tui.cli import main
from tui.files import NotWritten


@pytest.mark.slow
def test_results_are_kept_listed_and_compared(tmp_path: Path) -> None:
    scene = Scene(live=True, store=DiskResultsStore(str(tmp_path / "kept")))
    scene.run("--seconds", "2", "--yes")
    scene.wait(60)
    _, out = scene.run("--seconds", "2", "--yes")
    assert "the same as on 2023-11-14" in words(out)
    status, listed = scene.run("--results")
    assert status == 0
    *lines, title, compared = filter(None, listed.splitlines())
    assert len(lines) == 2
    assert lines[0] > lines[1]
    assert title == "The newest result of each test among all of them"
    assert re.search(r"ib_write_bw: \d+ Gb/s, 2 results: \d+(?: to \d+)? Gb/s$", compared)
    assert "✓ GPU0 → mlx5_0 · DMA-BUF · ib_write_bw: " in lines[0]
    told = json.loads(scene.run("--results", "--json")[1])["results"]
    assert [text["tool"] for text in told] == ["ib_write_bw"] * 2


def test_the_newest_result_has_its_percentile_on_this_node_and_among_others(tmp_path: Path) -> None:
    store = DiskResultsStore(str(tmp_path))
    for number in range(30):
        store.add(result(190.0 + number / 10, node=f"h100-{number:02}"))
    for number in range(1, 25):
        store.add(result(190.0 - number / 10, node="h100-07", taken_at=MORNING + number))
    out = words(Scene(live=True, store=store).run("--results")[1])
    assert (
        "h100-07 GPU0 → mlx5_0 · DMA-BUF · ib_write_bw: 188 Gb/s, p4 of 25 results, slower than 96 % (p5 188,"
        " median 189, p95 190 Gb/s); p3 of 30 nodes of this machine type, slower than 97 %"
    ) in out
    told = json.loads(Scene(live=True, store=store).run("--results", "--json")[1])["standings"]
    (own,) = (each for each in told if each["node"] == "h100-07")
    assert (own["tool"], own["gbps"], own["on_node"]["count"]) == ("ib_write_bw", 187.6, 25)
    assert own["over_nodes"]["percentile"] == pytest.approx(100 / 30)


def test_no_results_yet() -> None:
    status, out = Scene().run("--results")
    assert status == 0
    assert "No results are saved" in out
    assert json.loads(Scene().run("--results", "--json")[1])["results"] == []


@pytest.mark.slow
def test_results_that_are_not_believed_are_not_no_results(tmp_path: Path) -> None:
    scene = Scene(live=True, store=DiskResultsStore(str(tmp_path / "kept")))
    scene.run("--seconds", "2", "--yes")
    (tmp_path / "kept" / "results.jsonl").chmod(0o664)
    told = words(scene.run("--results")[1])
    assert "other users can write to it" in told
    assert "No results are saved" not in told
    as_json = json.loads(scene.run("--results", "--json")[1])
    assert as_json["results"] is None
    assert "other users can write to it" in as_json["unknown"]["results"]


@pytest.mark.slow
def test_a_baseline_is_saved_and_compared_with(tmp_path: Path) -> None:
    scene = Scene(live=True, store=DiskResultsStore(str(tmp_path / "kept")))
    _, out = scene.run("--seconds", "2", "--yes", "--save-baseline")
    assert "baseline of Supermicro" in words(out)
    (file,) = (tmp_path / "kept" / "baselines").iterdir()
    assert "results" in json.loads(file.read_text())
    scene.wait(60)
    assert "the baseline of this machine type" in words(scene.run("--seconds", "2", "--yes")[1])


def test_what_is_below_the_bar_is_no_baseline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scene = Scene(live=True, store=DiskResultsStore(str(tmp_path / "kept")))
    arguments = ("--seconds", "2", "--yes", "--save-baseline", "--min-gbps", "399")
    assert scene.run(*arguments)[0] == 1
    assert "baseline not saved: GPU0" in capsys.readouterr().err
    assert not (tmp_path / "kept" / "baselines").exists()


@pytest.mark.slow
def test_what_is_below_the_line_is_a_baseline_after_a_yes_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scene = Scene()
    machine = machine_type(examine(scene.host))
    judge_below(monkeypatch)
    assert scene.run("--seconds", "2", "--save-baseline")[0] == 3
    told = capsys.readouterr().err
    assert "is below the limit of its path (use --yes to override)" in told
    asked = Terminal()
    monkeypatch.setattr(sys, "stderr", asked)
    status, out = scene.run("--seconds", "2", "--save-baseline", answers=Terminal("n\n"))
    assert status == 3
    assert "1 of 1 test measured" in out
    assert scene.store.baseline(machine) == ()
    assert scene.run("--seconds", "2", "--save-baseline", answers=Terminal("y\n"))[0] == 0
    assert "Save it as the baseline anyway? [y/N]" in asked.getvalue()
    assert len(scene.store.baseline(machine)) == 1
    assert scene.run("--seconds", "2", "--save-baseline", "--yes")[0] == 0


def judge_below(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every result is below the limit of its path."""
    below = Assessment(Rating.BELOW, "100 of 400 Gb/s, 25 %", "port 1 would carry more", 0.25)
    monkeypatch.setattr("tui.bandwidth.session.rate", lambda *_: below)


@pytest.mark.slow
def test_a_baseline_of_the_same_product_alone_is_told(tmp_path: Path) -> None:
    scene = Scene(live=True, store=DiskResultsStore(str(tmp_path / "kept")))
    product = machine_type(examine(scene.host)).partition(", ")[0]
    whole = f"{product}, 9 × NVIDIA H100"
    scene.store.save_baseline((result(machine=whole),))
    out = words(scene.run("--seconds", "2", "--yes")[1])
    assert f"There is a baseline for {whole}, but none for this machine type: {product}, 8 ×" in out
    told = json.loads(scene.run("--seconds", "2", "--yes", "--json")[1])["no_baseline"]
    assert told.startswith(f"there is a baseline for {whole}")
    scene.run("--seconds", "2", "--yes", "--save-baseline")
    assert "There is a baseline" not in words(scene.run("--seconds", "2", "--yes")[1])


@pytest.mark.slow
def test_what_cannot_be_kept_is_told_and_measured_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    scene = Scene(live=True, store=DiskResultsStore(str(tmp_path / "file")))
    status, out = scene.run("--seconds", "2", "--yes")
    assert status == 0
    assert "of 400 Gb/s" in out
    assert "not saved: " in capsys.readouterr().err


@pytest.mark.slow
def test_a_simulated_node_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--demo", "--test", "write-lat"]) == 0
    assert "µs" in capsys.readouterr().out
    assert not (tmp_path / "data").exists()


@pytest.mark.slow
def test_the_ticket_is_written_and_never_over_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    status, out = Scene().run("--seconds", "2", "--text", "ticket.txt")
    assert status == 0
    assert "written: " in out
    told = (tmp_path / "ticket.txt").read_text("ascii")
    assert "SIMULATED" in told
    assert "of 400 Gb/s" in told
    assert "ib_write_bw -d mlx5_0" in told
    scene = Scene()
    scene.starter = Signals(scene.starter, signal.SIGTERM, 1)
    with pytest.raises(NotWritten, match="already exists"):
        scene.run("--text", "ticket.txt")
    assert scene.starter.started == []
    assert (tmp_path / "ticket.txt").read_text("ascii") == told


def test_a_ticket_that_cannot_be_written_is_reported_before_the_first_test(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scene, options = Scene(), ("--seconds", "2", "--text", str(tmp_path / "none" / "ticket.txt"))
    with pytest.raises(NotWritten, match="cannot be written"):
        scene.run(*options)
    assert not scene.store.results()
    assert main(["bench", "--demo", *options]) == 3
    printed = capsys.readouterr()
    assert not printed.out
    assert "cannot be written" in printed.err
