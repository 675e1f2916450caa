"""`gdrtop bench`: what is looked at, measured and told."""

import json
import signal

import pytest

from probes.bandwidth.model.command import Refused
from probes.bandwidth.model.planned_series import LeftOut, Series
from probes.bandwidth.model.request import Request
from probes.facts.system.tool_names import TEST_TOOLS
from probes.snapshot.examination import Examination
from tests.support.documents import valid
from tests.tui.commands.bench.scene import Out, Scene, Signals, words
from tui.bandwidth.session import BenchSession
from tui.cli import command_parser, main
from tui.commands.bench import run as bench_module
from tui.commands.bench.options import parse_options

# With no further argument


@pytest.mark.slow
def test_it_tests_the_first_gpu_with_its_best_nic_in_loopback() -> None:
    status, out = Scene().run()
    assert status == 0
    assert "SIMULATED hgx-h100" in out
    assert "no job is affected" in out
    assert "[1/1] GPU0 → mlx5_0 · DMA-BUF" in out
    assert out.count("ib_write_bw -d mlx5_0") == 2
    assert "of 400 Gb/s" in out
    assert "✓" in out
    assert "registration via DMA-BUF" in out
    assert "shows: bandwidth of RDMA writes from GPU memory over mlx5_0" in out


@pytest.mark.parametrize("name", ["dgx-a100", "pcie-l40s", "gb200", "cloud-vm"])
def test_so_it_does_on_every_simulated_node(name: str) -> None:
    status, out = Scene(name).run("--seconds", "3")
    assert status == 0, out
    assert "[1/1] GPU0 → mlx5_0" in out


@pytest.mark.slow
def test_rows_come_as_they_are_measured_each_flushed() -> None:
    scene = Scene()
    seen: list[tuple[float, int]] = []

    class Watched(Out):
        def flush(self) -> None:
            seen.append((scene.now, self.getvalue().count("\n     1048576")))

    out = Watched()
    options = parse_options(command_parser().parse_args(["bench"]))
    bench_module.command(scene.host, out, options, store=scene.store, starter=scene.starter)
    times = {rows: at for at, rows in reversed(seen)}
    assert len(times) >= 10
    assert times[5] - times[1] == pytest.approx(4.0, abs=0.5)


@pytest.mark.parametrize("tool", [tool for tool in TEST_TOOLS if tool != "ib_write_bw"])
@pytest.mark.slow
def test_every_test_can_be_run(tool: str) -> None:
    word = tool.removeprefix("ib_").removesuffix("_bw").removesuffix("_perf").replace("_", "-")
    word = "gdrcopy" if tool == "gdrcopy_copybw" else word
    status, out = Scene().run("--test", word)
    assert status == 0, out
    assert "1 of 1 test measured" in out


# Looking, without measuring


