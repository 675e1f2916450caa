"""The program that registers the memory of one GPU with NICs; nothing is sent.

A process of its own, executed and not forked: a CUDA context lasts until its process ends, CUDA does not work
after a fork, and a wedged GPU or NIC must cost one time limit and not gdrtop. It ends with its supervisor
(tui/bandwidth/supervisor.py), and whatever it holds then ends with it.

It imports nothing of gdrtop. Each line that it prints is a JSON list [NIC, call, value]: before a call with
null, so that a hang names the call, and after it with its CUresult or errno (0: success). The NIC is "" for
calls to libcuda. A text instead of a number says what is missing.

First each NIC registers host memory: if that fails, the GPU is not to blame. Only then a context is created
on the GPU, and 2 MiB of its memory are registered as a DMA-BUF and by their address.
Sources: cuda.h (CUDA 13.0), infiniband/verbs.h (rdma-core), and tui/manual/prove.md for what is tried.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import sys

TYPE_CHECKING = False  # without an import of typing
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

SIZE_BYTES = 2 << 20  # multiple of every host page size and of the 64 KiB pages of GPU memory
HOST_BYTES = 4096
# Variables of libcuda and libibverbs that would change what is tried.
SET = {
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "CUDA_FORCE_PRELOAD_LIBRARIES": "0",  # cuInit would load libraries that only a compiler needs
    "CUDA_MPS_PIPE_DIRECTORY": "/dev/null",  # otherwise the context is a client of a job's MPS server
}
DROPPED = ("CUDA_VISIBLE_DEVICES", "RDMAV_FORK_SAFE", "IBV_FORK_SAFE", "RDMAV_HUGEPAGES_SAFE")
_COMPUTE_MODE, _RDMA, _DMABUF = 20, 116, 124  # CUdevice_attribute
_DMABUF_FD = 1  # CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
_LOCAL_WRITE = 1  # IBV_ACCESS_LOCAL_WRITE
_NO_FUNCTION = "the library does not have this function"

_POINTER, _INTEGER, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
# Without argument types, ctypes would cut 64-bit values. The functions with _v2 take 64-bit sizes.
_CUDA: Mapping[str, Sequence[Any]] = {
    "cuInit": (ctypes.c_uint,),
    "cuDeviceGetByPCIBusId": (ctypes.POINTER(_INTEGER), ctypes.c_char_p),
    "cuDeviceGetAttribute": (ctypes.POINTER(_INTEGER), _INTEGER, _INTEGER),
    "cuDevicePrimaryCtxRetain": (ctypes.POINTER(_POINTER), _INTEGER),
    "cuCtxSetCurrent": (_POINTER,),
    "cuMemAlloc_v2": (ctypes.POINTER(ctypes.c_uint64), _SIZE),
    "cuMemGetHandleForAddressRange": (
        *(ctypes.POINTER(_INTEGER), ctypes.c_uint64, _SIZE, _INTEGER, ctypes.c_ulonglong),
    ),
    "cuMemFree_v2": (ctypes.c_uint64,),
    "cuDevicePrimaryCtxRelease_v2": (_INTEGER,),
}
_VERBS: Mapping[str, tuple[Any, Sequence[Any]]] = {
    "ibv_get_device_list": (ctypes.POINTER(_POINTER), (ctypes.POINTER(_INTEGER),)),
    "ibv_free_device_list": (None, (ctypes.POINTER(_POINTER),)),
    "ibv_get_device_name": (ctypes.c_char_p, (_POINTER,)),
    "ibv_open_device": (_POINTER, (_POINTER,)),
    "ibv_alloc_pd": (_POINTER, (_POINTER,)),
    "ibv_reg_mr": (_POINTER, (_POINTER, _POINTER, _SIZE, _INTEGER)),
    "ibv_reg_dmabuf_mr": (_POINTER, (_POINTER, ctypes.c_uint64, _SIZE, ctypes.c_uint64, _INTEGER, _INTEGER)),
    "ibv_dereg_mr": (_INTEGER, (_POINTER,)),
    "ibv_dealloc_pd": (_INTEGER, (_POINTER,)),
    "ibv_close_device": (_INTEGER, (_POINTER,)),
}


class _Failed(Exception):
    """A call failed, and is reported already."""


class Report:
    """The lines for gdrtop; what the libraries print is dropped."""

    def __init__(self) -> None:
        self._out, silence = os.dup(1), os.open(os.devnull, os.O_RDWR)
        os.dup2(silence, 1)
        os.dup2(silence, 2)

    def write(self, nic: str, call: str, value: int | str | None) -> None:
        """Write a line: before a call with None, after it with its result."""
        os.write(self._out, (json.dumps([nic, call, value]) + "\n").encode())


class Nic:
    """An RDMA device that has registered host memory."""

    def __init__(self, name: str, access: int, verbs: ctypes.CDLL, report: Report) -> None:
        """Open the device and register host memory, or raise _Failed."""
        self.name, self._access, self._verbs, self._report = name, access, verbs, report
        self._context = self._opened()
        self._domain = self._call("ibv_alloc_pd", "ibv_alloc_pd", self._context)
        self._memory = ctypes.create_string_buffer(HOST_BYTES)
        address = ctypes.addressof(self._memory)
        self._register("host memory", "ibv_reg_mr", address, HOST_BYTES, _LOCAL_WRITE)

    def _opened(self) -> int:
        count = ctypes.c_int(0)
        devices = self._call("ibv_get_device_list", "ibv_get_device_list", ctypes.byref(count))
        try:
            for number in range(count.value):
                if self._verbs.ibv_get_device_name(devices[number]) == self.name.encode():
                    return int(self._call("ibv_open_device", "ibv_open_device", devices[number]))
        finally:
            self._verbs.ibv_free_device_list(devices)
        self._report.write(self.name, "ibv_open_device", "libibverbs does not list this device")
        raise _Failed

    def _call(self, call: str, function: str, *arguments: Any) -> Any:
        """Call a function that returns NULL and sets errno if it fails; report it under the name `call`."""
        self._report.write(self.name, call, None)
        if not hasattr(self._verbs, function):
            self._report.write(self.name, call, _NO_FUNCTION)
            raise _Failed
        ctypes.set_errno(0)
        result = getattr(self._verbs, function)(*arguments)
        # Without an errno, the failure must not look like a success.
        self._report.write(self.name, call, 0 if result else ctypes.get_errno() or errno.EIO)
        if not result:
            raise _Failed
        return result

    def _register(self, what: str, function: str, *arguments: int) -> None:
        """Register memory and deregister it, or raise _Failed."""
        self._verbs.ibv_dereg_mr(self._call(what, function, self._domain, *arguments))

    def register_gpu_memory(self, address: int, descriptor: int) -> None:
        """Register a GPU's memory: as a DMA-BUF, if it was exported (descriptor ≥ 0), and by its address."""
        if descriptor >= 0:
            try:
                arguments = (0, SIZE_BYTES, address, descriptor, self._access)
                self._register("DMA-BUF", "ibv_reg_dmabuf_mr", *arguments)
            except _Failed:  # peer memory is another path
                pass
        try:
            self._register("peer memory", "ibv_reg_mr", address, SIZE_BYTES, self._access)
        except _Failed:
            return

    def close(self) -> None:
        """Close the device."""
        self._verbs.ibv_dealloc_pd(self._domain)
        self._verbs.ibv_close_device(self._context)


