"""`gdrtop fleet bench --nccl`: transport, rate, the node that is slow, JSON and exit status."""

import argparse
import io
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.documents import valid
from tests.support.pairs_fleet import GOOD, SLOW, Fleet, fleet
from tui.bandwidth.processes import ProcessExit
from tui.commands.fleet import bench
from tui.commands.fleet.bench_nccl import NcclBench

NODE = "hgx-h100"


def ran(scene: Fleet, *words: str, directory: Path | None = None) -> tuple[int, str]:
    parser = argparse.ArgumentParser()
    bench.add_options(parser)
    parsed = argparse.Namespace(**vars(parser.parse_args(["--nccl", *words])), ascii=False, read_only=False)
    out = io.StringIO()
    run = NcclBench(
        parsed,
        scene.nodes,
        out,
        io.StringIO(),
        clock=scene.clock,
        pause=scene.clock.pause,
        results_directory=None if directory is None else str(directory),
    )
    status = run.run()
    assert scene.alive == {}, "nothing is left running"
    return status, out.getvalue()


@pytest.mark.parametrize("by", ["ssh", "srun", "mpirun"])
def test_healthy_nodes_pass_by_every_launcher(by: str) -> None:
    scene = fleet(NODE, NODE)
    status, text = ran(scene, "--by", by)
    assert "2 nodes, 16 GPUs: each NIC carries 3" in text
    assert "of 400 Gb/s" in text
    assert "with GPUDirect RDMA on all 32 channels" in text.replace("\n", " ")
    assert status == 0
    started = [sum(len(each.argvs) for each in scene.processes.values())]
    assert started == [2 if by == "ssh" else 1]


def test_one_slow_node_is_found_and_named() -> None:
    status, text = ran(fleet(GOOD, GOOD, SLOW, GOOD))
    assert status == 1
    assert "\ngpu2 is slow with other nodes too: each NIC carries " in text


def test_each_of_two_bad_nodes_has_the_figure_of_its_own_run() -> None:
    status, text = ran(fleet(NODE, NODE, f"{NODE}+acs-on", f"{NODE}+port-down"))
    assert status == 1
    said = re.findall(r"^(gpu\d) is slow with other nodes too: each NIC carries (\d+ of 400) ", text, re.M)
    runs = re.findall(r"^gpu\[[01],(\d)\] .*  (\d+ of 400) ", text, re.M)
    assert len({nic for _, nic in said}) == 2
    assert set(said) <= {(f"gpu{node}", nic) for node, nic in runs}, text


def test_two_nodes_do_not_show_which_end_is_slow() -> None:
    status, text = ran(fleet(GOOD, SLOW))
    assert status == 1
    assert "gpu[0-1] are slow together, and two nodes do not show which end it is" in text


def test_host_memory_fails_at_whatever_rate_and_the_others_are_measured_without_it() -> None:
    status, text = ran(fleet(NODE, f"{NODE}+no-gdr-path", NODE))
    assert status == 1
    assert "\ngpu1 uses host memory on mlx5_0, mlx5_1, " in text
    assert "2 nodes, 16 GPUs: each NIC carries" in text


@pytest.mark.parametrize("words", [(), ("--dry-run",)])
def test_the_json_document_is_what_its_schema_says(words: tuple[str, ...]) -> None:
    scene = fleet(GOOD, SLOW, GOOD)
    status, text = ran(scene, "--json", *words)
    document: dict[str, Any] = valid("fleet-bench", text)
    assert document["exit_status"] == status == (0 if words else 1)
    starts = [argv for each in scene.processes.values() for argv in each.argvs]
    assert sum("NCCL_RUN_DIAGNOSTICS=1" in argv for argv in starts) == (0 if words else 3), "only once"
    srun, mpirun = document["nccl"]["commands"]
    assert " srun -N 3 -w gpu0,gpu1,gpu2 " in srun
    assert mpirun.startswith("mpirun -np ")
    if not words:
        (fault,) = document["nccl"]["faults"]
        assert (fault["where"], fault["nodes"]) == ("node", ["gpu1"])
        whole = document["nccl"]["runs"][0]
        assert (whole["outcome"], whole["transport"]) == ("slow", "GPUDirect RDMA")
        assert whole["nic_gbps"] < 0.6 * whole["limit_gbps"]


class Ended:
    """A process that prints a line and fails."""

    def __init__(self, line: str) -> None:
        self._lines = [line]

    @property
    def ended(self) -> ProcessExit | None:
        return None if self._lines else ProcessExit(1, 0.1)

    def lines(self, seconds: float) -> list[str]:
        del seconds
        lines, self._lines = self._lines, []
        return lines

    def end(self) -> None:
        return


def test_a_node_without_nccl_is_left_out_and_the_others_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = fleet(GOOD, GOOD, GOOD)
    line = "gdrtop rank failed: cannot load libnccl.so.2: no such file"
    monkeypatch.setattr(scene.processes["gpu1"], "start", lambda argv, seconds: Ended(line))
    status, text = ran(scene)
    assert status == 2
    assert "2 nodes, 8 GPUs: each NIC carries" in text
    assert "gpu1: cannot load libnccl.so.2: no such file" in text


def test_a_node_whose_ranks_fail_is_found_with_the_line_that_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = fleet(GOOD, GOOD, GOOD, GOOD)
    monkeypatch.setattr(scene.processes["gpu3"], "start", lambda argv, seconds: Ended("out of luck"))
    status, text = ran(scene)
    assert status == 1
    words = " ".join(text.split())
    assert "gpu3 fails with other nodes too: its process exited with status 1: out of luck" in words


def test_an_interrupted_search_goes_on_where_it_stopped(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    scene = fleet(GOOD, GOOD, SLOW, GOOD)

    def interrupt() -> None:
        if sum(len(each.started) for each in scene.processes.values()) > 4:  # of the second round
            scene.clock.on_pause.clear()
            signal.raise_signal(signal.SIGINT)

    scene.clock.on_pause.append(interrupt)
    assert ran(scene, directory=tmp_path)[0] == 130
    assert "all ranks stopped, 1 run completed" in capsys.readouterr().err
    status, text = ran(fleet(GOOD, GOOD, SLOW, GOOD), directory=tmp_path)
    progress = capsys.readouterr().err
    assert "an earlier run was interrupted: 1 result of it is used" in progress
    assert "all nodes: " not in progress
    assert status == 1
    assert "\ngpu2 is slow with other nodes too: each NIC carries " in text
    assert "interrupted" not in ran(fleet(GOOD, GOOD, SLOW, GOOD), directory=tmp_path)[1]
