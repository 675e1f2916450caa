"""The DMA-BUF probe that NCCL uses: does this RDMA device take dma-buf memory regions?

The libraries are called in a child process, which runs this very file: a provider library may print, hang or
crash, and none of that may reach the screen.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import re
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from probes.unknown import Maybe

PROBE_SECONDS = 3.0
LIBRARY = "libibverbs.so.1"
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def probe_dmabuf(device: str, library: str = LIBRARY) -> Maybe[int]:
    """The errno that `ibv_reg_dmabuf_mr(pd, 0, 0, 0, -1, 0)` gives on the device.

    EOPNOTSUPP and EPROTONOSUPPORT: kernel or driver cannot; anything else, normally EBADF: can
    (NCCL src/transport/net_ib/gdr.cc).
    """
    from probes.command import run_program
    from probes.unknown import Reason, Unknown

    source = f"ibv_reg_dmabuf_mr on {device}"
    if not _NAME.fullmatch(device):
        return Unknown(Reason.MALFORMED, source, "not a name that an RDMA device can have")
    child = [sys.executable, "-I", "-S", __file__, device, library]
    output = run_program(child, PROBE_SECONDS, ("ibv_reg_dmabuf_mr", device))
    if isinstance(output, Unknown):
        return output
    try:
        answer = json.loads(output.stdout.strip().rpartition("\n")[2])
        if isinstance(answer.get("errno"), int):
            return int(answer["errno"])
        return Unknown(Reason(answer["reason"]), source, str(answer["detail"])[:200])
    except (ValueError, KeyError, AttributeError):
        return Unknown(Reason.IO_ERROR, source, f"the probe ended with status {output.exit_status}")


# From here on: the child.


class _NotAnswered(Exception):
    """Why the probe could not be made: a reason's word and a sentence."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail


def _library(name: str) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(name, use_errno=True)
    except OSError:
        raise _NotAnswered("not there", f"{name} is not installed") from None
    if not hasattr(library, "ibv_reg_dmabuf_mr"):
        raise _NotAnswered("not there", "libibverbs is older than rdma-core 34")
    pointer, integer = ctypes.c_void_p, ctypes.c_int
    signatures = {
        "ibv_get_device_list": (ctypes.POINTER(pointer), [ctypes.POINTER(integer)]),
        "ibv_free_device_list": (None, [ctypes.POINTER(pointer)]),
        "ibv_get_device_name": (ctypes.c_char_p, [pointer]),
        "ibv_open_device": (pointer, [pointer]),
        "ibv_close_device": (integer, [pointer]),
        "ibv_alloc_pd": (pointer, [pointer]),
        "ibv_dealloc_pd": (integer, [pointer]),
        "ibv_reg_dmabuf_mr": (
            pointer,
            [pointer, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_uint64, integer, integer],
        ),
    }
    for function, (result, arguments) in signatures.items():
        call = getattr(library, function)
        call.restype, call.argtypes = result, arguments
    return library


def _open(library: ctypes.CDLL, device: str) -> int:
    """A context of the device."""
    count = ctypes.c_int(0)
    devices = library.ibv_get_device_list(ctypes.byref(count))
    if not devices:
        raise _NotAnswered("not there", "libibverbs lists no devices")
    try:
        for number in range(count.value):
            if library.ibv_get_device_name(devices[number]) == device.encode():
                context = library.ibv_open_device(devices[number])
                if context:
                    return int(context)
                raise _refused(ctypes.get_errno(), "opening the device")
    finally:
        library.ibv_free_device_list(devices)
    raise _NotAnswered("not there", f"libibverbs does not know {device}: no provider, or no uverbs device")


def _refused(number: int, what: str) -> _NotAnswered:
    if number in (errno.EACCES, errno.EPERM):
        return _NotAnswered("needs root", f"{what}: no access to /dev/infiniband")
    return _NotAnswered("I/O error", f"{what}: {os.strerror(number)}")


def _ask(device: str, name: str) -> int:
    library = _library(name)
    context = _open(library, device)
    try:
        domain = library.ibv_alloc_pd(context)
        if not domain:
            raise _refused(ctypes.get_errno(), "ibv_alloc_pd")
        try:
            ctypes.set_errno(0)
            library.ibv_reg_dmabuf_mr(domain, 0, 0, 0, -1, 0)
            return ctypes.get_errno()
        finally:
            library.ibv_dealloc_pd(domain)
    finally:
        library.ibv_close_device(context)


def main(device: str, library: str) -> None:
    """Prints the answer as one line of JSON."""
    answer: dict[str, object]
    try:
        answer = {"errno": _ask(device, library)}
    except _NotAnswered as why:
        answer = {"reason": why.reason, "detail": why.detail}
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:3])