class Gpu:
    """A GPU with a CUDA context of this process, and memory on it."""

    def __init__(self, bdf: str, cuda: ctypes.CDLL, report: Report) -> None:
        """Create the context and allocate the memory, or raise _Failed."""
        self._cuda, self._report = cuda, report
        self._call("cuInit", 0)
        device, context, address = ctypes.c_int(0), _POINTER(), ctypes.c_uint64(0)
        self._call("cuDeviceGetByPCIBusId", ctypes.byref(device), bdf.encode())
        self._device = device.value
        mode, rdma, dmabuf = map(self._attribute, (_COMPUTE_MODE, _RDMA, _DMABUF))
        report.write("", "compute mode", mode)
        report.write("", "peer memory supported", rdma)
        report.write("", "DMA-BUF supported", dmabuf)
        if mode or not (rdma or dmabuf):  # a context would cost memory for nothing, or keep a job out
            raise _Failed
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device)
        try:
            self._call("cuCtxSetCurrent", context)
            self._call("cuMemAlloc_v2", ctypes.byref(address), SIZE_BYTES)
        except _Failed:
            cuda.cuDevicePrimaryCtxRelease_v2(self._device)
            raise
        self.address = address.value

    def _call(self, function: str, *arguments: Any) -> None:
        self._report.write("", function, None)
        if not hasattr(self._cuda, function):
            self._report.write("", function, _NO_FUNCTION)
            raise _Failed
        code = getattr(self._cuda, function)(*arguments)
        self._report.write("", function, code)
        if code:
            raise _Failed

    def _attribute(self, attribute: int) -> int:
        """Return an attribute; 0 if the driver does not know it."""
        value = ctypes.c_int(0)
        code = self._cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, self._device)
        return 0 if code else value.value

    def exported(self) -> int:
        """Return the memory as a DMA-BUF's descriptor; -1 if that failed."""
        descriptor = ctypes.c_int(-1)
        try:
            arguments = (self.address, SIZE_BYTES, _DMABUF_FD, 0)
            self._call("cuMemGetHandleForAddressRange", ctypes.byref(descriptor), *arguments)
        except _Failed:
            return -1
        return descriptor.value

    def close(self) -> None:
        """Free the memory and end the context."""
        self._cuda.cuMemFree_v2(self.address)
        self._cuda.cuDevicePrimaryCtxRelease_v2(self._device)


