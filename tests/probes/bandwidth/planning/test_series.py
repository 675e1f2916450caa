"""From a wish to commands, on simulated nodes: what is run, what is left out and why, what is refused."""

from dataclasses import replace
from functools import lru_cache

import pytest

from probes.bandwidth.model.planned_test import PlannedTest, Series
from probes.bandwidth.model.request import Choice, MemoryPath, Scope, Setup
from probes.bandwidth.model.result import planned_key
from probes.bandwidth.planning.series import series_of
from probes.bandwidth.results.machine_type import machine_type
from probes.bandwidth.tools.command import Refused
from probes.bandwidth.tools.perftest_command import PerftestSettings
from probes.bandwidth.tools.samples import BY_PEERMEM
from probes.base.unknown import Reason, Unknown
from probes.facts.system.tool_names import NCCL_TESTS, TEST_TOOLS
from probes.facts.system.tools import Perftest, ToolFacts
from probes.simulation.host import SimulatedHost
from probes.simulation.node.description import simulated_names
from probes.snapshot.examination import Examination, examine

HOSTILE = (
    "-oProxyCommand=reboot",
    "a;reboot",
    "$(reboot)",
    "root@-v",
    "-l@node2",
    "a b",
    "a\nb",
    "root@a@b",
    "@node2",
    "",
    "x" * 300,
    "fe80::1%eth0",
)


@lru_cache(maxsize=8)
def node(name: str = "hgx-h100") -> Examination:
    return examine(SimulatedHost(name, clock=lambda: 1000.0))


def planned(choice: Choice, examination: Examination | None = None) -> Series:
    series = series_of(examination or node(), choice, 18600)
    assert isinstance(series, Series), series
    return series


def only(choice: Choice, examination: Examination | None = None) -> PlannedTest:
    (test,) = planned(choice, examination).tests
    return test


def test_a_sweep_tells_which_nearest_nic_is_down() -> None:
    down = node("hgx-h100+port-down")
    sweep = planned(Choice(scope=Scope.SWEEP), down)
    assert len(sweep.tests) == 8
    (missed,) = [one for one in sweep.left_out if one.is_missed]
    assert missed.title == "mlx5_1"
    assert "port 1 is DOWN" in missed.reason
    over_another = next(test for test in sweep.tests if test.pair.gpu_label == "GPU1")
    assert over_another.pair.nic != "mlx5_1"
    assert any("mlx5_1 would serve GPU1 better" in note for note in over_another.notes)
    assert [one.title for one in planned(Choice(scope=Scope.MATRIX), down).left_out] == ["mlx5_1"]
    assert planned(Choice(scope=Scope.SWEEP)).left_out == ()


def test_the_gpu_at_the_far_end_is_named() -> None:
    test = only(Choice(far_nic="mlx5_1"))
    assert test.title == "GPU0 → mlx5_0 → mlx5_1 → GPU1 · DMA-BUF"
    assert test.far is not None
    assert test.far.gpu is not None
    assert test.far.gpu.index == 1
    assert only(Choice()).far is None


def test_host_memory_is_measured_once_a_nic() -> None:
    matrix = planned(Choice(scope=Scope.MATRIX, memory=MemoryPath.COMPARE))
    titles = [test.title for test in matrix.tests]
    assert len(titles) == len(set(titles)) == 10 + 2 * 80
    over_one = planned(Choice(scope=Scope.SWEEP, memory=MemoryPath.HOST, nic="mlx5_1"))
    assert [test.title for test in over_one.tests] == ["mlx5_1 · host memory"]


def test_a_peers_server_that_would_spin_gets_a_test_that_ends() -> None:
    def command(tool: str) -> str:
        return " ".join(only(Choice(tool=tool, setup=Setup.CLIENT, peer="node2")).for_peer)

    assert "--run_infinitely" in command("ib_write_bw")
    assert "--run_infinitely" not in command("ib_send_bw")


def test_tests_that_differ_have_other_keys() -> None:
    wishes = [
        Choice(tool="gdrcopy_copybw"),
        Choice(tool="gdrcopy_copybw", size_bytes=64),
        Choice(tool="all_reduce_perf", over_network=True),
        Choice(tool="all_reduce_perf", over_network=True, nic="mlx5_3"),
        Choice(),
        Choice(size_bytes=64),
        Choice(far_nic="mlx5_1"),
    ]
    assert len({planned_key(only(wish)) for wish in wishes}) == len(wishes)


