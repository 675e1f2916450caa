"""What CUDA's driver library reports about each GPU: support for GPUDirect RDMA and DMA-BUF.

A child process runs cuda_child.py and calls the library, which may take seconds, print, hang or crash. It
creates no context and uses no GPU memory. Attribute numbers: cuda.h, CUdevice_attribute.
"""

from __future__ import annotations

import sys
from ast import literal_eval
from typing import TYPE_CHECKING, Any

from probes.host import cuda_child
from probes.host.cuda_child import MAX_GPUS

if TYPE_CHECKING:
    from probes.base.unknown import Maybe
    from probes.host.cuda import CudaGpu

PROBE_SECONDS = 4.0
LIBRARY = "libcuda.so.1"
# If one of these is missing, cuInit would load modules and create device files (nvidia-modprobe(1)).
NEEDED = ("/sys/module/nvidia", "/sys/module/nvidia_uvm", "/dev/nvidiactl", "/dev/nvidia-uvm")


def probe_cuda(library: str = LIBRARY) -> Maybe[tuple[CudaGpu, ...]]:
    """Ask libcuda about every GPU that it lists; the driver must be loaded."""
    from probes.base.unknown import Reason, Unknown
    from probes.host.command import run_program
    from probes.host.cuda import DMABUF_SUPPORTED, RDMA_SUPPORTED

    attributes = (str(RDMA_SUPPORTED), str(DMABUF_SUPPORTED))
    child = [sys.executable, "-I", "-S", cuda_child.__file__, library, *attributes]
    output = run_program(child, PROBE_SECONDS, ("libcuda",))
    if isinstance(output, Unknown):
        return output
    try:
        answer = literal_eval(output.stdout)
        if "reason" in answer:
            return Unknown(Reason(answer["reason"]), LIBRARY, str(answer["detail"])[:200])
        return tuple(_gpu(gpu) for gpu in answer["gpus"][:MAX_GPUS])
    except (ValueError, SyntaxError, KeyError, TypeError, AttributeError):
        return Unknown(Reason.IO_ERROR, LIBRARY, f"the probe exited with status {output.exit_status}")


def _gpu(answer: dict[str, Any]) -> CudaGpu:
    from probes.base.text import printable
    from probes.host.cuda import CudaGpu
    from probes.host.nvml import bdf_of

    supported = [_supported(*attribute) for attribute in answer["attributes"]]
    return CudaGpu(printable(bdf_of(str(answer["bdf"])), 32), *supported)


def _supported(attribute: int, status: int, value: int) -> Maybe[bool]:
    from probes.base.unknown import Reason, Unknown

    if status:
        detail = f"CUDA error {int(status)}: the driver does not know this attribute"
        return Unknown(Reason.NOT_THERE, f"cuDeviceGetAttribute({attribute})", detail)
    return bool(value)
