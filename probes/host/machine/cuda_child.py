"""The child process of probes.host.machine.library_probes for libcuda.

It imports little: Python starts for it, and starts twice as fast without json and typing.
"""

from __future__ import annotations

import ctypes
import os
import sys

TYPE_CHECKING = False  # without an import of typing
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

MAX_GPUS = 64


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
    for number in range(min(count.value, MAX_GPUS)):
        device, bus_id = ctypes.c_int(0), ctypes.create_string_buffer(64)
        if library.cuDeviceGet(ctypes.byref(device), number):
            continue
        if library.cuDeviceGetPCIBusId(bus_id, len(bus_id), device):
            continue
        values = [_attribute(library, attribute, device) for attribute in attributes]
        gpus.append({"bdf": bus_id.value.decode("ascii", "replace"), "attributes": values})
    return {"gpus": gpus}


def _attribute(library: Any, attribute: int, device: ctypes.c_int) -> tuple[int, int, int]:
    value = ctypes.c_int(0)
    status = library.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
    return attribute, status, value.value


def main(arguments: Sequence[str]) -> None:
    """Print the answers as a literal of Python; drop what the library prints."""
    out, silence = os.dup(1), os.open(os.devnull, os.O_RDWR)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    library, *attributes = arguments
    os.write(out, repr(_ask(library, [int(attribute) for attribute in attributes])).encode())
    os._exit(0)  # skips the library's destructors, which may hang


if __name__ == "__main__":
    main(sys.argv[1:])
