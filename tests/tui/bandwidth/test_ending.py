"""ProcessExit, a test leaves nothing: no process, no descriptor."""

import gc
import os
import signal
import threading

import pytest

from tests.support.process_families import (
    FAMILY,
    LONG,
    STAYS,
    descriptors,
    every_family,
    gone,
    my_supervisor,
    start,
    start_family,
    supervisors_of,
    to_the_end,
    wait_for,
)
from tui.bandwidth.processes import LocalProcessStarter, ProcessExit, ToolProcess


@pytest.mark.slow
@every_family
def test_when_the_end_returns_nothing_is_left(family: str) -> None:
    process, pids = start_family(family)
    process.end()
    assert [pid for pid in pids if not gone(pid)] == []
    assert supervisors_of(os.getpid()) == []
    _, ended = to_the_end(process)
    assert ended.exit_status in (-signal.SIGTERM, -signal.SIGKILL)
    assert ended.why == "canceled"


@pytest.mark.slow
@every_family
def test_what_a_program_leaves_behind_at_its_end_is_ended(family: str) -> None:
    process = start(f"{FAMILY}\n{family}\nos._exit(5)")
    lines, ended = to_the_end(process)
    assert [line for line in lines if not gone(int(line.split()[1]))] == []
    assert (ended.exit_status, ended.why) == (5, "")


@pytest.mark.slow
def test_an_end_at_any_moment_of_the_start_leaves_nothing() -> None:
    for moment in range(25):
        process = start(f"{FAMILY}\nchild(group)\n{STAYS}")
        lines = process.lines(moment * 0.004)
        process.end()
        more, ended = to_the_end(process)
        pids = [int(line.split()[1]) for line in lines + more if line.startswith("PID ")]
        assert [pid for pid in pids if not gone(pid)] == []
        assert supervisors_of(os.getpid()) == []
        assert ended.why.startswith("canceled")
        assert (ended.exit_status is None) == (ended.why == "canceled before it started")


def test_ending_twice_and_after_the_end_changes_nothing() -> None:
    process, _ = start_family("")
    process.end()
    process.end()
    ended = to_the_end(process)[1]
    process.end()
    assert process.ended == ended
    done = start("raise SystemExit(7)")
    ended = to_the_end(done)[1]
    done.end()
    assert done.ended == ended == ProcessExit(7, ended.seconds, cpu_seconds=ended.cpu_seconds)


def test_several_threads_may_end_it_while_another_waits_for_its_lines() -> None:
    process, pids = start_family("child(group)")
    found: list[tuple[list[str], ProcessExit]] = []
    left: list[int] = []

    def end() -> None:
        process.end()
        left.extend(pid for pid in pids if not gone(pid))

    threads = [threading.Thread(target=lambda: found.append(to_the_end(process)))]
    threads += [threading.Thread(target=end) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert left == []
    assert [ended.why for _, ended in found] == ["canceled"]


def test_it_outlives_the_thread_that_started_it() -> None:
    found: list[tuple[ToolProcess, list[int]]] = []
    thread = threading.Thread(target=lambda: found.append(start_family("child(group)")))
    thread.start()
    thread.join(LONG)
    ((process, pids),) = found
    assert process.lines(0.2) == []
    assert not any(map(gone, pids))
    process.end()
    assert all(map(gone, pids))


@pytest.mark.slow
def test_nothing_is_left_of_a_test_that_was_forgotten() -> None:
    process, pids = start_family("child(group)")
    kept = my_supervisor()
    del process
    gc.collect()
    wait_for(lambda: all(map(gone, [*pids, kept])))


def test_no_descriptor_is_left_open() -> None:
    to_the_end(start(""))  # what Python opens for good at the first time
    before = descriptors()
    to_the_end(start("print('one')"))
    start_family("child(group)")[0].end()
    start("").end()
    LocalProcessStarter().start(["no-such-program"], LONG).end()
    assert descriptors() == before


@pytest.mark.slow
def test_many_quick_ones_one_after_another() -> None:
    before = descriptors()
    for _ in range(40):
        lines, ended = to_the_end(LocalProcessStarter().start(["echo", "done"], LONG))
        assert (lines, ended.exit_status) == (["done"], 0)
    assert descriptors() == before
    assert supervisors_of(os.getpid()) == []