def test_the_list_has_every_tool(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--demo", "--list"]) == 0
    told = capsys.readouterr().out
    assert all(tool in told for tool in TEST_TOOLS)
    assert main(["bench", "--demo", "--list", "--json"]) == 0
    tools = json.loads(capsys.readouterr().out)["tools"]
    assert [tool["tool"] for tool in tools] == list(TEST_TOOLS)
    assert tools[0]["version"] == "6.23"
    assert "unknown" in tools[-1]


def test_a_dry_run_shows_all_and_starts_nothing() -> None:
    scene = Scene(live=True)
    scene.starter = Signals(scene.starter, signal.SIGTERM, 1)
    status, out = scene.run("--memory", "compare", "--dry-run", "--yes")
    assert status == 0
    assert scene.starter.started == []
    for told in (
        "3 tests · about 39 s",
        "shows: ",
        "does not show: ",
        "server: ",
        "client: ",
        "at most 400 Gb/s",
    ):
        assert told in out
    assert "This would affect running jobs:" in out
    assert "pid 41000" in out


def test_a_dry_run_as_json_has_the_commands() -> None:
    status, out = Scene().run("--dry-run", "--json", "--serve")
    told = json.loads(out)
    assert status == 0
    (test,) = told["tests"]
    assert test["commands"]["server"][-1] != "127.0.0.1"
    assert test["for_peer"].endswith(" hgx-h100")
    assert test["limit_gbps"] > 390


# Series


@pytest.mark.slow
def test_a_comparison_says_what_it_means() -> None:
    status, out = Scene().run("--memory", "compare", "--seconds", "3")
    assert status == 0
    assert "[2/3] GPU0 → mlx5_0 · nvidia-peermem · about 12 s left" in out
    told = words(out.partition("What it means")[2])
    assert "GPUDirect RDMA via DMA-BUF works" in told
    assert "equally fast" in told


@pytest.mark.slow
def test_a_path_that_this_node_lacks_is_a_finding_not_a_failure() -> None:
    status, out = Scene("hgx-h100+peermem-not-loaded").run("--memory", "compare", "--seconds", "3")
    assert status == 0
    assert "✗ failed" in out
    assert "Couldn't allocate MR with error=14" in out
    assert "DMA-BUF works" in out


@pytest.mark.slow
def test_a_test_that_fails_alone_is_not_measured() -> None:
    status, out = Scene("hgx-h100+peermem-not-loaded").run("--memory", "peermem")
    assert status == 2
    assert "1 of 1 test failed" in out


@pytest.mark.slow
def test_a_sweep_ends_in_a_matrix() -> None:
    status, out = Scene().run("--sweep", "--seconds", "2")
    assert status == 0
    assert "[8/8] GPU7" in out
    matrix = out.rpartition("DMA-BUF   Gb/s")[2]
    assert all(f"GPU{number}" in matrix for number in range(8))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("--sweep",), 2),
        (("--matrix",), 2),
        (("--memory", "compare"), 2),
        (("--sweep", "--memory", "compare"), 2),
    ],
)
def test_a_sweep_that_leaves_a_gpu_out_has_not_passed(
    arguments: tuple[str, ...], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = BenchSession.plan

    def without_one(bench: BenchSession, examination: Examination, request: Request) -> Series | Refused:
        series = whole(bench, examination, request)
        assert isinstance(series, Series)
        left = LeftOut("GPU9 → mlx5_9 · DMA-BUF", "port 1 of mlx5_9 is down")
        return Series(series.title, series.tests[-1:], (left,))

    monkeypatch.setattr(BenchSession, "plan", without_one)
    got, out = Scene().run(*arguments, "--seconds", "2", "--min-gbps", "100")
    assert got == status
    last = words(out.rpartition("\n\n")[2])
    assert ("1 of 2 tests skipped: GPU9 → mlx5_9 · DMA-BUF (port 1 of mlx5_9 is down)" in last) == bool(
        status
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bar", "status", "told"), [("300", 0, "all reach 300"), ("399", 1, "below the threshold of 399")]
)
def test_the_bar(bar: str, status: int, told: str) -> None:
    got, out = Scene().run("--min-gbps", bar, "--seconds", "3")
    assert got == status
    assert told in out


# JSON


@pytest.mark.slow
def test_json_is_one_object_at_the_end() -> None:
    status, out = Scene().run("--json", "--memory", "compare", "--seconds", "3", "--min-gbps", "399")
    told = valid("bench", out)
    assert status == told["exit_status"] == 1
    assert "below the threshold" in told["exit_reason"]
    assert (told["source"], told["label"]) == ("simulated", "hgx-h100")
    assert [result["memory"] for result in told["results"]] == ["host memory", "nvidia-peermem", "DMA-BUF"]
    assert told["results"][0]["gbps"] > 300
    assert told["results"][0]["judgment"]["verdict"] == "near line rate"
    assert any("works" in sentence for sentence in told["meaning"])
    assert "pid 41000" in told["affected"][0]


def test_json_tells_a_refusal_too() -> None:
    status, out = Scene().run("--json", "--nic", "mlx5_99")
    told = valid("bench", out)
    assert status == told["exit_status"] == 2
    assert "mlx5_99" in told["exit_reason"]
    assert told["results"] == []


# A peer


def test_a_server_prints_the_command_for_the_peer_and_says_that_it_waits() -> None:
    scene = Scene()
    scene.starter = Signals(scene.starter, signal.SIGINT, 1)
    status, out = scene.run("--serve")
    assert status == 130
    line = next(line for line in out.splitlines() if "on the peer: " in line)
    assert line.endswith("--use_cuda_dmabuf hgx-h100")
    assert "--run_infinitely" not in line
