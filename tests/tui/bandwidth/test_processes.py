"""Tests print while they run, and ended they leave nothing: also where gdrtop was killed."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tui.bandwidth import keeper, processes
from tui.bandwidth.processes import Ended, LocalProcesses, Process

ROOT = Path(__file__).parents[3]
LONG = 120.0  # nothing here takes so long: what does has failed

FAMILY = """
import os, signal, sys, time
def deaf():
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
def group():
    os.setpgid(0, 0)
def child(*preparations):
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        for prepare in preparations:
            prepare()
        os.write(write, b"x")
        while True:
            time.sleep(60)
    os.read(read, 1)
    print("PID", pid, flush=True)
    return pid
def daemon():
    if os.fork() == 0:
        os.setsid()
        child(deaf)
        os._exit(0)
    os.wait()
print("PID", os.getpid(), flush=True)
"""
STAYS = "print('READY', flush=True)\nwhile True: time.sleep(60)"
FAMILIES = {
    "one that obeys": "",
    "one that ignores signals": "deaf()",
    "a child": "child()",
    "a child that ignores signals": "child(deaf)",
    "a child in a group of its own": "child(group)",
    "a deaf child in a group of its own": "child(group, deaf)",
    "a child in a session of its own": "child(os.setsid)",
    "a daemon that ignores signals": "daemon()",
    "a child that is stopped": "os.kill(child(group), signal.SIGSTOP)",
}
every_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)


def start(code: str, seconds: float = LONG) -> Process:
    """Python stands for a tool: it is on no trusted path in every place where these tests run."""
    return LocalProcesses(lambda _: sys.executable).start(["python", "-c", code], seconds)


def start_family(family: str) -> tuple[Process, list[int]]:
    process = start(f"{FAMILY}\n{family}\n{STAYS}")
    lines = until_line(process, "READY")
    return process, [int(line.split()[1]) for line in lines if line.startswith("PID ")]


def until_line(process: Process, wanted: str) -> list[str]:
    lines: list[str] = []
    until = time.monotonic() + LONG
    while wanted not in lines:
        assert time.monotonic() < until, lines
        assert process.ended is None, (lines, process.ended)
        lines += process.lines(1.0)
    return lines


def to_the_end(process: Process) -> tuple[list[str], Ended]:
    lines: list[str] = []
    until = time.monotonic() + LONG
    while (ended := process.ended) is None:
        assert time.monotonic() < until, lines
        lines += process.lines(1.0)
    return lines, ended


def gone(pid: int) -> bool:
    """Whether it has ended; where nobody takes an orphan's status, a zombie stays in the table."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def keepers_of(pid: int) -> list[int]:
    found = []
    for child in psutil.Process(pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):  # a zombie has no arguments either
            if keeper.__file__ in child.cmdline():
                found.append(child.pid)
    return found


def my_keeper() -> int:
    (pid,) = keepers_of(os.getpid())
    return pid


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def test_a_line_comes_while_the_program_runs(tmp_path: Path) -> None:
    go_on = tmp_path / "go-on"
    process = start(
        "import os, time\nprint('one')\n"
        f"while not os.path.exists({str(go_on)!r}): time.sleep(0.01)\n"
        "print('two')"
    )
    assert until_line(process, "one") == ["one"]
    assert process.ended is None
    go_on.touch()
    lines, ended = to_the_end(process)
    assert lines == ["two"]
    assert ended.exit_status == 0
    assert ended.why == ""


def test_waiting_for_a_line_ends_when_its_time_is_over() -> None:
    process, _ = start_family("")
    assert process.lines(0.05) == []
    assert process.lines(0.0) == []
    assert process.ended is None
    process.end()


def test_both_outputs_come_in_their_order() -> None:
    code = "import os\nos.write(1, b'out\\n')\nos.write(2, b'error\\n')\nos.write(1, b'no end of line')"
    assert to_the_end(start(code))[0] == ["out", "error", "no end of line"]


def test_what_it_prints_cannot_act_on_our_terminal() -> None:
    printed = b"\xff\x1b[31mred\x1b[2J\x1b]0;title\x07\x1b[0m \x08\r\n10 %\r20 %\n"
    assert to_the_end(start(f"import os\nos.write(1, {printed!r})"))[0] == ["�red �", "20 %"]


