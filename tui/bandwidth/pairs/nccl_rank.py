"""The program that runs all-reduce on the GPUs of one node together with those of other nodes.

nccl_session.py starts one on each node, as node_server.py starts tools: it needs libnccl and the driver
there, and neither MPI nor ssh between the nodes. The first one prints NCCL's unique id, which the others get
as an argument. Rows are printed in the form of nccl-tests, and measure the same, out of place.

It runs from memory, with Python 3.6 or newer and the standard library. Sources: nccl.h (2.19 to 2.30), cuda.h
(CUDA 13.0), and vLLM's pynccl, which calls NCCL in the same way. A GPU's primary context is what NCCL's CUDA
runtime uses too.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time

TYPE_CHECKING = False  # without an import of typing
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

ID_MARK = "gdrtop unique id "
FAILED_MARK = "gdrtop rank failed: "
_FLOAT32, _SUM = 7, 0  # ncclDataType_t, ncclRedOp_t
_ONE = 0x3F800000  # 1.0 as float32
_CHECKED_BYTES = 4096  # at both ends of the result
_WARM_UP = 3
_HEAD = "#       size         count      type   redop    root     time   algbw   busbw  #wrong"
_POINTER, _INTEGER, _SIZE, _ADDRESS = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_uint64


class _UniqueId(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 128)]  # NCCL_UNIQUE_ID_BYTES


# Without argument types, ctypes would cut 64-bit values.
_FUNCTIONS = {
    "ncclGetUniqueId": (ctypes.POINTER(_UniqueId),),
    "ncclGroupStart": (),
    "ncclGroupEnd": (),
    "ncclCommInitRank": (ctypes.POINTER(_POINTER), _INTEGER, _UniqueId, _INTEGER),
    "ncclAllReduce": (_ADDRESS, _ADDRESS, _SIZE, _INTEGER, _INTEGER, _POINTER, _POINTER),
    "cuInit": (ctypes.c_uint,),
    "cuDeviceGetCount": (ctypes.POINTER(_INTEGER),),
    "cuDeviceGet": (ctypes.POINTER(_INTEGER), _INTEGER),
    "cuDevicePrimaryCtxRetain": (ctypes.POINTER(_POINTER), _INTEGER),
    "cuCtxSetCurrent": (_POINTER,),
    "cuMemAlloc_v2": (ctypes.POINTER(_ADDRESS), _SIZE),
    "cuMemsetD32_v2": (_ADDRESS, ctypes.c_uint, _SIZE),
    "cuMemcpyDtoH_v2": (_POINTER, _ADDRESS, _SIZE),
    "cuStreamCreate": (ctypes.POINTER(_POINTER), ctypes.c_uint),
    "cuStreamSynchronize": (_POINTER,),
    "cuCtxSynchronize": (),
}


class Failed(Exception):
    """A call failed; the message says which."""


def _write(text: str) -> None:
    os.write(1, (text + "\n").encode("ascii", "replace"))


class _Libraries:
    """libcuda and libnccl; a call that fails raises Failed."""

    def __init__(self, libcuda: str, libnccl: str) -> None:
        self._loaded = []
        for name in (libcuda, libnccl):
            try:
                self._loaded.append(ctypes.CDLL(name))
            except OSError as error:
                raise Failed(f"cannot load {name}: {error}") from None

    def call(self, name: str, *arguments: Any) -> None:
        library = self._loaded[name.startswith("nccl")]
        function = getattr(library, name, None)
        if function is None:
            raise Failed(f"{name} is missing in the library")
        function.argtypes = _FUNCTIONS[name]
        code = function(*arguments)
        if code:
            raise Failed(f"{name} returned {code}{self._words(name, code)}")

    def _words(self, name: str, code: int) -> str:
        if not name.startswith("nccl"):
            return ""
        words = self._loaded[1].ncclGetErrorString
        words.restype = ctypes.c_char_p
        return f" ({(words(code) or b'').decode('ascii', 'replace')})"


class _Gpu:
    """One GPU: its context, its stream, and two buffers of the largest size."""

    def __init__(self, number: int, size: int, library: _Libraries) -> None:
        self._call = library.call
        device = _INTEGER(0)
        self.context, self.stream = _POINTER(), _POINTER()
        self.send, self.receive = _ADDRESS(0), _ADDRESS(0)
        self.communicator = _POINTER()
        self._call("cuDeviceGet", ctypes.byref(device), number)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), device.value)
        self.select()
        self._call("cuStreamCreate", ctypes.byref(self.stream), 1)  # CU_STREAM_NON_BLOCKING
        for buffer in (self.send, self.receive):
            self._call("cuMemAlloc_v2", ctypes.byref(buffer), size)
            self._call("cuMemsetD32_v2", buffer, _ONE, size // 4)
        self._call("cuCtxSynchronize")

    def select(self) -> None:
        """Make it the GPU of the next calls."""
        self._call("cuCtxSetCurrent", self.context)

    def wrong(self, size: int, expected: float) -> int:
        """Return how many elements at both ends of a result are not as expected."""
        self.select()
        count = min(size, _CHECKED_BYTES) // 4
        found = (ctypes.c_float * count)()
        wrong = 0
        for offset in (0, size - count * 4):
            self._call("cuMemcpyDtoH_v2", found, self.receive.value + offset, count * 4)
            wrong += sum(value != expected for value in found)
        return wrong


class _Collective:
    """All-reduce over the GPUs of this node and all others."""

    def __init__(
        self, library: _Libraries, gpus: Sequence[_Gpu], first: int, ranks: int, unique: _UniqueId
    ) -> None:
        self._call, self._gpus, self._ranks = library.call, gpus, ranks
        self._call("ncclGroupStart")
        for place, gpu in enumerate(gpus):
            gpu.select()
            self._call("ncclCommInitRank", ctypes.byref(gpu.communicator), ranks, unique, first + place)
        self._call("ncclGroupEnd")

    def run(self, size: int, iterations: int) -> float:
        """Return the seconds of one all-reduce."""
        began = time.monotonic()
        for _ in range(iterations):
            self._call("ncclGroupStart")
            for gpu in self._gpus:
                gpu.select()
                arguments = (gpu.send, gpu.receive, size // 4, _FLOAT32, _SUM)
                self._call("ncclAllReduce", *arguments, gpu.communicator, gpu.stream)
            self._call("ncclGroupEnd")
        for gpu in self._gpus:
            gpu.select()
            self._call("cuStreamSynchronize", gpu.stream)
        return (time.monotonic() - began) / iterations

    def wrong(self, size: int) -> int:
        """Return how many elements of this node's results are wrong: every rank sends ones."""
        return sum(gpu.wrong(size, float(self._ranks)) for gpu in self._gpus)