@pytest.mark.parametrize("fault", ["half-rate", "gpu-without-driver", "port-down", "one-lane"])
def test_a_fault_makes_no_other_type_of_the_machine(fault: str) -> None:
    assert machine_type(node(f"hgx-h100+{fault}")) == machine_type(node())
    assert "8 × NVIDIA H100" in machine_type(node())


def refused(choice: Choice, examination: Examination | None = None) -> str:
    series = series_of(examination or node(), choice, 18600)
    assert isinstance(series, Refused)
    return series.reason


def lacking(name: str, *tools: str, **changed: object) -> Examination:
    """A node without some tools, or with another build of perftest."""
    examination = node(name)
    facts = examination.tools
    assert isinstance(facts, ToolFacts)
    assert isinstance(facts.perftest, Perftest)
    gone = {tool: Unknown(Reason.NOT_THERE, tool, "not installed") for tool in tools}
    build = replace(facts.perftest, **changed)  # type: ignore[arg-type]
    return replace(examination, tools=replace(facts, paths={**facts.paths, **gone}, perftest=build))


def test_with_no_wish_the_first_gpu_and_its_best_nic_in_loopback() -> None:
    test = only(Choice())
    assert test.title == "GPU0 → mlx5_0 · DMA-BUF"
    server, client = (end.command.argv for end in test.ends)
    assert client[-1] == "127.0.0.1"
    assert client[:-1] == server
    assert "--use_cuda_dmabuf" in server
    assert server[server.index("-p") :][:2] == ("-p", "18600")
    assert "numactl" in server
    assert test.tcp_port == 18600
    assert test.end_after_s == 10.0


@pytest.mark.parametrize("name", simulated_names())
def test_every_simulated_node_can_measure_its_first_gpu(name: str) -> None:
    test = only(Choice(), node(name))
    assert test.pair.gpu_label == "GPU0"
    assert test.limit.least is not None


@pytest.mark.parametrize("tool", TEST_TOOLS)
def test_every_tool_can_be_wished_for(tool: str) -> None:
    test = only(Choice(tool=tool))
    assert test.tool == tool
    assert not [word for word in test.ends[0].command.argv if " " in word]


def test_a_comparison_measures_host_memory_first() -> None:
    series = planned(Choice(memory=MemoryPath.COMPARE))
    assert [test.memory for test in series.tests] == ["host memory", "nvidia-peermem", "DMA-BUF"]
    assert not series.tests[0].pair.gpu


def test_what_a_build_cannot_do_is_left_out_with_the_reason_and_the_way_to_get_it() -> None:
    series = planned(Choice(memory=MemoryPath.COMPARE), lacking("hgx-h100", dmabuf=False))
    assert [test.memory for test in series.tests] == ["host memory", "nvidia-peermem"]
    (left,) = series.left_out
    assert "built without DMA-BUF" in left.reason
    assert "CUDA_H_PATH" in left.reason


def test_without_cuda_host_memory_is_still_measured() -> None:
    plain = lacking("hgx-h100", cuda=False, dmabuf=False)
    assert "built without CUDA" in refused(Choice(), plain)
    assert only(Choice(memory=MemoryPath.HOST), plain).memory == "host memory"


def test_a_missing_tool_is_named_with_how_to_get_it() -> None:
    told = refused(Choice(tool="all_reduce_perf"), lacking("hgx-h100", "all_reduce_perf"))
    assert "all_reduce_perf is not installed" in told
    assert "github.com/NVIDIA/nccl-tests" in told


def test_without_numactl_it_is_not_bound_and_says_so() -> None:
    test = only(Choice(), lacking("hgx-h100", "numactl"))
    assert "numactl" not in test.ends[0].command.argv
    assert "numactl is not installed" in test.notes[0]


def test_a_sweep_takes_every_gpu_and_a_matrix_every_pair() -> None:
    sweep = planned(Choice(scope=Scope.SWEEP))
    assert [test.pair.gpu_label for test in sweep.tests] == [f"GPU{number}" for number in range(8)]
    assert len({test.pair.nic for test in sweep.tests}) == 8
    matrix = planned(Choice(scope=Scope.MATRIX))
    assert len({(test.pair.gpu, test.pair.nic) for test in matrix.tests}) == len(matrix.tests) == 80
    assert matrix.seconds == pytest.approx(80 * matrix.tests[0].seconds)