def test_a_long_line_is_cut_and_the_next_one_comes() -> None:
    lines, _ = to_the_end(start("print('x' * 10000)\nprint('next')"))
    assert [len(line) <= 4096 for line in lines] == [True, True]
    assert lines[-1] == "next"


def test_no_line_is_lost_at_the_end_of_a_program_that_prints_fast() -> None:
    lines, _ = to_the_end(start("for number in range(50_000): print(number)"))
    assert lines == [str(number) for number in range(50_000)]


def test_a_program_that_prints_without_end_fills_no_memory() -> None:
    process = start(
        "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: print('again')"
    )
    until_line(process, "again")
    process.end()
    lines, ended = to_the_end(process)
    assert len(lines) <= processes._LINES_WAITING + 1
    assert lines[-1].startswith("… and ")
    assert ended.exit_status == -signal.SIGKILL


@pytest.mark.parametrize(
    ("code", "status", "why"),
    [
        ("raise SystemExit(3)", 3, ""),
        ("import os\nos.kill(os.getpid(), 9)", -9, "ended by signal 9"),
        ("import os\nos.abort()", -signal.SIGABRT, f"ended by signal {int(signal.SIGABRT)}"),
    ],
)
def test_how_it_ended_is_told(code: str, status: int, why: str) -> None:
    _, ended = to_the_end(start(code))
    assert (ended.exit_status, ended.why) == (status, why)
    assert ended.seconds > 0


def test_programs_are_found_where_they_are_trusted_and_their_own_programs_too() -> None:
    lines, ended = to_the_end(LocalProcesses().start(["env", "NAME=value", "env"], LONG))
    assert ended == Ended(0, ended.seconds)
    assert "NAME=value" in lines


def test_a_program_that_is_not_installed_says_so() -> None:
    process = LocalProcesses().start(["no-such-program"], LONG)
    assert process.ended == Ended(None, 0.0, "no-such-program is not installed")
    assert process.lines(LONG) == []
    process.end()


@pytest.mark.parametrize(("mode", "told"), [(0o600, "Permission denied"), (0o700, "Exec format error")])
def test_a_file_that_is_no_program_says_so(tmp_path: Path, mode: int, told: str) -> None:
    path = tmp_path / "program"
    path.write_bytes(b"\x00\x01")
    path.chmod(mode)
    _, ended = to_the_end(LocalProcesses(lambda _: str(path)).start(["program"], LONG))
    assert ended.exit_status is None
    assert ended.why == f"{path}: {told}"


def test_an_argument_that_no_program_can_be_given_says_so() -> None:
    _, ended = to_the_end(start("zero\x00byte"))
    assert ended.exit_status is None
    assert "null byte" in ended.why


def test_where_no_other_terminal_is_to_be_had_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> tuple[int, int]:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pty.openpty", refuse)
    ended = start("").ended
    assert ended is not None
    assert ended.why.endswith("could not be begun: No space left on device")


def test_a_keeper_that_cannot_be_begun_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    before = descriptors()
    executable = sys.executable
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    ended = LocalProcesses(lambda _: executable).start(["python"], LONG).ended
    assert ended is not None
    assert "could not be begun: No such file" in ended.why
    assert descriptors() == before


def test_a_keeper_that_ends_before_it_begins_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    executable = sys.executable
    monkeypatch.setattr(sys, "executable", "/bin/false")
    _, ended = to_the_end(LocalProcesses(lambda _: executable).start(["python"], LONG))
    assert ended.exit_status is None
    assert ended.why == "not begun: its keeper ended with status 1"


