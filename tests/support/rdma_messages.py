"""RDMA netlink messages as a kernel would send them."""

import struct


def attribute(kind: int, payload: bytes) -> bytes:
    """Return an attribute, padded to four bytes."""
    return struct.pack("=HH", len(payload) + 4, kind) + payload + b"\0" * (-len(payload) % 4)


def u8(kind: int, value: int) -> bytes:
    return attribute(kind, bytes((value,)))


def u32(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("=I", value))


def u64(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("=Q", value))


def text(kind: int, value: str) -> bytes:
    return attribute(kind, value.encode() + b"\0")


def message(kind: int, sequence: int, payload: bytes, flags: int = 2) -> bytes:
    """Return a netlink message with its header."""
    return struct.pack("=IHHII", len(payload) + 16, kind, flags, sequence, 0) + payload


def device(sequence: int, index: int, name: str) -> bytes:
    return message(5 << 10 | 1, sequence, u32(1, index) + text(2, name) + u32(3, 1))


def done(sequence: int, error: int = 0) -> bytes:
    return message(3, sequence, struct.pack("=i", -error))


def refused(sequence: int, error: int) -> bytes:
    return message(2, sequence, struct.pack("=i", -error) + bytes(16))


def objects(command: int, table: int, sequence: int, entries: list[bytes], flags: int = 2) -> bytes:
    """Return a message with a table of objects."""
    nested = attribute(table, b"".join(attribute(table + 1, entry) for entry in entries))
    return message(5 << 10 | command, sequence, u32(1, 0) + text(2, "mlx5_0") + nested, flags)


def statistics(sequence: int, counters: dict[str, int]) -> bytes:
    """Return the answer to RDMA_NLDEV_CMD_STAT_GET, which has no end (stat_get_doit_default_counter)."""
    entries = (attribute(81, text(82, name) + u64(83, value)) for name, value in counters.items())
    nested = attribute(0x8000 | 80, b"".join(entries))
    return message(5 << 10 | 17, sequence, u32(1, 0) + text(2, "mlx5_0") + u32(3, 1) + nested, 0)


def queue_pair(number: int, kind: int = 2, state: int = 3, pid: int | None = 4711, name: str = "") -> bytes:
    """Return an entry in the order of fill_res_qp_entry."""
    owner = (u32(28, pid) if pid else b"") + (text(29, name) if name else b"")
    entry = u32(3, 1) + u32(21, number) + u32(60, 3) + owner + u32(22, 99) + u32(23, 5) + u32(24, 6)
    return entry + u8(25, 0) + u8(26, kind) + u8(27, state)


def region(number: int, length: int, pid: int | None = 4711, odp: str = "") -> bytes:
    driver = attribute(0x8000 | 52, text(54, "odp") + text(54, odp)) if odp else b""
    return u64(45, length) + u32(62, number) + u32(60, 3) + (u32(28, pid) if pid else b"") + driver


def domain(number: int, context: int | None, pid: int | None = 4711, name: str = "") -> bytes:
    owner = (u32(28, pid) if pid else b"") + (text(29, name) if name else b"")
    return u64(37, 2) + u32(60, number) + (b"" if context is None else u32(64, context)) + owner


def context(number: int, pid: int | None = 4711) -> bytes:
    return u32(64, number) + (u32(28, pid) if pid else b"")


def completion_queue(number: int, context_number: int, pid: int | None = 4711) -> bytes:
    return (
        u32(36, 255) + u64(37, 1) + u8(85, 0) + u32(61, number) + u32(64, context_number) + u32(28, pid or 0)
    )
