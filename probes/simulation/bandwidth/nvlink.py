"""What two GPUs of a simulated node copy to each other, by NVLink or by PCIe."""

from __future__ import annotations

from probes.base.unknown import known
from probes.facts.gpu.gpus import GpuFacts
from probes.simulation.bandwidth import speeds as figures
from probes.snapshot.examination import Examination
from probes.topology.nccl_words import Nccl

# Gb/s that one NVLink carries each way, by the major number of compute capability: third, fourth and fifth
# generation (NVIDIA's architecture white papers for Ampere, Hopper and Blackwell).
_OF_LINK = {8: 200.0, 9: 200.0, 10: 400.0}
_NVLINK_SHARE = 0.88
_BY_SWITCH, _BY_CPU, _BETWEEN_SOCKETS = 0.94, 0.62, 0.45


def nvlink_gbps(examination: Examination, gpu: str) -> float:
    """Gb/s each way of all NVLinks of a GPU that are up; 0 without any."""
    gpus = examination.node.gpus
    card = next((one for one in gpus.gpus if one.bdf == gpu), None) if isinstance(gpus, GpuFacts) else None
    if card is None:
        return 0.0
    links = sum(count for _, count in known(card.nvlink_peers, ()))
    return links * _OF_LINK.get(known(card.compute_capability, (0, 0))[0], 200.0)


def gpu_to_gpu_gbps(examination: Examination, a: str, b: str) -> float:
    """Gb/s of copies from one GPU to another."""
    path = examination.topology.paths.get((a, b))
    if path is not None and path.nvlinks:
        return min(nvlink_gbps(examination, a), nvlink_gbps(examination, b)) * _NVLINK_SHARE
    by_pcie = min(figures.to_gpu_gbps(examination, gpu) for gpu in (a, b))
    if path is None or path.nccl_pcie is Nccl.SYS:
        return by_pcie * _BETWEEN_SOCKETS
    if path.nccl_pcie in (Nccl.PIX, Nccl.PXB):
        return by_pcie * _BY_SWITCH
    return by_pcie * _BY_CPU
