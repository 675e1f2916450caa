"""What processes use and what interfaces carry: psutil on this machine, files of a tree."""

from __future__ import annotations

import getpass
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from probes.base.unknown import Reason, Unknown
from probes.host import usage
from probes.host.machine import live_usage
from probes.host.machine.local import LocalHost
from probes.host.usage import InterfaceCounters, ProcessUsage, cpu_list
from tests.support.trees import write

STATUS = "Name:\tpython3\nUid:\t1000\t1001\t1000\t1000\nVmRSS:\t2048 kB\nCpus_allowed_list:\t0-3,8\n"
# A name may contain spaces and parentheses.
STAT = "7 (a) b (c) S 1 7 7 0 -1 4194560 1 0 0 0 150 50 0 0 20 0 64 0 12345 0 0\n"
ENDED = 2**22 + 1  # more than the largest pid_max


def only(host: LocalHost, pid: int) -> ProcessUsage:
    usage = host.process_usage([pid])[pid]
    assert isinstance(usage, ProcessUsage)
    return usage


def test_this_process_on_this_machine() -> None:
    usage = only(LocalHost(), os.getpid())
    assert usage.user == getpass.getuser()
    assert usage.cpus == cpu_list(os.sched_getaffinity(0))
    assert not isinstance(usage.cpu_seconds, Unknown)
    assert not isinstance(usage.memory_bytes, Unknown)
    assert usage.memory_bytes > 1 << 20
    assert not isinstance(usage.started_at, Unknown)
    assert usage.started_at <= time.time()


def test_a_process_that_has_ended_is_not_there() -> None:
    answer = LocalHost().process_usage([ENDED])[ENDED]
    assert isinstance(answer, Unknown)
    assert (answer.reason, answer.detail) == (Reason.NOT_THERE, "the process has exited")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (psutil.NoSuchProcess(1), Reason.NOT_THERE),
        (psutil.AccessDenied(1), Reason.NEEDS_ROOT),
        (OSError("the disk is gone"), Reason.IO_ERROR),
        (ValueError("no number"), Reason.IO_ERROR),
    ],
)
def test_an_error_spoils_one_figure_only(
    error: Exception, reason: Reason, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise error

    monkeypatch.setattr(psutil.Process, "cpu_affinity", fail)
    usage = only(LocalHost(), os.getpid())
    assert isinstance(usage.cpus, Unknown)
    assert usage.cpus.reason is reason
    assert not isinstance(usage.memory_bytes, Unknown)


def test_interfaces_of_this_machine() -> None:
    answers = LocalHost().interface_counters(["lo", "nosuch0"])
    assert isinstance(answers["lo"], InterfaceCounters)
    absent = answers["nosuch0"]
    assert isinstance(absent, Unknown)
    assert absent.reason is Reason.NOT_THERE


def test_without_proc_every_interface_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(live_usage.psutil, "net_io_counters", fail)
    assert isinstance(LocalHost().interface_counters(["lo"])["lo"], Unknown)


def test_psutil_is_imported_only_when_it_is_asked() -> None:
    code = (
        "import sys; from probes.host.machine.local import LocalHost; LocalHost().names('/proc');"
        "assert 'psutil' not in sys.modules; LocalHost().process_usage([1]); assert 'psutil' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_process_of_a_tree(tmp_path: Path) -> None:
    write(tmp_path, "/proc/7/status", STATUS)
    write(tmp_path, "/proc/7/stat", STAT)
    write(tmp_path, "/proc/stat", "cpu 1 2 3\nbtime 1700000000\n")
    write(tmp_path, "/etc/passwd", "root:x:0:0::/root:\nalice:x:1001:1001::/:\nother:x:1001:1::/:\n")
    assert only(LocalHost(str(tmp_path)), 7) == ProcessUsage("alice", 2.0, 2048 << 10, "0-3,8", 1700000123.45)


def test_a_tree_without_figures_still_names_the_user(tmp_path: Path) -> None:
    write(tmp_path, "/proc/7/status", "Name:\tpython3\nUid:\t1000\t1001\t1000\t1000\n")
    write(tmp_path, "/etc/passwd", "alice:x:1001:1001::/:\n")
    usage = only(LocalHost(str(tmp_path)), 7)
    assert usage.user == "alice"
    assert isinstance(usage.cpus, Unknown)
    assert isinstance(usage.cpu_seconds, Unknown)
    assert isinstance(usage.started_at, Unknown)


@pytest.mark.parametrize("stat", ["", "7 (x) S 1", "7 (x) S 1 7 7 0 -1 1 1 0 0 0 x y 0 0 20 0 64 0 z"])
def test_a_malformed_stat_is_not_a_figure(tmp_path: Path, stat: str) -> None:
    write(tmp_path, "/proc/7/status", STATUS)
    write(tmp_path, "/proc/7/stat", stat)
    usage = only(LocalHost(str(tmp_path)), 7)
    assert isinstance(usage.cpu_seconds, Unknown)
    assert usage.cpu_seconds.reason is Reason.MALFORMED


def test_interfaces_of_a_tree(tmp_path: Path) -> None:
    base = "/sys/class/net/ens1np0/statistics"
    write(tmp_path, f"{base}/tx_bytes", "1000\n")
    write(tmp_path, f"{base}/rx_bytes", "many\n")
    answers = LocalHost(str(tmp_path)).interface_counters(["ens1np0", "ens2np0"])
    counters = answers["ens1np0"]
    assert isinstance(counters, InterfaceCounters)
    assert counters.sent_bytes == 1000
    assert isinstance(counters.received_bytes, Unknown)
    assert isinstance(answers["ens2np0"], Unknown)


def test_a_cpu_list_is_as_the_kernel_prints_it() -> None:
    assert cpu_list([3, 0, 1, 2, 8]) == "0-3,8"
    assert cpu_list([]) == ""


# The names of threads


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
    monkeypatch.setattr(usage, "MAX_THREADS", 3)
    for thread in range(100, 110):
        write(tmp_path, f"/proc/70/task/{thread}/comm", f"worker {thread}\n")
    found = LocalHost(str(tmp_path)).thread_names([70])[70]
    assert found == ("worker 100", "worker 101", "worker 102")
