"""Command lines of tests: what stands in them, what is refused, and that nothing slips in."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.bandwidth.model.command import Command, Refused, is_host
from probes.bandwidth.tools.gdrcopy import GdrcopySettings
from probes.bandwidth.tools.nccl_tests import NcclSettings
from probes.bandwidth.tools.nvbandwidth import NvbandwidthSettings
from probes.bandwidth.tools.perftest_command import (
    GpuMemory,
    PerftestSettings,
    loopback,
    mismatched_settings,
    perftest,
)
from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.system.tools import TOOLS, Perftest, ToolFacts

MISSING = Unknown(Reason.NOT_THERE, "x", "not installed")
GPU = GpuMemory(3, "0000:1b:00.0", True)
HOST = PerftestSettings("mlx5_0")


def tools(
    cuda: Maybe[bool] = True,
    dmabuf: Maybe[bool] = True,
    bus_id: Maybe[bool] = True,
    without: tuple[str, ...] = (),
    ipv6: Maybe[bool] = True,
) -> ToolFacts:
    paths: dict[str, Maybe[str]] = {name: f"/usr/bin/{name}" for name in TOOLS}
    paths.update(dict.fromkeys(without, MISSING))
    build = Perftest(("ib_write_bw",), "6.23", cuda, dmabuf, "/usr/bin/ib_write_bw", True, bus_id, ipv6)
    return ToolFacts(paths, build, MISSING, MISSING)


def argv(answer: Command | Refused) -> str:
    assert isinstance(answer, Command), answer
    return " ".join(answer.argv)


def reason(answer: object) -> str:
    assert isinstance(answer, Refused), answer
    return answer.reason


def test_an_ipv6_address_takes_an_option_at_both_ends() -> None:
    over_ipv6 = replace(HOST, over_ipv6=True)
    assert "--ipv6-addr" in argv(perftest(over_ipv6, tools()))
    assert argv(perftest(over_ipv6, tools(), "fd00::1")).endswith("-F --ipv6-addr --report_gbits fd00::1")
    assert "--ipv6-addr" in reason(perftest(HOST, tools(), "fd00::1"))
    assert mismatched_settings(HOST, over_ipv6) == ("over_ipv6",)


@pytest.mark.parametrize(("ipv6", "told"), [(False, "no --ipv6-addr"), (MISSING, "cannot tell whether")])
def test_a_build_without_it_takes_no_ipv6_address(ipv6: Maybe[bool], told: str) -> None:
    why = reason(perftest(replace(HOST, over_ipv6=True), tools(ipv6=ipv6), "fd00::1"))
    assert told in why
    assert "IPv4 address, or a name" in why
    assert isinstance(perftest(HOST, tools(ipv6=ipv6), "10.0.0.7"), Command)


def test_host_memory() -> None:
    assert argv(perftest(HOST, tools())) == "ib_write_bw -d mlx5_0 -i 1 -p 18515 -F --report_gbits"
    client = replace(HOST, gid_index=3, all_sizes=True, numa_node=1, tcp_port=18600, is_bidirectional=True)
    assert argv(perftest(client, tools(), "node7")) == (
        "numactl --cpunodebind=1 --membind=1 ib_write_bw -d mlx5_0 -i 1 -p 18600 -F -x 3 -a -b"
        " --report_gbits node7"
    )


def test_gpu_memory_by_its_address() -> None:
    line = argv(perftest(replace(HOST, gpu=GPU), tools(), "10.0.0.7"))
    assert line.endswith("--use_cuda_bus_id=0000:1b:00.0 --use_cuda_dmabuf 10.0.0.7")
    assert "CUDA_DEVICE_ORDER" not in line


@pytest.mark.parametrize("bus_id", [False, MISSING])
def test_gpu_memory_by_its_number_in_pci_order(bus_id: Maybe[bool]) -> None:
    line = argv(perftest(replace(HOST, gpu=replace(GPU, dmabuf=False)), tools(bus_id=bus_id)))
    assert line.startswith("env CUDA_DEVICE_ORDER=PCI_BUS_ID ")
    assert line.endswith("--use_cuda=3")


@pytest.mark.parametrize(
    ("build", "told"),
    [
        (tools(cuda=False), "built without CUDA (/usr/bin/ib_write_bw)"),
        (tools(dmabuf=False), "built without DMA-BUF"),
        (tools(cuda=MISSING), "cannot tell whether"),
        (tools(without=("ib_write_bw",)), "ib_write_bw is not installed"),
    ],
)
def test_what_the_build_cannot_do(build: ToolFacts, told: str) -> None:
    assert told in reason(perftest(replace(HOST, gpu=GPU), build))


def test_host_memory_needs_no_cuda() -> None:
    assert isinstance(perftest(HOST, tools(cuda=False, dmabuf=False)), Command)
    peermem = replace(HOST, gpu=replace(GPU, dmabuf=False))
    assert isinstance(perftest(peermem, tools(dmabuf=False)), Command)


@pytest.mark.parametrize(
    "settings",
    [
        replace(HOST, device="-h"),
        replace(HOST, device="mlx5_0;reboot"),
        replace(HOST, device=""),
        replace(HOST, device="mlx5_0\n"),
        replace(HOST, tool="rm"),
        replace(HOST, port=0),
        replace(HOST, gid_index=256),
        replace(HOST, tcp_port=22),
        replace(HOST, gpu=replace(GPU, bdf="1b:00.0 --out_json")),
        replace(HOST, gpu=replace(GPU, index=-1)),
        replace(HOST, all_sizes=True, duration_s=10),
        replace(HOST, all_sizes=True, is_endless=True),
        replace(HOST, all_sizes=True, size_bytes=65536),
        replace(HOST, duration_s=10, iterations=1000),
        replace(HOST, duration_s=1),
        replace(HOST, size_bytes=0),
        replace(HOST, tool="ib_write_lat", is_bidirectional=True),
        replace(HOST, tool="ib_write_lat", is_endless=True),
        replace(HOST, numa_node=-1),
    ],
)
def test_what_is_refused(settings: PerftestSettings) -> None:
    assert reason(perftest(settings, tools()))


def test_no_numactl() -> None:
    assert "numactl is not installed" in reason(
        perftest(replace(HOST, numa_node=0), tools(without=("numactl",)))
    )


@pytest.mark.parametrize(
    "name", ["node7", "node7.example.org", "10.0.0.7", "fe80::1", "2001:db8::7", "gpu_node-1."]
)
def test_hosts(name: str) -> None:
    assert is_host(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "-h",
        "--out_json",
        "a b",
        "a;b",
        "$(x)",
        "a\n",
        "node7.",
        "fe80::1%eth0",
        "ä",
        "a" * 64,
        "a..b",
        ".",
    ],
)
def test_what_is_no_host(name: str) -> None:
    assert is_host(name) is (name == "node7.")
    if name != "node7.":
        assert "not a valid host name" in reason(perftest(HOST, tools(), name))


@given(st.text())
def test_no_text_becomes_an_option_or_two_words(name: str) -> None:
    answer = perftest(HOST, tools(), name)
    if isinstance(answer, Command):
        assert answer.argv[-1] == name
        assert not name.startswith("-")
        assert name.isascii()
        assert not set(name) & set(" \t\n;|&$`'\"\\*?<>()[]{}!#~\0")
    device = perftest(replace(HOST, device=name), tools())
    if isinstance(device, Command):
        assert not name.startswith("-")


def test_loopback() -> None:
    ends = loopback(replace(HOST, gpu=GPU, duration_s=5), tools())
    assert not isinstance(ends, Refused)
    server, client = ends
    assert client.argv == (*server.argv, "127.0.0.1")
    far = replace(HOST, device="mlx5_1", gpu=None, duration_s=5)
    ends = loopback(replace(HOST, gpu=GPU, duration_s=5), tools(), far)
    assert not isinstance(ends, Refused)
    assert "mlx5_1" in ends[0].argv
    assert "mlx5_0" in ends[1].argv


def test_both_ends_are_alike() -> None:
    far = replace(HOST, all_sizes=True, tcp_port=20000)
    assert mismatched_settings(HOST, far) == ("all_sizes", "tcp_port")
    assert "all_sizes, tcp_port" in reason(loopback(HOST, tools(), far))


def test_gdrcopy() -> None:
    line = argv(GdrcopySettings(2, size_bytes=65536, numa_node=0).command(tools()))
    assert line == (
        "env CUDA_DEVICE_ORDER=PCI_BUS_ID numactl --cpunodebind=0 --membind=0 gdrcopy_copybw -d 2 -s 65536"
    )
    assert "not installed" in reason(GdrcopySettings(0).command(tools(without=("gdrcopy_copybw",))))
    assert reason(GdrcopySettings(0, tool="nvbandwidth").command(tools()))
    assert reason(GdrcopySettings(-1).command(tools()))


def test_nvbandwidth() -> None:
    line = argv(NvbandwidthSettings(gpus=(0, 2)).command(tools()))
    assert "CUDA_VISIBLE_DEVICES=0,2" in line
    assert line.endswith("nvbandwidth -t host_to_device_memcpy_ce device_to_host_memcpy_ce")
    assert reason(NvbandwidthSettings(gpus=(0, 0)).command(tools()))


def test_nccl_tests() -> None:
    line = argv(NcclSettings((0, 1), over_network=True, devices=("mlx5_0", "mlx5_1")).command(tools()))
    assert "NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_NVLS_ENABLE=0 NCCL_NET=IB" in line
    assert "NCCL_IB_HCA==mlx5_0,mlx5_1 NCCL_DEBUG=INFO" in line
    assert line.endswith("all_reduce_perf -b 8 -e 1073741824 -f 2 -g 2 -n 20 -c 1")
    assert "needs two GPUs" in reason(NcclSettings((0,), over_network=True).command(tools()))
    assert reason(NcclSettings((0, 0)).command(tools()))
    assert reason(NcclSettings((0,), devices=("a,b",)).command(tools()))
    assert reason(NcclSettings((0,), begin_bytes=16, end_bytes=8).command(tools()))