def test_loopback_to_another_device() -> None:
    test = only(Choice(far_nic="mlx5_1"))
    server, client = (end.command.argv for end in test.ends)
    assert "mlx5_1" in server
    assert "mlx5_0" in client
    assert test.pair.far_nic == "mlx5_1"
    assert not test.limit.is_loopback
    assert any("mlx5_1" in bound.name for bound in test.limit.bounds)


def test_a_server_tells_what_to_start_at_the_peer() -> None:
    test = only(Choice(setup=Setup.SERVER))
    assert len(test.ends) == 1
    assert "ib_write_bw" in test.for_peer
    # Nobody here could end a server's test without an end.
    assert "--run_infinitely" not in test.for_peer
    assert test.end_after_s is None


def test_a_client_tells_what_has_to_wait_at_the_peer() -> None:
    test = only(Choice(setup=Setup.CLIENT, peer="node2", far_nic="mlx5_5"))
    assert test.ends[0].command.argv[-1] == "node2"
    assert "mlx5_5" in test.for_peer
    assert test.tcp_port == 0


def test_both_ends_by_ssh_are_argv_lists() -> None:
    test = only(Choice(setup=Setup.BOTH_ENDS, peer="root@node2"))
    server, client = test.ends
    assert server.command.argv[0] == "ssh"
    assert server.command.argv[-3:-1] == ("--", "root@node2")
    assert server.host == "root@node2"
    assert client.command.argv[-1] == "node2"


@pytest.mark.parametrize("setup", [Setup.CLIENT, Setup.BOTH_ENDS])
@pytest.mark.parametrize("peer", HOSTILE)
def test_what_is_no_host_is_refused(setup: Setup, peer: str) -> None:
    told = refused(Choice(setup=setup, peer=peer))
    assert "no host name" in told or "no peer" in told
    assert "\n" not in told


@pytest.mark.parametrize("name", ["-d", "mlx5_0;reboot", "$(x)", "a b", "../mlx5_0", ""])
def test_what_is_no_device_is_refused(name: str) -> None:
    if name:
        assert refused(Choice(nic=name))
    assert refused(Choice(setup=Setup.CLIENT, peer="node2", far_nic=name or "-x"))
    assert refused(Choice(gpu=name or "-x"))


@pytest.mark.parametrize("number", [0, -1, 70_000])
def test_numbers_out_of_their_range_are_refused(number: int) -> None:
    assert "queue pairs" in refused(Choice(queue_pairs=number))
    assert "TCP port" in refused(Choice(tcp_port=number or -5))


def test_an_unknown_tool_is_refused() -> None:
    assert "no test that gdrtop knows" in refused(Choice(tool="rm"))


def test_a_test_of_all_sizes_ends_by_itself() -> None:
    test = only(Choice(all_sizes=True))
    assert "-a" in test.ends[1].command.argv
    assert test.end_after_s is None


def test_a_latency_test_counts_messages() -> None:
    test = only(Choice(tool="ib_send_lat"))
    assert isinstance(test.settings, PerftestSettings)
    assert test.settings.duration_s is None
    assert "sends" in test.purpose.proves


def test_sending_both_ways_has_an_end() -> None:
    test = only(Choice(tool="ib_send_bw", is_bidirectional=True))
    assert "--run_infinitely" not in test.ends[0].command.argv
    assert test.end_after_s is None


@pytest.mark.parametrize("tool", NCCL_TESTS)
def test_a_collective_takes_all_gpus(tool: str) -> None:
    assert only(Choice(tool=tool)).pair.gpu_label.count("GPU") == 8
    over = only(Choice(tool=tool, over_network=True, nic="mlx5_3"))
    assert "NCCL_P2P_DISABLE=1" in over.ends[0].command.argv
    assert "NCCL_IB_HCA==mlx5_3" in over.ends[0].command.argv


def test_a_roce_port_is_given_its_gid_index() -> None:
    assert "-x" in only(Choice(), node("pcie-l40s")).ends[0].command.argv


def test_a_perftest_without_dmabuf_takes_the_path_that_it_knows() -> None:
    test = planned(Choice(), lacking("hgx-h100", dmabuf=False)).tests[0]
    assert test.memory == BY_PEERMEM
    assert any("built without DMA-BUF" in note for note in test.notes)
    without = examine(SimulatedHost("hgx-h100+peermem-not-loaded,perftest-without-dmabuf"))
    refused = series_of(without, Choice(), 18600)
    assert isinstance(refused, Refused)
    assert "without DMA-BUF" in refused.reason