def test_the_environment_is_clean_but_for_what_ssh_and_mpirun_need(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LD_PRELOAD", "NCCL_DEBUG", "PYTHONPATH", "BASH_ENV"):
        monkeypatch.setenv(name, "")
    for name in ("SSH_AUTH_SOCK", "HOME", "LD_LIBRARY_PATH"):
        monkeypatch.setenv(name, "/nowhere")
    lines, _ = to_the_end(LocalProcesses().start(["env"], LONG))
    told = dict(line.split("=", 1) for line in lines)
    assert {"SSH_AUTH_SOCK", "HOME", "LD_LIBRARY_PATH"} <= {name for name in told if told[name] == "/nowhere"}
    assert set(told) <= {"PATH", "LC_ALL", "TERM", *processes._PASSED_ON}


def test_a_program_that_asks_something_is_not_waited_for() -> None:
    code = """
import os, sys
print(repr(sys.stdin.read()))
with open("/dev/tty") as terminal:
    print(repr(terminal.read()))
import getpass
try:
    getpass.getpass("Password: ")
except EOFError:
    print("nobody answers")
"""
    lines, ended = to_the_end(start(code))
    assert lines[:2] == ["''", "''"]
    assert lines[-1].endswith("nobody answers")
    assert ended.exit_status == 0


def test_it_is_at_the_root_in_a_session_of_its_own_and_hears_every_signal() -> None:
    ignored = (signal.SIGHUP, signal.SIGQUIT)  # as by nohup, or by a shell for what it starts behind itself
    before = [signal.signal(number, signal.SIG_IGN) for number in ignored]
    try:
        code = (
            "import os, signal\nprint(os.getcwd(), os.getsid(0) == os.getpid())\n"
            "print(signal.getsignal(signal.SIGHUP) == signal.getsignal(signal.SIGQUIT) == signal.SIG_DFL)\n"
            "print(os.listdir('/proc/self/fd'))"
        )
        lines, _ = to_the_end(start(code))
    finally:
        for number, handler in zip(ignored, before, strict=True):
            signal.signal(number, handler)
    # 3 is the one by which it reads that list.
    assert lines == ["/ True", "True", "['0', '1', '2', '3']"]


def test_its_time_is_limited() -> None:
    process = start(f"import time\nprint('begun')\n{STAYS}", 0.5)
    _, ended = to_the_end(process)
    assert ended.exit_status == -signal.SIGTERM
    assert ended.why == "ended after 0.5 s, its limit of time"


def test_its_time_is_limited_though_nobody_reads_what_it_prints() -> None:
    process = start(f"{FAMILY}\nchild(group)\n{STAYS}", 1.0)
    kept = my_keeper()
    wait_for(lambda: gone(kept))
    lines, ended = to_the_end(process)
    assert [line for line in lines if line.startswith("PID ") and not gone(int(line.split()[1]))] == []
    assert "limit of time" in ended.why


@every_family
def test_when_the_end_returns_nothing_is_left(family: str) -> None:
    process, pids = start_family(family)
    process.end()
    assert [pid for pid in pids if not gone(pid)] == []
    assert keepers_of(os.getpid()) == []
    _, ended = to_the_end(process)
    assert ended.exit_status in (-signal.SIGTERM, -signal.SIGKILL)
    assert ended.why == "cancelled"


@every_family
def test_what_a_program_leaves_behind_at_its_end_is_ended(family: str) -> None:
    process = start(f"{FAMILY}\n{family}\nos._exit(5)")
    lines, ended = to_the_end(process)
    assert [line for line in lines if not gone(int(line.split()[1]))] == []
    assert (ended.exit_status, ended.why) == (5, "")


def test_an_end_at_any_moment_of_the_start_leaves_nothing() -> None:
    for moment in range(25):
        process = start(f"{FAMILY}\nchild(group)\n{STAYS}")
        lines = process.lines(moment * 0.004)
        process.end()
        more, ended = to_the_end(process)
        pids = [int(line.split()[1]) for line in lines + more if line.startswith("PID ")]
        assert [pid for pid in pids if not gone(pid)] == []
        assert keepers_of(os.getpid()) == []
        assert ended.why.startswith("cancelled")
        assert (ended.exit_status is None) == (ended.why == "cancelled before it began")


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
    assert done.ended == ended == Ended(7, ended.seconds)


def test_several_threads_may_end_it_while_another_waits_for_its_lines() -> None:
    process, pids = start_family("child(group)")
    found: list[tuple[list[str], Ended]] = []
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
    assert [ended.why for _, ended in found] == ["cancelled"]


def test_it_outlives_the_thread_that_started_it() -> None:
    found: list[tuple[Process, list[int]]] = []
    thread = threading.Thread(target=lambda: found.append(start_family("child(group)")))
    thread.start()
    thread.join(LONG)
    ((process, pids),) = found
    assert process.lines(0.2) == []
    assert not any(map(gone, pids))
    process.end()
    assert all(map(gone, pids))


def test_nothing_is_left_of_a_test_that_was_forgotten() -> None:
    process, pids = start_family("child(group)")
    kept = my_keeper()
    del process
    gc.collect()
    wait_for(lambda: all(map(gone, [*pids, kept])))


def test_no_descriptor_is_left_open() -> None:
    to_the_end(start(""))  # what Python opens for good at the first time
    before = descriptors()
    to_the_end(start("print('one')"))
    start_family("child(group)")[0].end()
    start("").end()
    LocalProcesses().start(["no-such-program"], LONG).end()
    assert descriptors() == before


def test_many_quick_ones_one_after_another() -> None:
    before = descriptors()
    for _ in range(200):
        lines, ended = to_the_end(LocalProcesses().start(["echo", "done"], LONG))
        assert (lines, ended.exit_status) == (["done"], 0)
    assert descriptors() == before
    assert keepers_of(os.getpid()) == []


GDRTOP = """
import sys
sys.path.insert(0, {root!r})
from tui.bandwidth.processes import LocalProcesses
process = LocalProcesses(lambda _: sys.executable).start(["python", "-c", {code!r}], {LONG})
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
        (self.keeper,) = keepers_of(self.process.pid)

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
    for one in begun:
        one.kill()
        assert one.process.stdout is not None
        one.process.stdout.close()
        for pid in [*one.pids, one.keeper]:
            if not gone(pid):
                os.kill(pid, signal.SIGKILL)


@every_family
def test_nothing_is_left_where_gdrtop_was_killed(gdrtop: Callable[[str], Gdrtop], family: str) -> None:
    killed = gdrtop(family)
    assert not any(map(gone, killed.pids))
    killed.kill()
    wait_for(lambda: all(map(gone, [*killed.pids, killed.keeper])))


def test_time_is_limited_where_gdrtop_hangs() -> None:
    code = (
        f"import os, signal, sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        "from tui.bandwidth.processes import LocalProcesses\n"
        f"process = LocalProcesses().start(['sleep', '{LONG}'], 1.0)\n"
        "os.kill(os.getpid(), signal.SIGSTOP)"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as hangs:
        try:
            wait_for(lambda: psutil.Process(hangs.pid).status() == psutil.STATUS_STOPPED)
            wait_for(lambda: keepers_of(hangs.pid) == [])
        finally:
            hangs.kill()


@pytest.mark.parametrize("family", ["", "deaf()", "child()"])
def test_a_test_dies_where_gdrtop_and_its_keeper_were_killed(
    gdrtop: Callable[[str], Gdrtop], family: str
) -> None:
    killed = gdrtop(family)
    killed.process.send_signal(signal.SIGSTOP)  # so that it cannot clean up after its keeper
    os.kill(killed.keeper, signal.SIGKILL)
    killed.kill()
    wait_for(lambda: all(map(gone, killed.pids)))


@pytest.mark.parametrize("family", ["deaf()", "child(deaf)", "child(group, deaf)"])
def test_gdrtop_ends_what_a_killed_keeper_leaves(family: str) -> None:
    process, pids = start_family(family)
    os.kill(my_keeper(), signal.SIGKILL)
    _, ended = to_the_end(process)
    assert all(map(gone, pids))
    assert ended.exit_status is None
    assert ended.why == "its keeper was ended from outside (status -9), and it with it"


def test_a_keeper_that_is_asked_to_end_ends_its_test() -> None:
    process, pids = start_family("child(group)")
    os.kill(my_keeper(), signal.SIGTERM)
    _, ended = to_the_end(process)
    assert all(map(gone, pids))
    assert ended.why == "its keeper was asked to end"


def test_a_keeper_that_hangs_does_not_hang_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_OVERDUE_SECONDS", 0.2)
    process, pids = start_family("child(group)")
    os.kill(my_keeper(), signal.SIGSTOP)
    process.end()
    assert all(map(gone, pids))
    assert to_the_end(process)[1].why == "its keeper did not answer and was killed"


def test_what_cannot_be_ended_is_named() -> None:
    stuck = keeper.Entry(4711, "ib_write_bw", "D", 1, 4711)
    deaf = keeper.Entry(4712, "other", "S", 1, 4711)
    assert keeper.told_of([stuck, deaf]) == (
        "still there after SIGKILL: process 4711 (ib_write_bw) in uninterruptible sleep, process 4712 (other)"
    )
    assert "may not see" in keeper.told_of([])


def test_the_keeper_needs_nothing_of_gdrtop() -> None:
    code = f"import runpy, sys\nrunpy.run_path({keeper.__file__!r})\nprint(sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
    )
    assert "tui" not in done.stdout
    assert "probes" not in done.stdout
