"""`gdrtop bench`: who is asked, what is refused, and an end before the end."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from probes.base.origin import Origin, Source
from tests.support.command_line import ROOT
from tests.tui.commands.bench.scene import Out, Scene, Signals, Terminal
from tui.cli import command_parser, main
from tui.commands.bench import run as bench_module
from tui.commands.bench.options import parse_options

# Care


def test_who_would_feel_it_is_named_and_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Terminal()
    monkeypatch.setattr(sys, "stderr", asked)
    scene = Scene(live=True)
    status, out = scene.run("--seconds", "2", answers=Terminal("y\n"))
    assert status == 0
    assert "GPU0: used by train.py (alice, Slurm job 4711, pid 41000)" in out
    assert "of 400 Gb/s" in out
    # Where stdout goes into a file, who is asked sees the reason as well.
    assert "Run it anyway? [y/N]" in asked.getvalue()
    assert "pid 41000" in asked.getvalue()
    assert "[y/N]" not in out


def test_nobody_is_asked_where_the_question_would_not_be_seen(capsys: pytest.CaptureFixture[str]) -> None:
    scene = Scene(live=True)
    scene.starter = Signals(scene.starter, signal.SIGTERM, 1)
    answers = Terminal("y\n")
    status, out = scene.run(answers=answers)
    assert status == 2
    assert scene.starter.started == []
    assert answers.read() == "y\n"
    told = out + capsys.readouterr().err
    assert "[y/N]" not in told
    assert "--yes" in told


@pytest.mark.parametrize("answers", [None, io.StringIO("y\n"), Terminal("\n"), Terminal("n\n"), Terminal("")])
def test_without_a_yes_nothing_is_run(answers: io.StringIO | None, monkeypatch: pytest.MonkeyPatch) -> None:
    beside = Terminal()
    monkeypatch.setattr(sys, "stderr", beside)
    scene = Scene(live=True)
    scene.starter = Signals(scene.starter, signal.SIGTERM, 1)
    status, out = scene.run(answers=answers)
    assert status == 2
    assert scene.starter.started == []
    assert "pid 41000" in out
    assert "--yes" in beside.getvalue()


def test_yes_is_enough() -> None:
    status, out = Scene(live=True).run("--seconds", "2", "--yes")
    assert status == 0
    assert "pid 41000" in out


def test_json_never_asks(capsys: pytest.CaptureFixture[str]) -> None:
    status, out = Scene(live=True).run("--json", answers=Terminal("y\n"))
    assert status == 2
    assert json.loads(out)["exit_status"] == 2
    assert "pid 41000" in capsys.readouterr().err


def test_the_ports_are_watched_for_a_second_before() -> None:
    scene = Scene(live=True)
    _, out = scene.run("--memory", "host", "--dry-run")
    assert scene.waited == [1.0]
    assert "port 1 of mlx5_0: " in out
    assert "carries " in out


def test_a_simulated_node_is_not_waited_for() -> None:
    scene = Scene()
    scene.run("--dry-run")
    assert scene.waited == []


@pytest.mark.parametrize("read_only", [True, False])
def test_nothing_is_measured_where_nothing_may(
    read_only: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scene = Scene()
    if not read_only:
        scene.host.origin = Origin(Source.TREE, str(tmp_path))
    status, out = scene.run("--yes", read_only=read_only)
    assert status == 2
    assert "[1/1]" not in out
    assert ("--read-only" if read_only else "a tree of files") in capsys.readouterr().err
    assert scene.run("--dry-run", read_only=read_only)[0] == 0


def test_read_only_stands_before_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--read-only", "bench", "--demo"]) == 2
    assert "--read-only" in capsys.readouterr().err


# Interrupted


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_both_ends_and_tells_what_was_measured(number: int) -> None:
    scene = Scene()
    scene.starter = Signals(scene.starter, number, 4)
    before = signal.getsignal(number)
    status, out = scene.run("--sweep", "--seconds", "3")
    assert status == 130
    assert len(scene.starter.started) == 4
    assert all(process.ended is not None for process in scene.starter.started)
    assert "both ends stopped" in out
    assert "1 of 8 tests completed" in out
    assert "of 400 Gb/s" in out
    assert signal.getsignal(number) is before


class Leaving(Out):
    """A pipe whose reader leaves when it has seen a word."""

    def __init__(self, word: str) -> None:
        super().__init__()
        self.word, self.has_left = word, False

    def write(self, text: str) -> int:
        self.has_left = self.has_left or self.word in text
        if self.has_left:
            raise BrokenPipeError
        return super().write(text)


def leave_at(scene: Scene, word: str, *arguments: str) -> int:
    options = parse_options(command_parser().parse_args(["bench", *arguments]))
    return bench_module.command(scene.host, Leaving(word), options, store=scene.store, starter=scene.starter)


def test_a_terminal_that_goes_away_ends_both_ends(capsys: pytest.CaptureFixture[str]) -> None:
    scene = Scene()
    scene.starter = Signals(scene.starter, signal.SIGTERM, 99)
    assert leave_at(scene, "1048576  ") == 130
    assert len(scene.starter.started) == 2
    assert all(process.ended is not None for process in scene.starter.started)
    assert scene.now < 1010.0
    assert "the output cannot be written: both ends stopped" in capsys.readouterr().err


def test_a_reader_that_has_left_before_lets_nothing_begin() -> None:
    scene = Scene()
    scene.starter = Signals(scene.starter, signal.SIGTERM, 99)
    assert leave_at(scene, "gdrtop") == 130
    assert scene.starter.started == []


@pytest.mark.slow
def test_a_reader_that_leaves_at_the_end_takes_neither_status_nor_ticket(tmp_path: Path) -> None:
    ticket = tmp_path / "ticket.txt"
    scene = Scene()
    arguments = ("--seconds", "3", "--min-gbps", "399", "--save-baseline", "--text", str(ticket))
    assert leave_at(scene, "baseline of", *arguments, "--min-gbps", "300") == 0
    assert "of 400 Gb/s" in ticket.read_text("ascii")
    assert leave_at(Scene(), "below the threshold", "--seconds", "3", "--min-gbps", "399") == 1


@pytest.mark.slow
def test_head_gets_the_status_of_a_cancelled_test(tmp_path: Path) -> None:
    command = f"{sys.executable} -m tui bench --demo --seconds 600 --min-gbps 5000"
    done = subprocess.run(
        ["bash", "-c", f"{command} | head -1; exit ${{PIPESTATUS[0]}}"],
        cwd=ROOT,
        env={**os.environ, "XDG_DATA_HOME": str(tmp_path), "PYTHONUTF8": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 130
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_ctrl_c_from_outside(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "tui", "bench", "--demo", "--seconds", "60"]
    environment = {**os.environ, "XDG_DATA_HOME": str(tmp_path), "LC_ALL": "C.UTF-8", "PYTHONUTF8": "1"}
    child = subprocess.Popen(
        argv, cwd=ROOT, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, env=environment
    )
    assert child.stdout is not None
    deadline = time.monotonic() + 60
    out = ""
    while "     1048576" not in out:
        assert time.monotonic() < deadline, out
        out += child.stdout.readline().decode()
    child.send_signal(signal.SIGINT)
    rest = child.stdout.read().decode()
    assert child.wait(60) == 130
    assert "canceled (" in rest
    assert "interrupted: both ends stopped, 0 of 1 test completed" in rest
    assert rest.count("interrupted") == 1
    child.stdout.close()
