"""From a wish to commands, on simulated nodes: what is run, what is left out and why, what is refused."""

import pytest

from probes.bandwidth.model.command import Refused
from probes.bandwidth.model.request import MemoryPath, Mode, Request, Scope
from probes.bandwidth.model.result import planned_key
from probes.bandwidth.model.samples import BY_PEERMEM
from probes.bandwidth.planning.series import plan_series
from probes.bandwidth.results.against_earlier import machine_type
from probes.bandwidth.tools.perftest_command import PerftestSettings
from probes.facts.system.tool_names import NCCL_TESTS, TEST_TOOLS
from probes.simulation.host import SimulatedHost
from probes.snapshot.examination import Examination, examine
from tests.support.bandwidth_nodes import HOSTILE, lacking, node, only, planned
from tests.support.tiers import MEASURABLE


def test_a_sweep_tells_which_nearest_nic_is_down() -> None:
    down = node("hgx-h100+port-down")
    sweep = planned(Request(scope=Scope.SWEEP), down)
    assert len(sweep.tests) == 8
    (missed,) = [test for test in sweep.left_out if test.is_missed]
    assert missed.title == "mlx5_1"
    assert "port 1 is DOWN" in missed.reason
    over_another = next(test for test in sweep.tests if test.pair.gpu_label == "GPU1")
    assert over_another.pair.nic != "mlx5_1"
    assert any("mlx5_1 is a better NIC for GPU1" in note for note in over_another.notes)
    assert [test.title for test in planned(Request(scope=Scope.MATRIX), down).left_out] == ["mlx5_1"]
    assert planned(Request(scope=Scope.SWEEP)).left_out == ()


def test_the_gpu_at_the_far_end_is_named() -> None:
    test = only(Request(far_nic="mlx5_1"))
    assert test.title == "GPU0 → mlx5_0 → mlx5_1 → GPU1 · DMA-BUF"
    assert test.far is not None
    assert test.far.gpu is not None
    assert test.far.gpu.index == 1
    assert only(Request()).far is None


def test_host_memory_is_measured_once_a_nic() -> None:
    matrix = planned(Request(scope=Scope.MATRIX, memory=MemoryPath.COMPARE))
    titles = [test.title for test in matrix.tests]
    assert len(titles) == len(set(titles)) == 10 + 2 * 80
    over_one = planned(Request(scope=Scope.SWEEP, memory=MemoryPath.HOST, nic="mlx5_1"))
    assert [test.title for test in over_one.tests] == ["mlx5_1 · host memory"]


def test_tests_that_differ_have_other_keys() -> None:
    wishes = [
        Request(tool="gdrcopy_copybw"),
        Request(tool="gdrcopy_copybw", size_bytes=64),
        Request(tool="all_reduce_perf", over_network=True),
        Request(tool="all_reduce_perf", over_network=True, nic="mlx5_3"),
        Request(),
        Request(size_bytes=64),
        Request(far_nic="mlx5_1"),
    ]
    assert len({planned_key(only(wish)) for wish in wishes}) == len(wishes)


@pytest.mark.parametrize("fault", ["half-rate", "gpu-without-driver", "port-down", "one-lane"])
def test_a_fault_makes_no_other_type_of_the_machine(fault: str) -> None:
    assert machine_type(node(f"hgx-h100+{fault}")) == machine_type(node())
    assert "8 × NVIDIA H100" in machine_type(node())


def refused(request: Request, examination: Examination | None = None) -> str:
    series = plan_series(examination or node(), request, 18600)
    assert isinstance(series, Refused)
    return series.reason


def test_with_no_wish_the_first_gpu_and_its_best_nic_in_loopback() -> None:
    test = only(Request())
    assert test.title == "GPU0 → mlx5_0 · DMA-BUF"
    server, client = (end.command.argv for end in test.processes)
    assert client[-1] == "127.0.0.1"
    assert client[:-1] == server
    assert "--use_cuda_dmabuf" in server
    assert server[server.index("-p") :][:2] == ("-p", "18600")
    assert "numactl" in server
    assert test.tcp_port == 18600
    assert test.end_after_s == 10.0


@pytest.mark.parametrize("name", MEASURABLE)
def test_every_simulated_node_can_measure_its_first_gpu(name: str) -> None:
    test = only(Request(), node(name))
    assert test.pair.gpu_label == "GPU0"
    assert test.limit.least is not None


