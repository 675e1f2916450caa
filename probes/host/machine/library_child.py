"""The child process of probes.host.machine.library_probes for libibverbs, libmlx5 and libcuda.

It imports little: Python starts for it, and starts three times as fast without re, json, typing and signal.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import sys
import time

TYPE_CHECKING = False  # without an import of typing
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    _Signatures = Mapping[str, tuple[Any, Sequence[Any]]]  # function -> types of its result and its arguments

DEVICE_SECONDS = 3.0  # of all devices, which are probed in parallel
LONGEST_SECONDS = 18.0  # for running processes, if all CPUs are busy
DMABUF, DATA_DIRECT = "ibv_reg_dmabuf_mr", "mlx5dv_get_data_direct_sysfs_path"
CUDA = "cuDeviceGetAttribute"
MAX_GPUS = 64

_PR_SET_PDEATHSIG = 1  # include/uapi/linux/prctl.h
_SIGKILL = 9  # signal(7)


class _ProbeError(Exception):
    """Why the probe failed: the value of a Reason, and a detail."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail


_POINTER, _INTEGER = ctypes.c_void_p, ctypes.c_int
_VERBS: _Signatures = {
    "ibv_get_device_list": (ctypes.POINTER(_POINTER), [ctypes.POINTER(_INTEGER)]),
    "ibv_free_device_list": (None, [ctypes.POINTER(_POINTER)]),
    "ibv_get_device_name": (ctypes.c_char_p, [_POINTER]),
    "ibv_open_device": (_POINTER, [_POINTER]),
    "ibv_close_device": (_INTEGER, [_POINTER]),
    "ibv_alloc_pd": (_POINTER, [_POINTER]),
    "ibv_dealloc_pd": (_INTEGER, [_POINTER]),
}
_OF_DMABUF: _Signatures = {
    DMABUF: (_POINTER, [_POINTER, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_uint64, _INTEGER, _INTEGER])
}
_OF_DATA_DIRECT: _Signatures = {
    "mlx5dv_is_supported": (ctypes.c_bool, [_POINTER]),
    DATA_DIRECT: (_INTEGER, [_POINTER, ctypes.c_char_p, ctypes.c_size_t]),
}
_PATH_BYTES = 1024
# What an older kernel answers: its uverbs has no such method.
_NO_METHOD = (errno.EPROTONOSUPPORT, errno.EOPNOTSUPP)


def _library(name: str, signatures: _Signatures, too_old: str) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(name, use_errno=True)
    except OSError:
        raise _ProbeError("not there", f"{name} is not installed") from None
    for function, (result, arguments) in signatures.items():
        if not hasattr(library, function):
            raise _ProbeError("not there", f"{too_old} on this host (containers have their own)")
        call = getattr(library, function)
        call.restype, call.argtypes = result, arguments
    return library


def _open(library: ctypes.CDLL, device: str) -> int:
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
    raise _ProbeError(
        "not there", f"libibverbs does not recognize {device}: no provider, or no uverbs device"
    )


def _refused(number: int, what: str) -> _ProbeError:
    if number in (errno.EACCES, errno.EPERM):
        return _ProbeError("needs root", f"{what}: no access to /dev/infiniband")
    return _ProbeError("I/O error", f"{what}: {os.strerror(number)}")


def _ask_dmabuf(context: int, verbs: ctypes.CDLL) -> int:
    domain = verbs.ibv_alloc_pd(context)
    if not domain:
        raise _refused(ctypes.get_errno(), "ibv_alloc_pd")
    try:
        ctypes.set_errno(0)
        verbs.ibv_reg_dmabuf_mr(domain, 0, 0, 0, -1, 0)
        return ctypes.get_errno()
    finally:
        verbs.ibv_dealloc_pd(domain)


