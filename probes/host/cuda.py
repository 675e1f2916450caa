"""What CUDA's driver library reports about a GPU."""

from __future__ import annotations

from probes.base.frozen import frozen
from probes.base.unknown import Maybe

RDMA_SUPPORTED = 116  # CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED
DMABUF_SUPPORTED = 124  # CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED


@frozen
class CudaGpu:
    """The answers of cuDeviceGetAttribute for a GPU."""

    bdf: str  # "0000:1b:00.0", as in sysfs
    rdma_supported: Maybe[bool]  # attribute 116: nvidia-peermem can pin its memory
    dmabuf_supported: Maybe[bool]  # attribute 124: its memory can be exported as a DMA-BUF
