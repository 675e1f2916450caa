"""The small answers of a host: part of a file, output of a command, kernel messages, CUDA attributes."""

from __future__ import annotations

import re

from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown

MAX_MESSAGES = 512  # of one answer; the rest comes with the next one
MESSAGE_CHARACTERS = 512
RDMA_SUPPORTED = 116  # CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED
DMABUF_SUPPORTED = 124  # CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED
# Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst
ETHTOOL_COUNTERS = re.compile(
    r"[rt]x_prio[0-7]_(?:pause|pause_duration|discards)"  # pauses by priority (PFC); the duration is in µs
    r"|[rt]x_global_pause(?:_duration)?"  # pauses of the whole link, in µs
    r"|[rt]x_pause_ctrl_phy"
    r"|[rt]x_discards_phy"
    r"|link_down_events_phy"
    r"|rx_(?:crc_errors|symbol_err)_phy"
    r"|outbound_pci_stalled_(?:rd|wr)"  # percent of the last second, not a counter
    r"|outbound_pci_stalled_(?:rd|wr)_events"  # seconds with more than 30 % stall
    r"|outbound_pci_buffer_overflow"
    r"|[rt]x_pci_signal_integrity"
)
"""The counters of `ethtool -S` that are read: a busy mlx5 has thousands, most of them per queue."""


@frozen
class FileRange:
    """Bytes of a regular file from an offset on, and the state of the file when they were read."""

    content: bytes
    size_bytes: int
    file: str  # identity: the same for all paths to the file, another one after a rotation
    owner: Maybe[int] = Unknown(Reason.NOT_RECORDED, "owner")  # uid; unknown where no user can have forged it


def of_user(found: Maybe[FileRange], user: Maybe[int] | None, path: str) -> Maybe[FileRange]:
    """Return what was read if it is evidence about a process of this user: its own file, or root's.

    Anyone can put a file where all users may write, under the name that a job uses. `user`: the process's
    uid; None: the admin has named the file. OTHER_OWNER: it belongs to someone else.
    """
    if isinstance(found, Unknown) or user is None or isinstance(found.owner, Unknown) or found.owner == 0:
        return found
    if isinstance(user, Unknown):
        return Unknown(user.reason, printable(path, 200), f"owner of the process: {user}")
    if found.owner == user:
        return found
    detail = f"belongs to user {found.owner}, not to the job's user {user}"
    return Unknown(Reason.OTHER_OWNER, printable(path, 200), detail)


@frozen
class CommandOutput:
    """Output of a command, with control characters replaced, and its exit status."""

    argv: tuple[str, ...]
    exit_status: int
    stdout: str
    stderr: str
    left_out_bytes: int = 0  # of a log's output: its oldest lines, before `stdout`


@frozen
class KernelMessage:
    """A message of the kernel log (Documentation/ABI/testing/dev-kmsg)."""

    sequence: int
    at: float  # seconds since the kernel started
    priority: int  # 0 (emergency) to 7 (debug)
    text: str


@frozen
class CudaGpu:
    """The answers of cuDeviceGetAttribute for a GPU."""

    bdf: str  # "0000:1b:00.0", as in sysfs
    rdma_supported: Maybe[bool]  # attribute 116: nvidia-peermem can pin its memory
    dmabuf_supported: Maybe[bool]  # attribute 124: its memory can be exported as a DMA-BUF
