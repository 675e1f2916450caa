"""`gdrtop bench --bisect`: the variable that makes a job slow is named, and an interrupted search goes on."""

import io
import signal
from functools import partial
from typing import Any

import pytest

from probes.setup.env.assignments import FileKind
from probes.setup.env.file_kind import File
from tests.support.documents import valid
from tests.tui.commands.bench.scene import Out, Scene, Signals, words
from tui.cli import command_parser
from tui.command_line.arguments import UsageError
from tui.commands.bench import run as bench_module
from tui.commands.bench.bisect import BisectCommand
from tui.commands.bench.options import parse_options

JOB = """
export NCCL_ALGO=Ring
export NCCL_IB_HCA=mlx5_0
export NCCL_BUFFSIZE=4194304
export NCCL_NET_PLUGIN=/home/a/libnccl-net.so
export NCCL_P2P_DISABLE=0
export NCCL_DEBUG=INFO
"""


def bisect(
    scene: Scene, text: str, *arguments: str, restart: bool = False, answers: io.StringIO | None = None
) -> tuple[int, str]:
    out = Out()
    status = bench_module.command(
        scene.host,
        out,
        parse_options(command_parser().parse_args(["bench", "--bisect", "job.env", *arguments])),
        answers=answers,
        store=scene.store,
        starter=scene.starter,
        pause=scene.pause,
        make_run=partial(BisectCommand, file=File("job.env", text, FileKind.SHELL), restart=restart),
    )
    return status, out.getvalue()


def bisect_json(scene: Scene, text: str, *arguments: str, status: int) -> dict[str, Any]:
    ended, out = bisect(scene, text, "--json", *arguments)
    document: dict[str, Any] = valid("bench-bisect", out)
    assert document["exit_status"] == ended == status
    return document


@pytest.mark.slow
def test_the_variable_that_makes_the_job_slow_is_named_with_what_it_costs() -> None:
    document = bisect_json(Scene(), JOB, status=1)
    assert [cause["names"] for cause in document["outcome"]["causes"]] == [["NCCL_IB_HCA"]]
    # Eight GPUs share one NIC.
    assert document["outcome"]["job_gbps"] < document["outcome"]["recommended_gbps"] / 6
    assert document["outcome"]["other_variables"] == ["NCCL_ALGO", "NCCL_BUFFSIZE"]
    assert len(document["runs"]) <= document["expected_runs"]["most"]
    assert {each["name"] for each in document["not_compared"]} == {
        "NCCL_NET_PLUGIN",
        "NCCL_P2P_DISABLE",
        "NCCL_DEBUG",
    }


@pytest.mark.slow
def test_variables_without_effect_end_after_four_runs() -> None:
    document = bisect_json(Scene(), "NCCL_ALGO=Ring\nNCCL_BUFFSIZE=1048576\n", status=0)
    assert len(document["runs"]) == document["expected_runs"]["if_none_matters"] == 4
    assert not document["outcome"]["differs"]


@pytest.mark.slow
def test_a_value_with_which_nccl_fails_is_found_like_a_slow_one() -> None:
    document = bisect_json(Scene(), "export NCCL_ALGO=Ring NCCL_IB_DISABLE=1\n", status=1)
    assert document["outcome"]["causes"] == [{"names": ["NCCL_IB_DISABLE"], "gbps": None}]


@pytest.mark.slow
def test_inside_the_node_the_variables_of_p2p_are_compared() -> None:
    document = bisect_json(Scene(), "export NCCL_P2P_DISABLE=1\n", "--inside-node", status=1)
    assert document["outcome"]["causes"][0]["names"] == ["NCCL_P2P_DISABLE"]


def test_a_dry_run_shows_both_commands_and_starts_nothing() -> None:
    scene = Scene()
    document = bisect_json(scene, JOB, "--dry-run", status=0)
    assert "NCCL_IB_HCA=mlx5_0" in document["commands"]["job"]
    assert not any(word.startswith("NCCL_IB_HCA=") for word in document["commands"]["recommended"])
    assert document["runs"] == []
    assert scene.now == 1000.0


def test_nothing_runs_where_nothing_differs() -> None:
    status, out = bisect(Scene(), "export NCCL_DEBUG=INFO\n", "--json")
    assert status == 2
    assert "no NCCL variable of job.env differs" in valid("bench-bisect", out)["exit_reason"]


def test_running_jobs_are_not_disturbed_without_a_yes() -> None:
    scene = Scene(live=True)
    document = bisect_json(scene, JOB, status=2)
    assert "running jobs would be affected" in document["exit_reason"]
    assert document["affected"]
    assert scene.store.results() == ()


@pytest.mark.slow
def test_an_interrupted_bisection_goes_on_and_a_finished_one_begins_again() -> None:
    scene = Scene()
    starter = scene.starter
    scene.starter = Signals(starter, signal.SIGTERM, 4)
    status, out = bisect(scene, JOB)
    assert status == 130
    assert "3 runs measured; start it again to go on" in words(out)
    scene.starter = starter
    status, out = bisect(scene, JOB)
    assert status == 1
    assert "3 runs of an interrupted bisection count" in words(out)
    assert "simulated: the results are made up" in words(out)
    assert "NCCL_IB_HCA makes the job slower" in words(out)
    assert "Recommended: NCCL_IB_HCA unset" in words(out)
    assert out.count("(measured at") == 3
    _, out = bisect(scene, JOB)
    assert "interrupted bisection" not in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--bisect", "job.env", "--gpu", "1"), "omit --gpu"),
        (("--bisect", "job.env", "--test", "write"), "--bisect needs nccl-tests"),
        (("--bisect", "job.env", "--inside-node", "--over-network"), "omit --over-network"),
        (("--restart",), "--restart applies only to --bisect"),
        (("--inside-node",), "--inside-node applies only to --bisect"),
    ],
)
def test_options_that_contradict_each_other_are_named(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_options(command_parser().parse_args(["bench", *arguments]))
