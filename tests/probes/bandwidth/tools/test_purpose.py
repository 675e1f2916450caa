"""A pass is not taken for more than it is."""

from dataclasses import replace

from probes.bandwidth.tools.gdrcopy import GdrcopySettings
from probes.bandwidth.tools.nccl_tests import NcclSettings
from probes.bandwidth.tools.nvbandwidth import NvbandwidthSettings
from probes.bandwidth.tools.perftest_command import GpuMemory, PerftestSettings
from probes.facts.system.tool_names import PERFTEST

HOST = PerftestSettings("mlx5_0")


def test_only_perftest_and_nccl_touch_a_nic() -> None:
    for settings in (GdrcopySettings(0), NvbandwidthSettings()):
        assert "no NIC is involved" in settings.purpose().not_proven
    assert "never uses a NIC" in NcclSettings((0, 1)).purpose().not_proven
    assert "GDRDMA" in NcclSettings((0, 1), over_network=True).purpose().proves


def test_the_two_paths_are_told_apart() -> None:
    dmabuf = replace(HOST, gpu=GpuMemory(0, "0000:1b:00.0", True)).purpose()
    peermem = replace(HOST, gpu=GpuMemory(0, "0000:1b:00.0", False)).purpose()
    assert "DMA-BUF" in dmabuf.proves
    assert "nvidia-peermem" in dmabuf.not_proven
    assert "nvidia-peermem" in peermem.proves
    assert "DMA-BUF" in peermem.not_proven
    assert "GPU memory" in HOST.purpose().not_proven


def test_loopback_proves_nothing_of_the_network() -> None:
    assert "leaves the NIC" in HOST.purpose(is_loopback=True).not_proven
    assert "leaves the NIC" not in HOST.purpose().not_proven


def test_each_is_one_line() -> None:
    for tool in PERFTEST:
        settings = replace(HOST, tool=tool)
        for described in (settings.purpose(), settings.purpose(is_loopback=True)):
            assert "\n" not in described.proves + described.not_proven
            assert described.proves
