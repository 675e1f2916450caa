"""Nothing is left of a test where gdrtop or its supervisor was killed, or hangs."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import psutil
import pytest

from tests.support.process_families import (
    FAMILY,
    LONG,
    ROOT,
    STAYS,
    every_family,
    gone,
    my_supervisor,
    start_family,
    supervisors_of,
    to_the_end,
    wait_for,
)
from tui.bandwidth import processes, supervisor

GDRTOP = """
import sys
sys.path.insert(0, {root!r})
from tui.bandwidth.processes import LocalProcessStarter
starter = LocalProcessStarter(lambda _: sys.executable, grace_seconds=0.3)
process = starter.start(["python", "-c", {code!r}], {LONG})
while process.ended is None:
    for line in process.lines(1.0):
        print(line, flush=True)
"""


class Gdrtop:
    """A gdrtop that has one test running; `pids` are the test's processes."""

    def __init__(self, family: str) -> None:
        code = GDRTOP.format(root=str(ROOT), code=f"{FAMILY}\n{family}\n{STAYS}", LONG=LONG)
        self.process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.pids: list[int] = []
        for line in self.process.stdout:
            if line == "READY\n":
                break
            self.pids.append(int(line.split()[1]))
        (self.supervisor,) = supervisors_of(self.process.pid)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def gdrtop() -> Iterator[Callable[[str], Gdrtop]]:
    begun: list[Gdrtop] = []

    def begin(family: str) -> Gdrtop:
        begun.append(Gdrtop(family))
        return begun[-1]

    yield begin
    for rank in begun:
        rank.kill()
        assert rank.process.stdout is not None
        rank.process.stdout.close()
        for pid in [*rank.pids, rank.supervisor]:
            if not gone(pid):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
@every_family
def test_nothing_is_left_where_gdrtop_was_killed(gdrtop: Callable[[str], Gdrtop], family: str) -> None:
    killed = gdrtop(family)
    assert not any(map(gone, killed.pids))
    killed.kill()
    wait_for(lambda: all(map(gone, [*killed.pids, killed.supervisor])))


@pytest.mark.slow
def test_time_is_limited_where_gdrtop_hangs() -> None:
    code = (
        f"import os, signal, sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        "from tui.bandwidth.processes import LocalProcessStarter\n"
        f"process = LocalProcessStarter().start(['sleep', '{LONG}'], 1.0)\n"
        "os.kill(os.getpid(), signal.SIGSTOP)"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as hangs:
        try:
            wait_for(lambda: psutil.Process(hangs.pid).status() == psutil.STATUS_STOPPED)
            wait_for(lambda: supervisors_of(hangs.pid) == [])
        finally:
            hangs.kill()


@pytest.mark.parametrize("family", ["", "deaf()", "child()"])
def test_a_test_dies_where_gdrtop_and_its_supervisor_were_killed(
    gdrtop: Callable[[str], Gdrtop], family: str
) -> None:
    killed = gdrtop(family)
    killed.process.send_signal(signal.SIGSTOP)  # so that it cannot clean up after its supervisor
    os.kill(killed.supervisor, signal.SIGKILL)
    killed.kill()
    wait_for(lambda: all(map(gone, killed.pids)))


@pytest.mark.parametrize("family", ["deaf()", "child(deaf)", "child(group, deaf)"])
def test_gdrtop_ends_what_a_killed_supervisor_leaves(family: str) -> None:
    process, pids = start_family(family)
    os.kill(my_supervisor(), signal.SIGKILL)
    _, ended = to_the_end(process)
    assert all(map(gone, pids))
    assert ended.exit_status is None
    assert ended.why == "killed with its supervisor (status -9)"


def test_a_supervisor_that_is_asked_to_end_ends_its_test() -> None:
    process, pids = start_family("child(group)")
    os.kill(my_supervisor(), signal.SIGTERM)
    _, ended = to_the_end(process)
    assert all(map(gone, pids))
    assert ended.why == "its supervisor was terminated"


def test_a_supervisor_that_hangs_does_not_hang_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "OVERDUE_SECONDS", 0.2)
    process, pids = start_family("child(group)")
    os.kill(my_supervisor(), signal.SIGSTOP)
    process.end()
    assert all(map(gone, pids))
    assert to_the_end(process)[1].why == "its supervisor did not respond and was killed"


def test_what_cannot_be_ended_is_named() -> None:
    stuck = supervisor.Entry(4711, "ib_write_bw", "D", 1, 4711)
    deaf = supervisor.Entry(4712, "other", "S", 1, 4711)
    assert supervisor.describe([stuck, deaf]) == (
        "still exists after SIGKILL: process 4711 (ib_write_bw) in uninterruptible sleep,"
        " process 4712 (other)"
    )
    assert "hidden from this user" in supervisor.describe([])


def test_the_supervisor_needs_nothing_of_gdrtop() -> None:
    code = f"import runpy, sys\nrunpy.run_path({supervisor.__file__!r})\nprint(sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
    )
    assert "tui" not in done.stdout
    assert "probes" not in done.stdout
