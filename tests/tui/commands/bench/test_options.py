"""`gdrtop bench`: what is wished, and what is wrong usage."""

import pytest

from tests.tui.commands.bench.scene import Scene
from tui.cli import main


@pytest.mark.parametrize("gpu", ["2", "GPU2", "0000:3a:00.0", "3A:00.0"])
def test_a_gpu_is_named_by_number_or_address(gpu: str) -> None:
    assert "GPU2 → mlx5_2" in Scene().run("--gpu", gpu, "--dry-run")[1]


def test_a_gpu_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert Scene().run("--gpu", "9\x1b[2J")[0] == 3
    told = capsys.readouterr().err
    assert "there is no GPU" in told
    assert "0000:18:00.0" in told
    assert "\x1b" not in told


@pytest.mark.slow
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
        (("--memory", "staged"), "NCCL_NET_GDR_LEVEL=LOC"),
        (("--test", "alltoall", "--memory", "staged"), "alltoall_perf"),
        (("--test", "alltoall", "--memory", "compare"), "alltoall_perf over the NICs, staged"),
        (("--memory", "staged", "--nic", "mlx5_3"), "NCCL_IB_HCA==mlx5_3"),
        (("--connect", "node2"), "on the peer: "),
        (("--ssh", "root@node2", "--peer-nic", "mlx5_7"), "ssh -tt"),
        (("--serve", "--peer-nic", "mlx5_7"), "-d mlx5_7"),
        (("--connect", "fd00::1"), "--ipv6-addr"),
        (("--ssh", "root@node2", "--peer-nic", "mlx5_99"), "there is no RDMA device mlx5_99 here"),
    ],
)
def test_options_reach_the_command(arguments: tuple[str, ...], told: str) -> None:
    status, out = Scene().run(*arguments, "--dry-run")
    assert status == 0
    assert told in out


@pytest.mark.slow
@pytest.mark.parametrize("test", ["write", "gdrcopy"])
def test_nothing_is_bound_where_that_is_not_wished(test: str) -> None:
    assert "numactl" in Scene().run("--test", test, "--dry-run")[1]
    status, out = Scene().run("--test", test, "--no-bind", "--dry-run")
    assert status == 0
    assert "numactl" not in out


@pytest.mark.parametrize(
    "arguments",
    [
        "--test nvbandwidth --no-bind",
        "--test all-reduce --no-bind",
        "--serve --connect node2",
        "--sweep --matrix",
        "--sweep --gpu 1",
        "--matrix --nic mlx5_0",
        "--sweep --serve",
        "--test gdrcopy --nic mlx5_0",
        "--test nvbandwidth --memory host",
        "--test all-reduce --memory host",
        "--test write --memory staged",
        "--test nvbandwidth --memory staged",
        "--memory staged --sweep",
        "--memory staged --seconds 5",
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
