"""`gdrtop bench` on nodes whose jobs copy through host memory: what it measures, and by what it judges."""

import pytest

from tests.tui.commands.bench.scene import Scene

PEER = ("--ssh", "root@node2", "--sweep", "--seconds", "2")


@pytest.mark.parametrize("memory", [(), ("--memory", "compare")], ids=" ".join)
@pytest.mark.parametrize("node", ["dgx-spark", "pcie-l40s+geforce-no-gdr"])
def test_the_best_path_is_host_memory_where_the_gpus_cannot_be(node: str, memory: tuple[str, ...]) -> None:
    status, out = Scene(node).run("--seconds", "2", *memory)
    assert status == 0
    assert "· host memory" in out
    assert "not usable" not in out


def test_each_function_of_a_healthy_pair_is_as_expected() -> None:
    status, out = Scene("dgx-spark").run(*PEER)
    assert status == 0
    assert "host memory over every NIC: 4 tests" in out
    assert "4 of 4 tests measured, as expected for DGX Spark" in out
    assert "host memory, as jobs on DGX Spark use it" in out


def test_a_nic_that_was_not_fully_initialized_is_named() -> None:
    status, out = Scene("dgx-spark+spark-degraded-initialization").run(*PEER)
    text = " ".join(out.split())
    assert status == 1
    assert "at least 85 Gb/s is expected for DGX Spark" in text
    assert "a NIC that was not fully initialized" in text
    assert "pcie-link-below-port-rate" not in text


def test_half_of_the_lanes_is_slow_and_no_sign_of_the_other_fault() -> None:
    status, out = Scene("dgx-spark+spark-pcie-lanes").run(*PEER, "--nic", "roceP2p1s0f0")
    assert status == 1
    assert "spark-pcie-lanes" in out
    assert "not fully initialized" not in out


def test_in_loopback_nothing_is_expected() -> None:
    """The rates of reports are those of two nodes."""
    _, out = Scene("dgx-spark").run("--seconds", "2")
    assert "is expected" not in out


def test_tests_leave_memory_where_gpus_use_that_of_the_node(capsys: pytest.CaptureFixture[str]) -> None:
    low = "MemTotal: 124780544 kB\nMemAvailable: 1048576 kB\n"
    scene = Scene("dgx-spark")
    scene.host.tree.add("/proc/meminfo", low)
    _, out = scene.run("--test", "all-reduce", "--dry-run")
    assert f"-e {64 << 20} " in out
    assert "messages of up to 64 MiB" in " ".join(out.split())
    assert scene.run("--size", "128M", "--seconds", "2")[0] == 2
    assert "64 MiB are safe now" in capsys.readouterr().err
    other = Scene("hgx-h100")
    other.host.tree.add("/proc/meminfo", low)
    assert f"-e {1 << 30} " in other.run("--test", "all-reduce", "--dry-run")[1]