def _loaded(library: str, name: str, report: Report) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(name, use_errno=True)
    except OSError:
        report.write("", library, f"{name} is not installed")
        raise _Failed from None


def _opened_nics(names: Sequence[str], library: str, report: Report) -> list[Nic]:
    """Open the NICs, given as "ACCESS:NAME"; return those that registered host memory."""
    verbs = _loaded("libibverbs", library, report)
    for function, (result, arguments) in _VERBS.items():
        if hasattr(verbs, function):
            call = getattr(verbs, function)
            call.restype, call.argtypes = result, arguments
    nics = []
    for word in names:
        access, _, name = word.partition(":")
        try:
            nics.append(Nic(name, int(access), verbs, report))
        except _Failed:  # the other NICs may work
            continue
    return nics


def register(bdf: str, names: Sequence[str], libraries: Sequence[str], report: Report) -> None:
    """Register the memory of a GPU with NICs; `libraries`: libcuda and libibverbs."""
    nics = _opened_nics(names, libraries[1], report)
    if not nics:
        return
    cuda = _loaded("libcuda", libraries[0], report)
    for function, types in _CUDA.items():
        if hasattr(cuda, function):
            getattr(cuda, function).argtypes = types
    gpu = Gpu(bdf, cuda, report)
    descriptor = gpu.exported()
    for nic in nics:
        nic.register_gpu_memory(gpu.address, descriptor)
    if descriptor >= 0:
        os.close(descriptor)
    for nic in nics:
        nic.close()
    gpu.close()


def main(bdf: str, libcuda: str, libibverbs: str, names: Sequence[str]) -> None:
    """Register the memory of a GPU, and report each call."""
    os.environ.update(SET)
    for name in DROPPED:
        os.environ.pop(name, None)
    try:
        register(bdf, names, (libcuda, libibverbs), Report())
    except _Failed:  # it is reported
        os._exit(1)
    os._exit(0)  # skips the libraries' destructors, which may hang


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])
