"""Threads of a job that wait in the kernel and cannot be interrupted (state D), and for what.

Sources: proc(5). `wchan` needs ptrace access and `stack` root; a read of either can itself block, so it runs
in a probe's thread. A thread is in state D for a moment all the time, so only one that is still there some
seconds later counts.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence

from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown, known, map_known
from probes.facts.jobs.process_files import parse_stat
from probes.host.probe_thread import RunningProbe
from probes.host.protocol import Host

_SCAN_SECONDS = 2.0
_READ_SECONDS = 1.0
_MOST_THREADS = 512  # of a process
_MOST_BLOCKED = 8  # whose stacks are read
_FRAME = re.compile(r"\[<[0-9a-fx]+>\]\s+([A-Za-z0-9_.]{1,80})")
# Frames and what the thread waits for (kernel-open/nvidia/os-interface.c; mm/filemap.c, net/sunrpc, lustre).
_MEANINGS = (
    (r"os_acquire_(?:rwlock_read|rwlock_write|semaphore|mutex)", "a lock of the NVIDIA driver", True),
    (r"uvm_", "nvidia-uvm", True),
    (r"nv_dma_buf_|dma_resv_|ib_umem_dmabuf_", "the registration of GPU memory (DMA-BUF)", True),
    (r"nvidia_p2p_|nv_mem_", "the registration of GPU memory (nvidia-peermem)", True),
    (r"nv_|nvidia", "the NVIDIA driver", True),
    (r"folio_wait_bit|rpc_wait_bit_killable|ptlrpc_|nfs_", "storage", False),
)


@frozen
class BlockedThread:
    """A thread in state D."""

    pid: int
    thread: int
    name: str
    frames: Maybe[tuple[str, ...]]  # functions of the kernel, the innermost first
    waits_for: str  # "a lock of the NVIDIA driver"; "": not known
    is_driver: bool  # the NVIDIA driver or RDMA, not storage
    node: str = ""  # of a job on several nodes

    @property
    def sentence(self) -> str:
        """What it does, without a period."""
        name = f"thread {self.thread} ({self.name}) of pid {self.pid}"
        if self.waits_for:
            return f"{name} waits in the kernel for {self.waits_for}"
        if isinstance(self.frames, Unknown):
            return f"{name} waits in the kernel, for what is unknown ({self.frames})"
        return f"{name} waits in the kernel in {', '.join(self.frames[:3])}"


def threads_in_kernel(host: Host, pids: Iterable[int]) -> Maybe[frozenset[tuple[int, int]]]:
    """Return the pid and thread id of all threads in state D, in bounded time; unknown: none is readable."""
    found: set[tuple[int, int]] = set()
    why: Unknown | None = Unknown(Reason.NOT_THERE, "/proc/PID/task")
    until = time.monotonic() + _SCAN_SECONDS
    for pid in pids:
        threads = known(host.names(f"/proc/{pid}/task"), ())
        for thread in [name for name in threads if name.isdecimal()][:_MOST_THREADS]:
            if time.monotonic() >= until:
                return frozenset(found)
            stat = map_known(host.read(f"/proc/{pid}/task/{thread}/stat"), parse_stat)
            if isinstance(stat, Unknown):
                why = why if why is None else stat
                continue
            why = None
            if stat.state == "D":
                found.add((pid, int(thread)))
    return frozenset(found) if why is None else why


def read_blocked(host: Host, threads: Iterable[tuple[int, int]]) -> tuple[BlockedThread, ...]:
    """Return what these threads wait for."""
    return tuple(_blocked(host, pid, thread) for pid, thread in sorted(threads)[:_MOST_BLOCKED])


def _blocked(host: Host, pid: int, thread: int) -> BlockedThread:
    base = f"/proc/{pid}/task/{thread}"
    probe = RunningProbe(host, f"{base}/stack", lambda: _frames(host, base))
    probe.start()
    frames = probe.answer(_READ_SECONDS)
    waits_for, is_driver = meaning_of(known(frames, ()))
    name = printable(known(host.read(f"{base}/comm"), "?"), 16)
    return BlockedThread(pid, thread, name, frames, waits_for, is_driver)


def _frames(host: Host, base: str) -> Maybe[tuple[str, ...]]:
    stack = host.read(f"{base}/stack")
    if not isinstance(stack, Unknown):
        return tuple(_FRAME.findall(stack)[:32])
    channel = host.read(f"{base}/wchan")
    if isinstance(channel, Unknown) or channel in ("", "0"):
        return stack
    return (printable(channel, 80),)


def meaning_of(frames: Sequence[str]) -> tuple[str, bool]:
    """Return what a stack waits for, and whether that is a driver on the data path; "" if it is not known."""
    for pattern, meaning, is_driver in _MEANINGS:
        if any(re.match(pattern, frame) for frame in frames):
            return meaning, is_driver
    return "", False