@pytest.mark.parametrize("tool", TEST_TOOLS)
def test_every_tool_can_be_wished_for(tool: str) -> None:
    test = only(Request(tool=tool))
    assert test.tool == tool
    assert not [word for word in test.processes[0].command.argv if " " in word]


def test_a_comparison_measures_host_memory_first() -> None:
    series = planned(Request(memory=MemoryPath.COMPARE))
    assert [test.memory for test in series.tests] == ["host memory", "nvidia-peermem", "DMA-BUF"]
    assert not series.tests[0].pair.gpu


def test_what_a_build_cannot_do_is_left_out_with_the_reason_and_the_way_to_get_it() -> None:
    series = planned(Request(memory=MemoryPath.COMPARE), lacking("hgx-h100", dmabuf=False))
    assert [test.memory for test in series.tests] == ["host memory", "nvidia-peermem"]
    (left,) = series.left_out
    assert "built without DMA-BUF" in left.reason
    assert "CUDA_H_PATH" in left.reason


def test_without_cuda_host_memory_is_still_measured() -> None:
    plain = lacking("hgx-h100", cuda=False, dmabuf=False)
    assert "built without CUDA" in refused(Request(), plain)
    assert only(Request(memory=MemoryPath.HOST), plain).memory == "host memory"


def test_a_missing_tool_is_named_with_how_to_get_it() -> None:
    told = refused(Request(tool="all_reduce_perf"), lacking("hgx-h100", "all_reduce_perf"))
    assert "all_reduce_perf is not installed" in told
    assert "github.com/NVIDIA/nccl-tests" in told


def test_without_numactl_it_is_not_bound_and_says_so() -> None:
    test = only(Request(), lacking("hgx-h100", "numactl"))
    assert "numactl" not in test.processes[0].command.argv
    assert "numactl is not installed" in test.notes[0]


def test_a_sweep_takes_every_gpu_and_a_matrix_every_pair() -> None:
    sweep = planned(Request(scope=Scope.SWEEP))
    assert [test.pair.gpu_label for test in sweep.tests] == [f"GPU{number}" for number in range(8)]
    assert len({test.pair.nic for test in sweep.tests}) == 8
    matrix = planned(Request(scope=Scope.MATRIX))
    assert len({(test.pair.gpu, test.pair.nic) for test in matrix.tests}) == len(matrix.tests) == 80
    assert matrix.seconds == pytest.approx(80 * matrix.tests[0].seconds)


def test_loopback_to_another_device() -> None:
    test = only(Request(far_nic="mlx5_1"))
    server, client = (end.command.argv for end in test.processes)
    assert "mlx5_1" in server
    assert "mlx5_0" in client
    assert test.pair.far_nic == "mlx5_1"
    assert not test.limit.is_loopback
    assert any("mlx5_1" in bound.name for bound in test.limit.bounds)


def test_a_server_tells_what_to_start_at_the_peer() -> None:
    test = only(Request(setup=Mode.SERVER))
    assert len(test.processes) == 1
    assert "ib_write_bw" in test.for_peer
    # Nobody here could end a server's test without an end.
    assert "--run_infinitely" not in test.for_peer
    assert test.end_after_s is None


def test_a_client_tells_what_has_to_wait_at_the_peer() -> None:
    test = only(Request(setup=Mode.CLIENT, peer="node2", far_nic="mlx5_5"))
    assert test.processes[0].command.argv[-1] == "node2"
    assert "mlx5_5" in test.for_peer
    assert test.tcp_port == 0


def test_both_ends_by_ssh_are_argv_lists() -> None:
    test = only(Request(setup=Mode.BOTH_ENDS, peer="root@node2"))
    server, client = test.processes
    assert server.command.argv[0] == "ssh"
    assert server.command.argv[-3:-1] == ("--", "root@node2")
    assert server.host == "root@node2"
    assert client.command.argv[-1] == "node2"


@pytest.mark.parametrize("setup", [Mode.CLIENT, Mode.BOTH_ENDS])
@pytest.mark.parametrize("peer", HOSTILE)
def test_what_is_no_host_is_refused(setup: Mode, peer: str) -> None:
    told = refused(Request(setup=setup, peer=peer))
    assert "not a valid host name" in told or "no peer" in told
    assert "\n" not in told


