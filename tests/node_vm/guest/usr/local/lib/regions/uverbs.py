"""The uverbs calls that register memory, without libibverbs, and memory to register.

Everything goes through the ioctl of <rdma/rdma_user_ioctl_cmds.h>: older commands of <rdma/ib_user_verbs.h>
wrapped in INVOKE_WRITE, as rdma-core does, contexts and DMA-BUF regions by methods of their own. write() of a
command is refused in a child after fork.
"""

import ctypes
import fcntl
import os
import struct
from collections.abc import Sequence

ALLOC_PD, REG_MR, DEREG_MR, CREATE_CQ, CREATE_QP = 3, 9, 13, 18, 24
LOCAL_WRITE, REMOTE_WRITE, REMOTE_READ, ON_DEMAND = 1, 2, 4, 1 << 6
HOST_ACCESS = LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ
RELIABLE_CONNECTION = 2

UNUSED = bytes(8)  # where write() would pass the answer's address
OBJECT_DEVICE, METHOD_INVOKE_WRITE, METHOD_GET_CONTEXT = 0, 0, 3
OBJECT_MR, METHOD_REG_DMABUF_MR = 7, 4
CORE_IN, CORE_OUT, WRITE_COMMAND, DRIVER_IN = 0, 1, 2, 0x1000
VERBS_IOCTL = 3 << 30 | 24 << 16 | 0x1B << 8 | 1  # _IOWR(0x1b, 1, struct ib_uverbs_ioctl_hdr)
MANDATORY = 1

Attribute = tuple[int, int, int]  # number, size (0: an object's handle), value or address

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def checked(result: int, what: str) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")
    return result


def inline(data: bytes, buffer: "ctypes.Array[ctypes.c_char]") -> int:
    """An input of up to 8 bytes travels in the attribute itself, a longer one by address."""
    return int.from_bytes(data, "little") if len(data) <= 8 else ctypes.addressof(buffer)


class Verbs:
    """One open device with one protection domain and one connected queue pair."""

    def __init__(self, number: int = 0, inheritable: bool = False) -> None:
        self.fd = os.open(device_node(number), os.O_RDWR | os.O_CLOEXEC)
        os.set_inheritable(self.fd, inheritable)
        answers = (ctypes.c_uint64 * 2)()  # number of completion vectors, what ib_core supports
        vectors = ctypes.addressof(answers)
        self._ioctl(OBJECT_DEVICE, METHOD_GET_CONTEXT, [(0, 4, vectors), (1, 8, vectors + 8)])
        (self.pd,) = struct.unpack("<I", self._call(ALLOC_PD, UNUSED, 4))
        self._create_queue_pair(self.create_completion_queue())

    def _call(self, command: int, body: bytes, answer_size: int, private: bytes = b"") -> bytes:
        """One of the older commands; gives its answer."""
        answer = ctypes.create_string_buffer(answer_size or 8)
        request = ctypes.create_string_buffer(body, len(body))
        extra = ctypes.create_string_buffer(private, len(private) or 1)
        attributes = [(CORE_IN, len(body), inline(body, request)), (WRITE_COMMAND, 8, command)]
        if answer_size:
            attributes.append((CORE_OUT, answer_size, ctypes.addressof(answer)))
        if private:
            attributes.append((DRIVER_IN, len(private), inline(private, extra)))
        self._ioctl(OBJECT_DEVICE, METHOD_INVOKE_WRITE, attributes)
        return answer.raw[:answer_size]

    def _ioctl(self, kind: int, method: int, attributes: Sequence[Attribute]) -> None:
        packed = b"".join(
            struct.pack("<HHHHQ", number, size, MANDATORY, 0, value) for number, size, value in attributes
        )
        header = struct.pack("<HHHHQII", 24 + len(packed), kind, method, len(attributes), 0, 0, 0)
        fcntl.ioctl(self.fd, VERBS_IOCTL, bytearray(header + packed), True)

    def register(self, address: int, length: int, access: int = HOST_ACCESS) -> int:
        """A region of this process's own memory; gives its handle."""
        body = UNUSED + struct.pack("<QQQII", address, length, address, self.pd, access)
        handle: int = struct.unpack("<III", self._call(REG_MR, body, 12))[0]
        return handle

    def deregister(self, handle: int) -> None:
        self._call(DEREG_MR, struct.pack("<I", handle), 0)

    def register_dmabuf(self, fd: int, length: int, offset: int = 0) -> None:
        """A region of a DMA-BUF."""
        keys = (ctypes.c_uint32 * 2)()
        lkey, rkey = ctypes.addressof(keys), ctypes.addressof(keys) + 4
        # The new region, PD, offset, length, address, DMA-BUF, access, and where the keys go.
        values = [(0, 0), (0, self.pd), (8, offset), (8, length), (8, offset), (4, fd), (4, HOST_ACCESS)]
        attributes = [(number, *value) for number, value in enumerate([*values, (4, lkey), (4, rkey)])]
        self._ioctl(OBJECT_MR, METHOD_REG_DMABUF_MR, attributes)

    def create_completion_queue(self, ring: int = 0, length: int = 0) -> int:
        """A completion queue, whose ring may lie in this process's memory; gives its handle."""
        body = UNUSED + struct.pack("<QIIiI", 0, 64, 0, -1, 0)
        answer = self._call(CREATE_CQ, body, 8, struct.pack("<QQ", ring, length) if length else b"")
        handle: int = struct.unpack("<II", answer)[0]
        return handle

    def _create_queue_pair(self, queue: int) -> None:
        sizes = (0, 16, 16, 1, 1, 0)  # no shared receive queue; requests and parts of each; no inline data
        kind = (0, RELIABLE_CONNECTION, 0, 0)
        body = UNUSED + struct.pack("<QIII6I4B", 0, self.pd, queue, queue, *sizes, *kind)
        self._call(CREATE_QP, body, 32)


def device_node(number: int) -> str:
    """The uverbs node of the device regions0 or regions1."""
    return (
        f"/dev/infiniband/{os.listdir(f'/sys/class/infiniband/regions{number}/device/infiniband_verbs')[0]}"
    )


READ_WRITE, PRIVATE_ANONYMOUS, HUGETLB = 3, 0x22, 0x40000


def memory(length: int, flags: int = 0) -> int:
    """The address of new memory."""
    address = libc.mmap(None, length, READ_WRITE, PRIVATE_ANONYMOUS | flags, -1, 0)
    if address == ctypes.c_void_p(-1).value:
        checked(-1, "mmap")
    return int(address)


def unmap(address: int, length: int) -> None:
    checked(libc.munmap(address, length), "munmap")


def dmabuf(length: int) -> int:
    """A DMA-BUF of the stub's own pages; gives its file descriptor."""
    with open("/dev/regions-dmabuf", "rb", buffering=0) as device:
        return checked(libc.ioctl(device.fileno(), ctypes.c_ulong(1), ctypes.c_ulong(length)), "dmabuf")


def pin_for_io_uring(address: int, length: int) -> None:
    """A fixed buffer of io_uring: pinned, but not for RDMA."""
    ring = checked(libc.syscall(425, 4, ctypes.create_string_buffer(120)), "io_uring_setup")
    vector = (ctypes.c_uint64 * 2)(address, length)
    checked(libc.syscall(427, ring, 0, vector, 1), "io_uring_register")
