"""`gdrtop bench`: what is wished, shown, asked, measured and told; exit codes."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from probes.bandwidth.choice import Choice
from probes.bandwidth.commands import Refused
from probes.bandwidth.judgement import Judgement, Verdict
from probes.bandwidth.machine_type import machine_type
from probes.bandwidth.planned import LeftOut, Series
from probes.examination import Examination, examine
from probes.origin import Origin, Source
from probes.simulation import SimulatedHost
from probes.tool_names import TEST_TOOLS
from tests.probes.bandwidth.results import result
from tests.tui.test_cli import ROOT
from tui import bench as bench_module
from tui.bandwidth.bench import Bench, KeptInMemory, KeptResults
from tui.bandwidth.processes import Process, Processes
from tui.bandwidth.results_file import KeptOnDisk
from tui.bandwidth.simulated_processes import SimulatedProcesses
from tui.bench_options import wanted
from tui.cli import _parser, main


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr("tui.bandwidth.bench._LOCK", f"\0gdrtop-test-{os.getpid()}-{tmp_path}"[:100])


class Terminal(io.StringIO):
    """Somebody at a keyboard."""

    def isatty(self) -> bool:
        return True


class Signals:
    """Processes that send this process a signal when the last of some ends is started."""

    def __init__(self, inner: Processes, number: int, at: int) -> None:
        self.inner, self.number, self.left = inner, number, at
        self.started: list[Process] = []

    def start(self, argv: Sequence[str], seconds: float) -> Process:
        self.started.append(self.inner.start(argv, seconds))
        self.left -= 1
        if not self.left:
            signal.raise_signal(self.number)
        return self.started[-1]


class Scene:
    """A simulated node whose clock goes on while one waits; `live`: one that is taken for a real one."""

    def __init__(self, name: str = "hgx-h100", live: bool = False, kept: KeptResults | None = None) -> None:
        self.now = 1000.0
        self.host = SimulatedHost(name, clock=lambda: self.now)
        if live:
            self.host.origin = Origin(Source.LIVE)
        self.kept = KeptInMemory() if kept is None else kept
        self.processes: Processes = SimulatedProcesses(self.host, self.wait)
        self.waited: list[float] = []

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def pause(self, seconds: float) -> None:
        self.waited.append(seconds)
        self.wait(seconds)

    def run(
        self, *arguments: str, answers: io.StringIO | None = None, read_only: bool = False
    ) -> tuple[int, str]:
        out = Out()
        status = bench_module.command(
            self.host,
            out,
            wanted(_parser().parse_args(["bench", *arguments])),
            read_only=read_only,
            answers=answers,
            kept=self.kept,
            processes=self.processes,
            pause=self.pause,
        )
        return status, out.getvalue()


class Out(io.StringIO):
    """A pipe that takes UTF-8."""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"


def words(text: str) -> str:
    return " ".join(text.split())


# With no further argument


def test_it_tests_the_first_gpu_with_its_best_nic_in_loopback() -> None:
    status, out = Scene().run()
    assert status == 0
    assert "SIMULATED hgx-h100" in out
    assert "nobody is disturbed" in out
    assert "[1/1] GPU0 → mlx5_0 · DMA-BUF" in out
    assert out.count("ib_write_bw -d mlx5_0") == 2
    assert "of 400 Gb/s" in out
    assert "✓" in out
    assert "registered by DMA-BUF" in out
    assert "proves: mlx5_0 reaches the GPU's memory" in out


@pytest.mark.parametrize("name", ["dgx-a100", "pcie-l40s", "gb200", "cloud-vm"])
def test_so_it_does_on_every_simulated_node(name: str) -> None:
    status, out = Scene(name).run("--seconds", "3")
    assert status == 0, out
    assert "[1/1] GPU0 → mlx5_0" in out


def test_rows_come_as_they_are_measured_each_flushed() -> None:
    scene = Scene()
    seen: list[tuple[float, int]] = []

    class Watched(Out):
        def flush(self) -> None:
            seen.append((scene.now, self.getvalue().count("\n     1048576")))

    out = Watched()
    options = wanted(_parser().parse_args(["bench"]))
    bench_module.command(scene.host, out, options, kept=scene.kept, processes=scene.processes)
    times = {rows: at for at, rows in reversed(seen)}
    assert len(times) >= 10
    assert times[5] - times[1] == pytest.approx(4.0, abs=0.5)


@pytest.mark.parametrize("tool", [tool for tool in TEST_TOOLS if tool != "ib_write_bw"])
def test_every_test_can_be_run(tool: str) -> None:
    word = tool.removeprefix("ib_").removesuffix("_bw").removesuffix("_perf").replace("_", "-")
    word = "gdrcopy" if tool == "gdrcopy_copybw" else word
    status, out = Scene().run("--test", word)
    assert status == 0, out
    assert "1 of 1 tests measured" in out


# Choosing


@pytest.mark.parametrize("gpu", ["2", "GPU2", "0000:3a:00.0", "3A:00.0"])
def test_a_gpu_is_named_by_number_or_address(gpu: str) -> None:
    assert "GPU2 → mlx5_2" in Scene().run("--gpu", gpu, "--dry-run")[1]


def test_a_gpu_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert Scene().run("--gpu", "9\x1b[2J")[0] == 2
    told = capsys.readouterr().err
    assert "there is no GPU" in told
    assert "0000:18:00.0" in told
    assert "\x1b" not in told


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--size", "64K"), "-s 65536"),
        (("--size", "all"), " -a "),
        (("--queue-pairs", "4"), "-q 4"),
        (("--both-ways",), " -b "),
        (("--port", "20000"), "-p 20000"),
        (("--memory", "host"), "mlx5_0 · host memory"),
        (("--memory", "peermem"), "GPU0 → mlx5_0 · nvidia-peermem"),
        (("--nic", "mlx5_3"), "-d mlx5_3"),
        (("--to", "mlx5_3"), "-d mlx5_3"),
        (("--test", "all-reduce", "--over-network"), "NCCL_P2P_DISABLE=1"),
        (("--connect", "node2"), "at the peer: "),
        (("--ssh", "root@node2", "--peer-nic", "mlx5_7"), "ssh -tt"),
    ],
)
def test_options_reach_the_command(arguments: tuple[str, ...], told: str) -> None:
    status, out = Scene().run(*arguments, "--dry-run")
    assert status == 0
    assert told in out


@pytest.mark.parametrize(
    "arguments",
    [
        "--serve --connect node2",
        "--sweep --matrix",
        "--sweep --gpu 1",
        "--matrix --nic mlx5_0",
        "--sweep --serve",
        "--test gdrcopy --nic mlx5_0",
        "--test nvbandwidth --memory host",
        "--test all-reduce --sweep",
        "--test write-lat --min-gbps 5",
        "--test write-lat --seconds 5",
        "--over-network",
        "--peer-nic mlx5_0",
        "--size 3x",
        "--size 0",
        "--size 2G",
        "--size all --seconds 5",
        "--seconds 1",
        "--seconds nan",
        "--port 80",
        "--queue-pairs 0",
        "--min-gbps nan",
        "--min-gbps -1",
        "--test rm",
        "--memory gpu",
        "extra",
    ],
)
def test_wrong_usage_is_told_in_a_line_with_status_3(
    arguments: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "--demo", *arguments.split()]) == 3
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("gdrtop: ")
    assert told.err.count("\n") == 1


def test_the_help_has_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--help"]) == 0
    told = capsys.readouterr().out
    for status in ("0 ", "1 ", "2 ", "3 ", "130 "):
        assert f"\n  {status}" in told


# Looking, without measuring


def test_the_list_has_every_tool(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--demo", "--list"]) == 0
    told = capsys.readouterr().out
    assert all(tool in told for tool in TEST_TOOLS)
    assert main(["bench", "--demo", "--list", "--json"]) == 0
    tools = json.loads(capsys.readouterr().out)["tools"]
    assert [one["tool"] for one in tools] == list(TEST_TOOLS)
    assert tools[0]["version"] == "6.23"
    assert "unknown" in tools[-1]


def test_a_dry_run_shows_all_and_starts_nothing() -> None:
    scene = Scene(live=True)
    scene.processes = Signals(scene.processes, signal.SIGTERM, 1)
    status, out = scene.run("--memory", "compare", "--dry-run", "--yes")
    assert status == 0
    assert scene.processes.started == []
    for told in (
        "3 tests · about 39 s",
        "proves: ",
        "but nothing",
        "server: ",
        "client: ",
        "at most 400 Gb/s",
    ):
        assert told in out
    assert "Somebody would feel it:" in out
    assert "process 41000" in out


def test_a_dry_run_as_json_has_the_commands() -> None:
    status, out = Scene().run("--dry-run", "--json", "--serve")
    told = json.loads(out)
    assert status == 0
    (test,) = told["tests"]
    assert test["commands"]["server"][-1] != "127.0.0.1"
    assert test["for_peer"].endswith(" hgx-h100")
    assert test["limit_gbps"] > 390


# Series


def test_a_comparison_says_what_it_means() -> None:
    status, out = Scene().run("--memory", "compare", "--seconds", "3")
    assert status == 0
    assert "[2/3] GPU0 → mlx5_0 · nvidia-peermem · about 12 s left" in out
    told = words(out.partition("What it means")[2])
    assert "GPUDirect RDMA by DMA-BUF works" in told
    assert "carry the same" in told


def test_a_path_that_this_node_lacks_is_a_finding_not_a_failure() -> None:
    status, out = Scene("hgx-h100+peermem-not-loaded").run("--memory", "compare", "--seconds", "3")
    assert status == 0
    assert "✗ failed" in out
    assert "Couldn't allocate MR with error=14" in out
    assert "DMA-BUF works" in out


def test_a_test_that_fails_alone_is_not_measured() -> None:
    status, out = Scene("hgx-h100+peermem-not-loaded").run("--memory", "peermem")
    assert status == 2
    assert "1 of 1 tests failed" in out


def test_a_sweep_ends_in_a_matrix() -> None:
    status, out = Scene().run("--sweep", "--seconds", "2")
    assert status == 0
    assert "[8/8] GPU7" in out
    matrix = out.rpartition("DMA-BUF   Gb/s")[2]
    assert all(f"GPU{number}" in matrix for number in range(8))


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("--sweep",), 2),
        (("--matrix",), 2),
        (("--memory", "compare"), 0),
        (("--sweep", "--memory", "compare"), 0),
    ],
)
def test_a_sweep_that_leaves_a_gpu_out_has_not_passed(
    arguments: tuple[str, ...], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Bench.series

    def without_one(bench: Bench, examination: Examination, choice: Choice) -> Series | Refused:
        series = whole(bench, examination, choice)
        assert isinstance(series, Series)
        left = LeftOut("GPU9 → mlx5_9 · DMA-BUF", "port 1 of mlx5_9 is down")
        return Series(series.title, series.tests[-1:], (left,))

    monkeypatch.setattr(Bench, "series", without_one)
    got, out = Scene().run(*arguments, "--seconds", "2", "--min-gbps", "100")
    assert got == status
    last = words(out.rpartition("\n\n")[2])
    assert ("1 of 2 tests were left out: GPU9 → mlx5_9 · DMA-BUF: port 1 of mlx5_9 is down" in last) == bool(
        status
    )


@pytest.mark.parametrize(
    ("bar", "status", "told"), [("300", 0, "all reach 300"), ("399", 1, "below the bar of 399")]
)
def test_the_bar(bar: str, status: int, told: str) -> None:
    got, out = Scene().run("--min-gbps", bar, "--seconds", "3")
    assert got == status
    assert told in out


# JSON


def test_json_is_one_object_at_the_end() -> None:
    status, out = Scene().run("--json", "--memory", "compare", "--seconds", "3", "--min-gbps", "399")
    told = json.loads(out)
    assert status == told["exit"]["status"] == 1
    assert "below the bar" in told["exit"]["reason"]
    assert told["origin"] == "simulated hgx-h100"
    assert [one["memory"] for one in told["results"]] == ["host memory", "nvidia-peermem", "DMA-BUF"]
    assert told["results"][0]["gbps"] > 300
    assert told["results"][0]["judgement"]["verdict"] == "near the line"
    assert any("works" in one for one in told["meaning"])
    assert "process 41000" in told["felt_by"][0]


def test_json_tells_a_refusal_too() -> None:
    status, out = Scene().run("--json", "--nic", "mlx5_99")
    told = json.loads(out)
    assert status == told["exit"]["status"] == 2
    assert "mlx5_99" in told["exit"]["reason"]
    assert told["results"] == []


# Care


def test_who_would_feel_it_is_named_and_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Terminal()
    monkeypatch.setattr(sys, "stderr", asked)
    scene = Scene(live=True)
    status, out = scene.run("--seconds", "2", answers=Terminal("y\n"))
    assert status == 0
    assert "GPU0: process 41000 (python3) computes on it" in out
    assert "of 400 Gb/s" in out
    # Where stdout goes into a file, who is asked sees the reason as well.
    assert "Run it all the same? [y/N]" in asked.getvalue()
    assert "process 41000" in asked.getvalue()
    assert "[y/N]" not in out


def test_nobody_is_asked_where_the_question_would_not_be_seen(capsys: pytest.CaptureFixture[str]) -> None:
    scene = Scene(live=True)
    scene.processes = Signals(scene.processes, signal.SIGTERM, 1)
    answers = Terminal("y\n")
    status, out = scene.run(answers=answers)
    assert status == 2
    assert scene.processes.started == []
    assert answers.read() == "y\n"
    told = out + capsys.readouterr().err
    assert "[y/N]" not in told
    assert "--yes" in told


@pytest.mark.parametrize("answers", [None, io.StringIO("y\n"), Terminal("\n"), Terminal("n\n"), Terminal("")])
def test_without_a_yes_nothing_is_run(answers: io.StringIO | None, monkeypatch: pytest.MonkeyPatch) -> None:
    beside = Terminal()
    monkeypatch.setattr(sys, "stderr", beside)
    scene = Scene(live=True)
    scene.processes = Signals(scene.processes, signal.SIGTERM, 1)
    status, out = scene.run(answers=answers)
    assert status == 2
    assert scene.processes.started == []
    assert "process 41000" in out
    assert "--yes" in beside.getvalue()


def test_yes_is_enough() -> None:
    status, out = Scene(live=True).run("--seconds", "2", "--yes")
    assert status == 0
    assert "process 41000" in out


def test_json_never_asks(capsys: pytest.CaptureFixture[str]) -> None:
    status, out = Scene(live=True).run("--json", answers=Terminal("y\n"))
    assert status == 2
    assert json.loads(out)["exit"]["status"] == 2
    assert "process 41000" in capsys.readouterr().err


def test_the_ports_are_watched_for_a_second_before() -> None:
    scene = Scene(live=True)
    _, out = scene.run("--memory", "host", "--dry-run")
    assert scene.waited == [1.0]
    assert "port 1 of mlx5_0: " in out
    assert "of traffic flow through it" in out


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


# A peer


def test_a_server_prints_the_command_for_the_peer_and_says_that_it_waits() -> None:
    scene = Scene()
    scene.processes = Signals(scene.processes, signal.SIGINT, 1)
    status, out = scene.run("--serve")
    assert status == 130
    line = next(line for line in out.splitlines() if "at the peer: " in line)
    assert line.endswith("--use_cuda_dmabuf hgx-h100")
    assert "--run_infinitely" not in line


# Interrupted


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_both_ends_and_tells_what_was_measured(number: int) -> None:
    scene = Scene()
    scene.processes = Signals(scene.processes, number, 4)
    before = signal.getsignal(number)
    status, out = scene.run("--sweep", "--seconds", "3")
    assert status == 130
    assert len(scene.processes.started) == 4
    assert all(one.ended is not None for one in scene.processes.started)
    assert "both ends were ended" in out
    assert "1 of 8 tests were measured to their end" in out
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
    options = wanted(_parser().parse_args(["bench", *arguments]))
    return bench_module.command(
        scene.host, Leaving(word), options, kept=scene.kept, processes=scene.processes
    )


def test_a_terminal_that_goes_away_ends_both_ends(capsys: pytest.CaptureFixture[str]) -> None:
    scene = Scene()
    scene.processes = Signals(scene.processes, signal.SIGTERM, 99)
    assert leave_at(scene, "1048576  ") == 130
    assert len(scene.processes.started) == 2
    assert all(one.ended is not None for one in scene.processes.started)
    assert scene.now < 1010.0
    assert "the output cannot be written: both ends were ended" in capsys.readouterr().err


def test_a_reader_that_has_left_before_lets_nothing_begin() -> None:
    scene = Scene()
    scene.processes = Signals(scene.processes, signal.SIGTERM, 99)
    assert leave_at(scene, "gdrtop") == 130
    assert scene.processes.started == []


def test_a_reader_that_leaves_at_the_end_takes_neither_status_nor_ticket(tmp_path: Path) -> None:
    ticket = tmp_path / "ticket.txt"
    scene = Scene()
    arguments = ("--seconds", "3", "--min-gbps", "399", "--save-baseline", "--text", str(ticket))
    assert leave_at(scene, "baseline of", *arguments, "--min-gbps", "300") == 0
    assert "of 400 Gb/s" in ticket.read_text("ascii")
    assert leave_at(Scene(), "below the bar", "--seconds", "3", "--min-gbps", "399") == 1


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
    assert "cancelled; " in rest
    assert "interrupted: both ends were ended; 0 of 1 tests" in rest
    assert rest.count("interrupted") == 1
    child.stdout.close()


# Kept


def test_results_are_kept_listed_and_compared(tmp_path: Path) -> None:
    scene = Scene(live=True, kept=KeptOnDisk(str(tmp_path / "kept")))
    scene.run("--seconds", "2", "--yes")
    scene.wait(60)
    _, out = scene.run("--seconds", "2", "--yes")
    assert "the same as on 2023-11-14" in words(out)
    status, listed = scene.run("--results")
    assert status == 0
    lines = listed.splitlines()
    assert len(lines) == 2
    assert lines[0] > lines[1]
    assert "✓ GPU0 → mlx5_0 · DMA-BUF · ib_write_bw: " in lines[0]
    told = json.loads(scene.run("--results", "--json")[1])["results"]
    assert [one["tool"] for one in told] == ["ib_write_bw"] * 2


def test_no_results_yet() -> None:
    status, out = Scene().run("--results")
    assert status == 0
    assert "No results are kept" in out
    assert json.loads(Scene().run("--results", "--json")[1]) == {"results": []}


def test_results_that_are_not_believed_are_not_no_results(tmp_path: Path) -> None:
    scene = Scene(live=True, kept=KeptOnDisk(str(tmp_path / "kept")))
    scene.run("--seconds", "2", "--yes")
    (tmp_path / "kept" / "results.jsonl").chmod(0o664)
    told = words(scene.run("--results")[1])
    assert "others may write it too" in told
    assert "No results are kept" not in told
    as_json = json.loads(scene.run("--results", "--json")[1])
    assert as_json["results"] is None
    assert "others may write it too" in as_json["unknown"]


def test_a_baseline_is_saved_and_compared_with(tmp_path: Path) -> None:
    scene = Scene(live=True, kept=KeptOnDisk(str(tmp_path / "kept")))
    _, out = scene.run("--seconds", "2", "--yes", "--save-baseline")
    assert "baseline of Supermicro" in words(out)
    (file,) = (tmp_path / "kept" / "baselines").iterdir()
    assert "results" in json.loads(file.read_text())
    scene.wait(60)
    assert "the baseline of this machine type" in words(scene.run("--seconds", "2", "--yes")[1])


def test_what_is_below_the_bar_is_no_baseline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scene = Scene(live=True, kept=KeptOnDisk(str(tmp_path / "kept")))
    arguments = ("--seconds", "2", "--yes", "--save-baseline", "--min-gbps", "399")
    assert scene.run(*arguments)[0] == 1
    assert "no baseline: below the bar: GPU0" in capsys.readouterr().err
    assert not (tmp_path / "kept" / "baselines").exists()


def test_what_is_below_the_line_is_a_baseline_after_a_yes_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scene = Scene()
    machine = machine_type(examine(scene.host))
    judge_below(monkeypatch)
    assert scene.run("--seconds", "2", "--save-baseline")[0] == 3
    told = capsys.readouterr().err
    assert "is below what its way can carry; --yes saves it all the same" in told
    asked = Terminal()
    monkeypatch.setattr(sys, "stderr", asked)
    status, out = scene.run("--seconds", "2", "--save-baseline", answers=Terminal("n\n"))
    assert status == 3
    assert "1 of 1 tests measured" in out
    assert scene.kept.baseline(machine) == ()
    assert scene.run("--seconds", "2", "--save-baseline", answers=Terminal("y\n"))[0] == 0
    assert "Save it as the baseline all the same? [y/N]" in asked.getvalue()
    assert len(scene.kept.baseline(machine)) == 1
    assert scene.run("--seconds", "2", "--save-baseline", "--yes")[0] == 0


def judge_below(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every result is below what its way can carry."""
    below = Judgement(Verdict.BELOW, "100 of 400 Gb/s, 25 %", "port 1 would carry more", 0.25)
    monkeypatch.setattr("tui.bandwidth.series_run.judge", lambda *_: below)