def measure(words: Sequence[str]) -> None:
    """Run the sizes; `words`: libcuda, libnccl, first rank, ranks, unique id or "new", SIZE:ITERATIONS …."""
    library = _Libraries(words[0], words[1])
    first, ranks, identity = int(words[2]), int(words[3]), words[4]
    sizes = [tuple(map(int, word.split(":"))) for word in words[5:]]
    unique, count = _UniqueId(), _INTEGER(0)
    library.call("cuInit", 0)
    library.call("cuDeviceGetCount", ctypes.byref(count))
    gpus = [_Gpu(number, max(size for size, _ in sizes), library) for number in range(count.value)]
    if identity == "new":
        library.call("ncclGetUniqueId", ctypes.byref(unique))
        _write(ID_MARK + bytes(unique.bytes).hex())
    else:
        ctypes.memmove(ctypes.byref(unique), bytes.fromhex(identity), ctypes.sizeof(unique))
    collective = _Collective(library, gpus, first, ranks, unique)
    if first == 0:
        _write(_HEAD)
    for size, iterations in sizes:
        collective.run(size, _WARM_UP)
        seconds = collective.run(size, iterations)
        wrong = collective.wrong(size)
        if wrong:
            raise Failed(f"{wrong} elements of a {size}-byte message were wrong: data was corrupted")
        algorithm = size / seconds / 1e9
        bus = algorithm * 2 * (ranks - 1) / ranks
        if first == 0:
            figures = f"{seconds * 1e6:.1f} {algorithm:.2f} {bus:.2f} 0"
            _write(f"{size} {size // 4} float sum -1 {figures}")


def main(words: Sequence[str]) -> None:
    """Run it, and print what failed."""
    status = 0
    try:
        measure(words)
    except Failed as failure:
        _write(FAILED_MARK + str(failure))
        status = 1
    ctypes.CDLL(None).fflush(None)  # what NCCL has printed
    os._exit(status)  # skips the libraries' destructors, which may hang


if __name__ == "__main__":
    main(sys.argv[1:])
