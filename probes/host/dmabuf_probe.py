"""NCCL's DMA-BUF probe: does an RDMA device support dma-buf memory regions?

A child process runs this file and forks once per device: a provider library may print, hang or crash, which
then costs only the answer for one device.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import re
import select
import signal
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from probes.base.unknown import Maybe

PROBE_SECONDS = 4.0  # of the child process
DEVICE_SECONDS = 3.0  # of all devices, which are probed in parallel
LONGEST_SECONDS = 18.0  # for running processes, if all CPUs are busy
LIBRARY = "libibverbs.so.1"
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def probe_dmabuf(devices: Sequence[str], library: str = LIBRARY) -> dict[str, Maybe[int]]:
    """Return the errno of `ibv_reg_dmabuf_mr(pd, 0, 0, 0, -1, 0)` for each RDMA device.

    EOPNOTSUPP and EPROTONOSUPPORT: kernel or driver do not support it; anything else, normally EBADF: they do
    (NCCL src/transport/net_ib/gdr.cc).
    """
    from probes.base.unknown import Reason, Unknown
    from probes.host.command import run_program

    valid = [device for device in devices if _NAME.fullmatch(device)]
    results: dict[str, Maybe[int]] = {
        device: Unknown(Reason.MALFORMED, _source(device), "invalid RDMA device name")
        for device in devices
        if device not in valid
    }
    if not valid:
        return results
    child = [sys.executable, "-I", "-S", __file__, library, *valid]
    output = run_program(child, PROBE_SECONDS, ("ibv_reg_dmabuf_mr", *valid))
    if isinstance(output, Unknown):
        return {**results, **dict.fromkeys(valid, output)}
    try:
        answers = json.loads(output.stdout)
        return {**results, **{device: _answer(device, answers[device]) for device in valid}}
    except (ValueError, KeyError, TypeError):
        failed = Unknown(Reason.IO_ERROR, LIBRARY, f"the probe exited with status {output.exit_status}")
        return {**results, **dict.fromkeys(valid, failed)}


def _source(device: str) -> str:
    return f"ibv_reg_dmabuf_mr on {device}"


def _answer(device: str, answer: dict[str, object]) -> Maybe[int]:
    from probes.base.unknown import Reason, Unknown

    number = answer.get("errno")
    if isinstance(number, int):
        return number
    return Unknown(Reason(answer["reason"]), _source(device), str(answer["detail"])[:200])


# From here on, code of the child process

_PR_SET_PDEATHSIG = 1  # include/uapi/linux/prctl.h


class _ProbeError(Exception):
    """Why the probe failed: the value of a Reason, and a detail."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail


def _library(name: str) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(name, use_errno=True)
    except OSError:
        raise _ProbeError("not there", f"{name} is not installed") from None
    if not hasattr(library, "ibv_reg_dmabuf_mr"):
        detail = "libibverbs is older than rdma-core 34 on this host (containers have their own)"
        raise _ProbeError("not there", detail)
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
    """Return a context of the device."""
    count = ctypes.c_int(0)
    devices = library.ibv_get_device_list(ctypes.byref(count))
    if not devices:
        raise _ProbeError("not there", "libibverbs lists no devices")
    try:
        for number in range(count.value):
            if library.ibv_get_device_name(devices[number]) == device.encode():
                context = library.ibv_open_device(devices[number])
                if context:
                    return int(context)
                raise _refused(ctypes.get_errno(), "opening the device")
    finally:
        library.ibv_free_device_list(devices)
    raise _ProbeError("not there", f"libibverbs does not know {device}: no provider, or no uverbs device")


def _refused(number: int, what: str) -> _ProbeError:
    if number in (errno.EACCES, errno.EPERM):
        return _ProbeError("needs root", f"{what}: no access to /dev/infiniband")
    return _ProbeError("I/O error", f"{what}: {os.strerror(number)}")


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


def _start_probe(device: str, library: str) -> tuple[int, int]:
    """Probe a device in a process of its own; return its pid and the pipe of its answer."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
        silence = os.open(os.devnull, os.O_RDWR)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        answer: dict[str, object]
        try:
            answer = {"errno": _ask(device, library)}
        except _ProbeError as error:
            answer = {"reason": error.reason, "detail": error.detail}
        os.write(writing, json.dumps(answer).encode())
    finally:
        os._exit(0)


def _is_running(pid: int) -> bool:
    """Return whether a process uses a CPU or waits only for one (proc(5), state R)."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read(1024).rpartition(b")")[2].split()[0] == b"R"


def _collect(pid: int, reading: int, until: float) -> dict[str, object]:
    """Return the answer for a device, and end its process."""
    longest = until - DEVICE_SECONDS + LONGEST_SECONDS
    while not select.select([reading], [], [], max(0.1, until - time.monotonic()))[0]:
        if time.monotonic() < longest and _is_running(pid):
            continue
        os.kill(pid, signal.SIGKILL)
        return {"reason": "timed out", "detail": f"no answer within {DEVICE_SECONDS:g} s"}
    text = os.read(reading, 4096)
    if not text:
        return {"reason": "I/O error", "detail": "the provider library crashed"}
    answer: dict[str, object] = json.loads(text)
    return answer


def main(library: str, devices: Sequence[str]) -> None:
    """Print the answers as one line of JSON."""
    until = time.monotonic() + DEVICE_SECONDS
    probes = {device: _start_probe(device, library) for device in devices}
    print(json.dumps({device: _collect(*probe, until) for device, probe in probes.items()}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