def test_a_baseline_of_the_same_product_alone_is_told(tmp_path: Path) -> None:
    scene = Scene(live=True, kept=KeptOnDisk(str(tmp_path / "kept")))
    product = machine_type(examine(scene.host)).partition(", ")[0]
    whole = f"{product}, 9 × NVIDIA H100"
    scene.kept.save_baseline((result(machine=whole),))
    out = words(scene.run("--seconds", "2", "--yes")[1])
    assert f"There is a baseline for {whole}, not for this type: {product}, 8 ×" in out
    told = json.loads(scene.run("--seconds", "2", "--yes", "--json")[1])["no_baseline"]
    assert told.startswith(f"there is a baseline for {whole}")
    scene.run("--seconds", "2", "--yes", "--save-baseline")
    assert "There is a baseline" not in words(scene.run("--seconds", "2", "--yes")[1])


def test_what_cannot_be_kept_is_told_and_measured_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    scene = Scene(live=True, kept=KeptOnDisk(str(tmp_path / "file")))
    status, out = scene.run("--seconds", "2", "--yes")
    assert status == 0
    assert "of 400 Gb/s" in out
    assert "not kept: " in capsys.readouterr().err


def test_a_simulated_node_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--demo", "--test", "write-lat"]) == 0
    assert "µs" in capsys.readouterr().out
    assert not (tmp_path / "data").exists()


def test_the_ticket_is_written_and_never_over_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
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
    scene.processes = Signals(scene.processes, signal.SIGTERM, 1)
    assert scene.run("--text", "ticket.txt")[0] == 3
    assert scene.processes.started == []
    assert "is not overwritten" in capsys.readouterr().err
    assert (tmp_path / "ticket.txt").read_text("ascii") == told


def test_a_ticket_that_cannot_be_written_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out = Scene().run("--seconds", "2", "--text", str(tmp_path / "none" / "ticket.txt"))
    assert status == 3
    assert "of 400 Gb/s" in out
    assert "cannot be written" in capsys.readouterr().err