@pytest.mark.parametrize("name", ["-d", "mlx5_0;reboot", "$(x)", "a b", "../mlx5_0", ""])
def test_what_is_no_device_is_refused(name: str) -> None:
    if name:
        assert refused(Request(nic=name))
    assert refused(Request(setup=Mode.CLIENT, peer="node2", far_nic=name or "-x"))
    assert refused(Request(gpu=name or "-x"))


@pytest.mark.parametrize("number", [0, -1, 70_000])
def test_numbers_out_of_their_range_are_refused(number: int) -> None:
    assert "queue pairs" in refused(Request(queue_pairs=number))
    assert "TCP port" in refused(Request(tcp_port=number or -5))


def test_an_unknown_tool_is_refused() -> None:
    assert "not a test that gdrtop knows" in refused(Request(tool="rm"))


def test_a_test_of_all_sizes_ends_by_itself() -> None:
    test = only(Request(all_sizes=True))
    assert "-a" in test.processes[1].command.argv
    assert test.end_after_s is None


def test_a_latency_test_counts_messages() -> None:
    test = only(Request(tool="ib_write_lat"))
    assert isinstance(test.settings, PerftestSettings)
    assert test.settings.duration_s is None
    assert "writes" in test.purpose.proves


@pytest.mark.parametrize("tool", NCCL_TESTS)
def test_a_collective_takes_all_gpus(tool: str) -> None:
    assert only(Request(tool=tool)).pair.gpu_label.count("GPU") == 8
    over = only(Request(tool=tool, over_network=True, nic="mlx5_3"))
    assert "NCCL_P2P_DISABLE=1" in over.processes[0].command.argv
    assert "NCCL_IB_HCA==mlx5_3" in over.processes[0].command.argv


def test_a_roce_port_is_given_its_gid_index() -> None:
    assert "-x" in only(Request(), node("pcie-l40s")).processes[0].command.argv


def test_a_perftest_without_dmabuf_takes_the_path_that_it_knows() -> None:
    test = planned(Request(), lacking("hgx-h100", dmabuf=False)).tests[0]
    assert test.memory == BY_PEERMEM
    assert any("built without DMA-BUF" in note for note in test.notes)
    without = examine(SimulatedHost("hgx-h100+peermem-not-loaded,perftest-without-dmabuf"))
    refused = plan_series(without, Request(), 18600)
    assert isinstance(refused, Refused)
    assert "without DMA-BUF" in refused.reason


def test_where_index_0_has_no_key_each_end_is_given_the_index_of_its_own() -> None:
    keys = node("hgx-h100+pkey-index0-limited")  # mlx5_2 alone
    over_it = only(Request(memory=MemoryPath.HOST, nic="mlx5_2"), keys)
    assert all("--pkey_index=1" in process.command.argv for process in over_it.processes)
    assert any("mlx5_2: index 0" in note and "index 1" in note for note in over_it.notes)
    to_it = only(Request(memory=MemoryPath.HOST, nic="mlx5_1", far_nic="mlx5_2"), keys)
    server, client = (process.command.argv for process in to_it.processes)
    assert ("--pkey_index=1" in server, "--pkey_index=1" in client) == (True, False)
    usual = only(Request(memory=MemoryPath.HOST, nic="mlx5_1"), keys)
    assert not [word for process in usual.processes for word in process.command.argv if "pkey" in word]
    assert not [note for note in usual.notes if "partition" in note]


def test_a_collective_uses_the_key_that_all_its_nics_have() -> None:
    def variables(name: str, nic: str | None = None) -> str:
        test = only(Request(tool="all_reduce_perf", over_network=True, nic=nic), node(name))
        return " ".join(test.processes[0].command.argv)

    assert "NCCL_IB_PKEY=1" in variables("hgx-h100+pkey-index0-zero")
    assert "NCCL_IB_PKEY" not in variables("hgx-h100+pkey-index0-limited")  # one of its NICs
    assert "NCCL_IB_PKEY=1" in variables("hgx-h100+pkey-index0-limited", "mlx5_2")
    assert "NCCL_IB_PKEY" not in variables("hgx-h100")
    assert "NCCL_IB_PKEY" not in variables("pcie-l40s")
