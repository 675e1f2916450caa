"""Threads that wait in the kernel, on small trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from probes.base.unknown import Unknown
from probes.host.machine.local import LocalHost
from probes.live.hang.diagnosis import meaning_of, read_blocked, threads_in_kernel

STACK = """\
[<0>] rwsem_down_read_slowpath+0x1b0/0x4d0
[<0>] os_acquire_rwlock_read+0x31/0x40 [nvidia]
[<0>] _nv042330rm+0x10/0x40 [nvidia]
"""


def add_thread(root: Path, pid: int, thread: int, state: str, **files: str) -> None:
    folder = root / "proc" / str(pid) / "task" / str(thread)
    folder.mkdir(parents=True)
    (folder / "stat").write_text(f"{thread} (pt) main) {state} 1 {'0 ' * 17}100\n")
    (folder / "comm").write_text("pt_main\n")
    for name, content in files.items():
        (folder / name).write_text(content)


def test_every_thread_is_read_and_not_only_the_first(tmp_path: Path) -> None:
    add_thread(tmp_path, 7, 7, "S")
    add_thread(tmp_path, 7, 8, "D")
    add_thread(tmp_path, 9, 9, "R")
    assert threads_in_kernel(LocalHost(str(tmp_path)), [7, 9]) == {(7, 8)}


def test_without_a_readable_thread_it_is_unknown(tmp_path: Path) -> None:
    assert isinstance(threads_in_kernel(LocalHost(str(tmp_path)), [7]), Unknown)


def test_a_stack_says_what_the_thread_waits_for(tmp_path: Path) -> None:
    add_thread(tmp_path, 7, 8, "D", stack=STACK)
    (blocked,) = read_blocked(LocalHost(str(tmp_path)), [(7, 8)])
    assert blocked.is_driver
    assert blocked.sentence == (
        "thread 8 (pt_main) of pid 7 waits in the kernel for a lock of the NVIDIA driver"
    )


def test_without_a_stack_wchan_counts_and_0_is_no_answer(tmp_path: Path) -> None:
    add_thread(tmp_path, 7, 8, "D", wchan="folio_wait_bit_common")
    add_thread(tmp_path, 7, 9, "D", wchan="0")
    storage, unknown = read_blocked(LocalHost(str(tmp_path)), [(7, 8), (7, 9)])
    assert (storage.waits_for, storage.is_driver) == ("storage", False)
    assert "for what is unknown" in unknown.sentence


@pytest.mark.parametrize(
    ("frame", "meaning"),
    [
        ("uvm_va_space_mm_unregister", "nvidia-uvm"),
        ("ib_umem_dmabuf_map_pages", "the registration of GPU memory (DMA-BUF)"),
        ("ptlrpc_set_wait", "storage"),
        ("schedule_timeout", ""),
    ],
)
def test_frames_have_meanings(frame: str, meaning: str) -> None:
    assert meaning_of(["__schedule", frame])[0] == meaning