def _ask_data_direct(context: int, mlx5: ctypes.CDLL) -> str:
    # The first member of struct ibv_context is its device (infiniband/verbs.h).
    if not mlx5.mlx5dv_is_supported(_POINTER.from_address(context).value):
        return ""
    path = ctypes.create_string_buffer(_PATH_BYTES)
    number = mlx5.mlx5dv_get_data_direct_sysfs_path(context, path, len(path))
    if number == 0:
        return path.value.decode("utf-8", "replace")
    if number == errno.ENODEV:
        return ""
    if number in _NO_METHOD:
        raise _ProbeError(
            "not there", "mlx5_ib does not support Data Direct, added in Linux 6.12 and DOCA-OFED"
        )
    raise _refused(number, DATA_DIRECT)


def _ask(question: str, device: str, libraries: Sequence[str]) -> int | str:
    too_old = "libibverbs is older than rdma-core 34"
    if question == DMABUF:
        verbs = last = _library(libraries[0], {**_VERBS, **_OF_DMABUF}, too_old)
        ask: Callable[[int, ctypes.CDLL], int | str] = _ask_dmabuf
    else:
        verbs = _library(libraries[0], _VERBS, too_old)
        last = _library(libraries[1], _OF_DATA_DIRECT, "libmlx5 is older than rdma-core 54")
        ask = _ask_data_direct
    context = _open(verbs, device)
    try:
        return ask(context, last)
    finally:
        verbs.ibv_close_device(context)


def _start_probe(question: str, device: str, libraries: Sequence[str]) -> tuple[int, int]:
    """Probe a device in a process of its own; return its pid and the pipe of its answer."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGKILL)
        _silence()
        answer: dict[str, object]
        try:
            answer = {"answer": _ask(question, device, libraries)}
        except _ProbeError as error:
            answer = {"reason": error.reason, "detail": error.detail}
        os.write(writing, repr(answer).encode())
    finally:
        os._exit(0)


def _is_running(pid: int) -> bool:
    """Return whether a process uses a CPU or waits only for one (proc(5), state R)."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read(1024).rpartition(b")")[2].split()[0] == b"R"


def _collect(pid: int, reading: int, until: float) -> str:
    """Return the answer for a device as a literal, and end its process."""
    longest = until - DEVICE_SECONDS + LONGEST_SECONDS
    while not select.select([reading], [], [], max(0.1, until - time.monotonic()))[0]:
        if time.monotonic() < longest and _is_running(pid):
            continue
        os.kill(pid, _SIGKILL)
        return repr({"reason": "timed out", "detail": f"no answer within {DEVICE_SECONDS:g} s"})
    text = os.read(reading, 4096).decode()
    return text or repr({"reason": "I/O error", "detail": "the provider library crashed"})


def _silence() -> None:
    """Drop what libraries print."""
    silence = os.open(os.devnull, os.O_RDWR)
    os.dup2(silence, 1)
    os.dup2(silence, 2)


def _ask_cuda(name: str, attributes: Sequence[str]) -> dict[str, object]:
    # Otherwise, a client makes a running MPS daemon start a server.
    os.environ["CUDA_MPS_PIPE_DIRECTORY"] = "/dev/null"
    try:
        library: Any = ctypes.CDLL(name)
    except OSError:
        return {"reason": "not there", "detail": f"{name} is not installed"}
    status = library.cuInit(0)
    if status:
        return {"reason": "driver error", "detail": f"cuInit(0) returned {status}"}
    count, value = ctypes.c_int(0), ctypes.c_int(0)
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
        values = []
        for attribute in map(int, attributes):
            status = library.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
            values.append((attribute, status, value.value))
        gpus.append({"bdf": bus_id.value.decode("ascii", "replace"), "attributes": values})
    return {"gpus": gpus}


def main(arguments: Sequence[str]) -> None:
    """Print a line with a device's name and answer for each, or one about all GPUs, as Python's literals."""
    question, libraries, devices = arguments[0], arguments[1:3], arguments[3:]
    if question == CUDA:
        out = os.dup(1)
        _silence()
        os.write(out, repr(_ask_cuda(arguments[1], arguments[2:])).encode())
        os._exit(0)  # skips the library's destructors, which may hang
    until = time.monotonic() + DEVICE_SECONDS
    probes = {device: _start_probe(question, device, libraries) for device in devices}
    for device, probe in probes.items():
        print(f"({device!r}, {_collect(*probe, until)})", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
