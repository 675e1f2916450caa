"""The names of threads."""

import os
import threading
from pathlib import Path

import pytest

from probes.base.unknown import Reason, Unknown
from probes.host import thread_names
from probes.host.local import LocalHost
from tests.trees import write


def test_distinct_names_sorted_and_printable(tmp_path: Path) -> None:
    names = {70: "python", 71: "NCCL Service 0", 72: "NCCL Progress 1", 73: "python", 74: "pt_\x1b[2J"}
    for thread, name in names.items():
        write(tmp_path, f"/proc/70/task/{thread}/comm", f"{name}\n")
    write(tmp_path, "/proc/70/task/75/stat", "ends while it is read")
    found = LocalHost(str(tmp_path)).thread_names([70, 71])
    assert found[70] == ("NCCL Progress 1", "NCCL Service 0", "pt_\N{REPLACEMENT CHARACTER}[2J", "python")
    ended = found[71]
    assert isinstance(ended, Unknown)
    assert ended.reason is Reason.NOT_THERE


def test_this_process() -> None:
    release = threading.Event()
    thread = threading.Thread(target=release.wait)
    thread.start()
    try:
        found = LocalHost().thread_names([os.getpid()])[os.getpid()]
    finally:
        release.set()
        thread.join()
    assert not isinstance(found, Unknown)
    assert Path("/proc/self/comm").read_text().strip() in found


def test_a_process_with_very_many_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_names, "MAX_THREADS", 3)
    for thread in range(100, 110):
        write(tmp_path, f"/proc/70/task/{thread}/comm", f"worker {thread}\n")
    found = LocalHost(str(tmp_path)).thread_names([70])[70]
    assert found == ("worker 100", "worker 101", "worker 102")
