"""Hundreds of samples while modules come and go: nothing grows."""

import re
import time
from dataclasses import dataclass
from itertools import count

from tests.node_vm.dashboard import Dashboard
from tests.node_vm.guest import Guest
from tests.node_vm.machine import Machine

# Of the dashboard and of `gdrtop live` together: two windows under emulation. More windows find no smaller
# leak, since each is compared with the one before; `make bench` has the long run.
SAMPLES = 400
WINDOW = 3  # cycles of unloading and loading a module; the node is probed twice in each
# Imports, caches, histories, the allocator's pools and the list of open counters fill in the first windows,
# later on a busy machine. A leak goes on in all of them.
MOST_WINDOWS = 6
LONGEST_SECONDS = 1500.0  # the interval stretches under emulation
# Finds leaks of 10 kB a sample. The timeline grows by 1.5 kB a second until it holds an hour.
GROWTH_KB = 2500
EVERY_READING = "/sys/module/nvidia/refcnt"  # is opened once


@dataclass(frozen=True)
class Usage:
    """What a process holds."""

    memory_kb: int
    files: int
    threads: int
    children: int


def usage(guest: Guest, pid: int) -> Usage:
    script = f"""
        grep Anonymous /proc/{pid}/smaps_rollup
        grep Threads /proc/{pid}/status
        ls /proc/{pid}/fd | wc -l
        pgrep -c -P {pid} || true
    """
    memory, threads, files, children = map(int, re.findall(r"\d+", guest.shell(script)))
    return Usage(memory, files, threads, children)


def handles(usage: Usage) -> tuple[int, ...]:
    """Files, threads and children."""
    return usage.files, usage.threads, usage.children


def is_at_most(now: tuple[int, ...], then: tuple[int, ...]) -> bool:
    """Whether no number is higher than before."""
    return all(new <= old for new, old in zip(now, then, strict=True))


def at_rest(guest: Guest, pid: int) -> Usage:
    """Usage between two probes: a DMA-BUF probe has a process, and threads, for a moment."""
    least = usage(guest, pid)
    for _ in range(5):
        now = usage(guest, pid)
        least = Usage(*map(min, zip(vars(least).values(), vars(now).values(), strict=True)))
    return least


def run_window(guest: Guest, pids: tuple[int, ...]) -> list[Usage]:
    """Let modules come and go, and return what each process holds afterwards."""
    for _ in range(WINDOW):
        # Not oftener: each change has the whole node probed anew, which takes emulation seconds.
        guest.shell(
            "rmmod nvidia_peermem; sleep 1; modprobe nvidia_peermem; "
            "echo 5 > /sys/module/nvidia_peermem/parameters/hold; sleep 25; "
            "echo 0 > /sys/module/nvidia_peermem/parameters/hold"
        )
    return [at_rest(guest, pid) for pid in pids]


def test_nothing_grows(rebooting: Machine) -> None:
    node = rebooting.guest
    node.run("reset-node")
    # With huge pages memory comes in steps of 2 MB.
    node.shell("echo never > /sys/kernel/mm/transparent_hugepage/enabled")
    node.shell("modprobe mlx5_ib; modprobe nvidia_uvm; modprobe nvidia_peermem")
    node.shell(f"count-opens {EVERY_READING} >/tmp/opens 2>&1 </dev/null & sleep 2")
    with (
        Dashboard(node, "--interval", "0.1", session="test-large") as large,
        Dashboard(node, "live", session="test-live") as live,
    ):
        large.until_shown("via peermem · ")
        live.until_shown("no job uses RDMA")
        pids = large.pid(), live.pid()
        deadline = time.monotonic() + LONGEST_SECONDS
        before = run_window(node, pids)
        most = list(map(handles, before))
        for window in count(2):
            after = run_window(node, pids)
            opens = int(node.run("tail", "-n", "1", "/tmp/opens") or 0)
            grown = [now.memory_kb - then.memory_kb for then, now in zip(before, after, strict=True)]
            print(f"{opens} readings, {grown} kB, {after}")
            # Fewer is no leak: a reading that takes long closes the files that are read again and again.
            has_no_more = all(is_at_most(handles(now), then) for now, then in zip(after, most, strict=True))
            is_flat = max(grown) < GROWTH_KB and has_no_more
            if opens >= SAMPLES and (is_flat or window >= MOST_WINDOWS):
                break
            assert time.monotonic() < deadline, f"only {opens} readings"
            before = after
            most = [
                tuple(map(max, zip(handles(now), then, strict=True)))
                for now, then in zip(after, most, strict=True)
            ]
        assert max(grown) < GROWTH_KB
        assert has_no_more, (most, after)
        large.until_shown("via peermem · ")
        defunct = [
            line for line in node.run("ps", "-e", "-o", "stat=,args=").splitlines() if line.startswith("Z")
        ]
        assert defunct == []
    node.run("pkill", "count-opens")
