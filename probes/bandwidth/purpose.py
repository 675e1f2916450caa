"""What each test proves, and what it does not: shown before it runs, so that a pass is not taken for more.

perftest README.md, "GPUDirect usage": --use_cuda alone registers by peer memory, and with --use_cuda_dmabuf
by DMA-BUF. gdrcopy README.md: "a CPU driven copy". NVIDIA/nvbandwidth README.md: copies by copy engines or
kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

from probes.bandwidth.other_commands import GdrcopySettings, NcclSettings, NvbandwidthSettings
from probes.bandwidth.perftest_command import PerftestSettings
from probes.tool_names import SANITY


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
            "how fast CUDA copies between host and GPUs: the GPU's own PCIe link or NVLink",
            "nothing about GPUDirect RDMA: no NIC takes part",
        )
    if settings.tool == SANITY:
        return Purpose(
            "the CPU can map GPU memory through BAR1 (gdrdrv), and its contents are right",
            "nothing about GPUDirect RDMA: no NIC takes part, and RDMA does not need gdrdrv",
        )
    return Purpose(
        "how fast the CPU itself writes and reads GPU memory through BAR1; reading is slow by nature",
        "nothing about GPUDirect RDMA: no NIC takes part, and RDMA does not need gdrdrv",
    )


def perftest_purpose(tool: str, with_gpu: bool) -> Purpose:
    """What a tool of perftest is for, whatever its settings."""
    what = "how long RDMA takes for" if tool.endswith("_lat") else "how fast RDMA goes for"
    whose = "GPU memory (DMA-BUF or nvidia-peermem) and host memory" if with_gpu else "host memory"
    left = (
        "nothing about NCCL, which has to choose this path and this NIC for itself"
        if with_gpu
        else "nothing about GPU memory"
    )
    return Purpose(f"{what} {_WAYS.get(tool, 'transfers')} of {whose} over a NIC", left)


def _of_perftest(settings: PerftestSettings, is_loopback: bool) -> Purpose:
    way = _WAYS.get(settings.tool, "transfers")
    what = "how long RDMA takes for" if settings.is_latency else "how fast RDMA goes for"
    if settings.gpu is None:
        proves = f"{what} {way} of host memory over {settings.device}, to compare GPU memory with"
        left = "nothing about GPU memory"
    elif settings.gpu.dmabuf:
        proves = f"{settings.device} reaches the GPU's memory by DMA-BUF: {what} {way}"
        left = "nothing about nvidia-peermem; NCCL has to choose DMA-BUF and this NIC for itself"
    else:
        proves = f"{settings.device} reaches the GPU's memory by nvidia-peermem: {what} {way}"
        left = "nothing about DMA-BUF, which NCCL prefers where it is there"
    if is_loopback:
        left += "; nothing about cable, switch and far side: the data turns around inside the NIC"
    return Purpose(proves, left)


def _of_nccl(settings: NcclSettings) -> Purpose:
    name = settings.tool.removesuffix("_perf")
    if settings.over_network:
        return Purpose(
            f"{name} over this node's own NICs: 'via NET/IB/…/GDRDMA' in its output proves the path",
            "nothing about other nodes, and not the speed of a job: inside a node that takes NVLink",
        )
    return Purpose(
        f"{name} inside this node, as a job does it: over NVLink or PCIe",
        "nothing about GPUDirect RDMA: one node alone with NVLink or P2P never touches a NIC",
    )
