"""What CUDA's driver library reports about each GPU: support for GPUDirect RDMA and DMA-BUF.

A child process runs this file and calls the library, which may take seconds, print, hang or crash. It creates
no context and uses no GPU memory. Attribute numbers: cuda.h, CUdevice_attribute.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from probes.base.unknown import Maybe
    from probes.host.cuda import CudaGpu

PROBE_SECONDS = 4.0
LIBRARY = "libcuda.so.1"
# If one of these is missing, cuInit would load modules and create device files (nvidia-modprobe(1)).
NEEDED = ("/sys/module/nvidia", "/sys/module/nvidia_uvm", "/dev/nvidiactl", "/dev/nvidia-uvm")
_MAX_GPUS = 64


def probe_cuda(library: str = LIBRARY) -> Maybe[tuple[CudaGpu, ...]]:
    """Ask libcuda about every GPU that it lists; the driver must be loaded."""
    from probes.base.unknown import Reason, Unknown
    from probes.host.command import run_program
    from probes.host.cuda import DMABUF_SUPPORTED, RDMA_SUPPORTED

    attributes = (str(RDMA_SUPPORTED), str(DMABUF_SUPPORTED))
    child = [sys.executable, "-I", "-S", __file__, library, *attributes]
    output = run_program(child, PROBE_SECONDS, ("libcuda",))
    if isinstance(output, Unknown):
        return output
    try:
        answer = json.loads(output.stdout)
        if "reason" in answer:
            return Unknown(Reason(answer["reason"]), LIBRARY, str(answer["detail"])[:200])
        return tuple(_gpu(gpu) for gpu in answer["gpus"][:_MAX_GPUS])
    except (ValueError, KeyError, TypeError, AttributeError):
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


# From here on, code of the child process


def _ask(name: str, attributes: Sequence[int]) -> dict[str, object]:
    # Otherwise, a client makes a running MPS daemon start a server.
    os.environ["CUDA_MPS_PIPE_DIRECTORY"] = "/dev/null"
    try:
        library: Any = ctypes.CDLL(name)
    except OSError:
        return {"reason": "not there", "detail": f"{name} is not installed"}
    status = library.cuInit(0)
    if status:
        return {"reason": "driver error", "detail": f"cuInit(0) returned {status}"}
    count = ctypes.c_int(0)
    status = library.cuDeviceGetCount(ctypes.byref(count))
    if status:
        return {"reason": "driver error", "detail": f"cuDeviceGetCount returned {status}"}
    gpus: list[dict[str, object]] = []
    for number in range(min(count.value, _MAX_GPUS)):
        device, bus_id = ctypes.c_int(0), ctypes.create_string_buffer(64)
        if library.cuDeviceGet(ctypes.byref(device), number):
            continue
        if library.cuDeviceGetPCIBusId(bus_id, len(bus_id), device):
            continue
        gpus.append(
            {
                "bdf": bus_id.value.decode("ascii", "replace"),
                "attributes": [_attribute(library, attribute, device) for attribute in attributes],
            }
        )
    return {"gpus": gpus}


def _attribute(library: Any, attribute: int, device: ctypes.c_int) -> tuple[int, int, int]:
    value = ctypes.c_int(0)
    status = library.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
    return attribute, status, value.value


def main(library: str, attributes: Sequence[int]) -> None:
    """Print the answers as one line of JSON; drop what the library prints."""
    out, silence = os.dup(1), os.open(os.devnull, os.O_RDWR)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    os.write(out, json.dumps(_ask(library, attributes)).encode())
    os._exit(0)  # skips the library's destructors, which may hang


if __name__ == "__main__":
    main(sys.argv[1], [int(attribute) for attribute in sys.argv[2:]])
