"""`gdrtop bench` looks again before each test of a series: somebody may have begun to use the node."""

import io
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from probes.base.origin import Origin, Source
from tests.support.quiet_node import QuietHost
from tests.tui.commands.bench.scene import Scene, Terminal, words
from tui.bandwidth.processes import ProcessStarter, ToolProcess
from tui.bandwidth.simulated_processes import SimulatedProcessStarter

SWEEP = ("--sweep", "--seconds", "2")
CAME = (
    "running jobs would now be affected: evaluate.py (carol, Slurm job 4713, pid 4242) has mlx5_1 open, "
    "though no traffic flows now"
)


class Comes:
    """Starts processes; when the last of some is started, a job begins on the node."""

    def __init__(self, inner: ProcessStarter, host: QuietHost, at: int) -> None:
        self.inner, self.host, self.left = inner, host, at
        self.started = 0

    def start(self, argv: Sequence[str], seconds: float) -> ToolProcess:
        self.started += 1
        if self.started == self.left:
            self.host.start_job()
        return self.inner.start(argv, seconds)


class QuietScene(Scene):
    """A node that nobody uses until so many ends have been started."""

    def __init__(self, at: int = 0, live: bool = True) -> None:
        super().__init__()
        self.host: QuietHost = QuietHost(clock=lambda: self.now)
        if live:
            self.host.origin = Origin(Source.LIVE)
        self.comes = Comes(SimulatedProcessStarter(self.host, self.wait), self.host, at)
        self.starter = self.comes


@pytest.mark.slow
def test_nobody_is_asked_for_and_the_series_goes_to_its_end() -> None:
    scene = QuietScene()
    status, out = scene.run(*SWEEP)
    assert status == 0, out
    assert "would affect" not in out
    assert "8 of 8 tests measured" in out
    # Once before the series and once before each test but the first.
    assert scene.waited == [1.0] * 8


@pytest.mark.slow
def test_somebody_who_comes_meanwhile_ends_the_series_and_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    scene = QuietScene(at=2)
    status, out = scene.run(*SWEEP, answers=Terminal("y\n"))
    assert status == 2
    assert scene.comes.started == 2
    told = words(out)
    assert CAME in told
    assert "1 of 8 tests completed, 7 not started" in told
    assert "use --yes to override" in told
    assert "Not started: GPU1 → mlx5_1 · DMA-BUF, GPU2" in told
    assert "[1/8] GPU0 → mlx5_0" in out
    assert "of 400 Gb/s" in out
    assert [result.pair.gpu_label for result in scene.store.results()] == ["GPU0"]
    assert "not measured" not in capsys.readouterr().err


@pytest.mark.slow
def test_json_and_the_ticket_have_what_was_not_begun(tmp_path: Path) -> None:
    ticket = tmp_path / "ticket.txt"
    status, out = QuietScene(at=2).run(*SWEEP, "--json", "--text", str(ticket))
    told = json.loads(out)
    assert status == told["exit_status"] == 2
    assert CAME in told["exit_reason"]
    assert len(told["results"]) == 1
    assert len(told["left_out"]) == 7
    assert told["left_out"][0] == {"title": "GPU1 → mlx5_1 · DMA-BUF", "reason": f"not started: {CAME}"}
    assert (
        "not started: running jobs would now be affected: evaluate.py (carol, Slurm job 4713, pid 4242)"
        in words(ticket.read_text("ascii"))
    )


@pytest.mark.slow
def test_with_yes_it_goes_on() -> None:
    scene = QuietScene(at=2)
    status, out = scene.run(*SWEEP, "--yes")
    assert status == 0
    assert "8 of 8 tests measured" in out
    assert scene.waited == [1.0]


@pytest.mark.slow
def test_who_was_felt_and_confirmed_before_is_not_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", Terminal())
    scene = QuietScene()
    scene.host.start_job()
    status, out = scene.run(*SWEEP, answers=Terminal("y\n"))
    assert status == 0
    assert "8 of 8 tests measured" in out
    assert scene.waited == [1.0]


@pytest.mark.slow
def test_who_has_gone_again_by_the_second_look_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = QuietScene(at=2)

    def pause(seconds: float) -> None:
        Scene.pause(scene, seconds)
        if len(scene.waited) == 3:
            scene.host.stop_job()

    monkeypatch.setattr(scene, "pause", pause)
    status, out = scene.run(*SWEEP)
    assert status == 0
    assert "8 of 8 tests measured" in out
    assert scene.waited == [1.0] * 9


def test_an_interruption_while_it_looks_is_an_interruption(monkeypatch: pytest.MonkeyPatch) -> None:
    import signal

    scene = QuietScene(at=2)

    def pause(seconds: float) -> None:
        Scene.pause(scene, seconds)
        if len(scene.waited) == 2:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(scene, "pause", pause)
    status, out = scene.run(*SWEEP, answers=io.StringIO())
    assert status == 130
    assert scene.comes.started == 2
    assert "1 of 8 tests completed" in out
    assert "meanwhile" not in out


@pytest.mark.slow
def test_a_simulated_node_is_not_looked_at_again() -> None:
    scene = QuietScene(at=2, live=False)
    status, _ = scene.run(*SWEEP)
    assert status == 0
    assert scene.waited == []
