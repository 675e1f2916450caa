"""What each test shows, and what it does not: said before it runs, so that a pass is not taken for more.

perftest README.md, "GPUDirect usage": --use_cuda alone registers by peer memory, and with --use_cuda_dmabuf
by DMA-BUF. gdrcopy README.md: "a CPU driven copy". NVIDIA/nvbandwidth README.md: copies by copy engines or
kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

from probes.bandwidth.tools.other_commands import GdrcopySettings, NcclSettings, NvbandwidthSettings
from probes.bandwidth.tools.perftest_command import PerftestSettings
from probes.facts.system.tool_names import SANITY


@dataclass(frozen=True)
class Purpose:
    """One line each."""

    proves: str
    not_proven: str


Settings = PerftestSettings | GdrcopySettings | NvbandwidthSettings | NcclSettings

_WAYS = {
    "ib_write_bw": "writes",
    "ib_write_lat": "writes",
    "ib_read_bw": "reads",
    "ib_read_lat": "reads",
    "ib_send_bw": "sends",
    "ib_send_lat": "sends",
}


def purpose(settings: Settings, is_loopback: bool = False) -> Purpose:
    """What a test with these settings is for."""
    if isinstance(settings, PerftestSettings):
        return _of_perftest(settings, is_loopback)
    if isinstance(settings, NcclSettings):
        return _of_nccl(settings)
    if isinstance(settings, NvbandwidthSettings):
        return Purpose(
            "how fast CUDA copies between host and GPUs (the GPU's own PCIe link or NVLink)",
            "GPUDirect RDMA (no NIC takes part)",
        )
    if settings.tool == SANITY:
        return Purpose(
            "whether the CPU can map GPU memory through BAR1 (gdrdrv) and reads back what it wrote",
            "GPUDirect RDMA (no NIC takes part, and RDMA does not need gdrdrv)",
        )
    return Purpose(
        "how fast the CPU writes and reads GPU memory through BAR1 (reads are slow by nature)",
        "GPUDirect RDMA (no NIC takes part, and RDMA does not need gdrdrv)",
    )


def perftest_purpose(tool: str, with_gpu: bool) -> Purpose:
    """What a tool of perftest is for, whatever its settings."""
    transfers = _WAYS.get(tool, "transfers")
    whose = "GPU memory (DMA-BUF or nvidia-peermem) and host memory" if with_gpu else "host memory"
    left = "whether NCCL uses this path and this NIC" if with_gpu else "GPU memory"
    return Purpose(_speed(f"RDMA {transfers} of {whose} over a NIC", tool.endswith("_lat")), left)


def _speed(what: str, is_latency: bool) -> str:
    """What a test of `what` (in the plural) measures."""
    return f"how long {what} take" if is_latency else f"how fast {what} are"


def _of_perftest(settings: PerftestSettings, is_loopback: bool) -> Purpose:
    transfers = f"RDMA {_WAYS.get(settings.tool, 'transfers')}"
    if settings.gpu is None:
        what = f"{transfers} of host memory over {settings.device}"
        left = "GPU memory, which this is to be compared with"
    elif settings.gpu.dmabuf:
        what = f"{transfers} of GPU memory over {settings.device} by DMA-BUF"
        left = "nvidia-peermem; whether NCCL uses DMA-BUF and this NIC"
    else:
        what = f"{transfers} of GPU memory over {settings.device} by nvidia-peermem"
        left = "DMA-BUF, which NCCL prefers where it is usable"
    if is_loopback:
        left += "; cable, switch and peer (in loopback the data turns around inside the NIC)"
    return Purpose(_speed(what, settings.is_latency), left)


def _of_nccl(settings: NcclSettings) -> Purpose:
    name = settings.tool.removesuffix("_perf")
    if settings.over_network:
        return Purpose(
            f"how fast {name} is over this node's NICs ('via NET/IB/…/GDRDMA' in its output proves the path)",
            "other nodes; the speed of a job, which uses NVLink inside a node",
        )
    return Purpose(
        f"how fast {name} is inside this node, over NVLink or PCIe as a job uses them",
        "GPUDirect RDMA (a single node with NVLink or P2P never uses a NIC)",
    )
