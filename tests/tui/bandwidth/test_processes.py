"""Tests print while they run, and how they ended is told."""

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.support.process_families import (
    FAMILY,
    LONG,
    STAYS,
    descriptors,
    gone,
    start,
    start_family,
    supervisors_of,
    to_the_end,
    until_line,
    wait_for,
)
from tui.bandwidth import processes, supervisor
from tui.bandwidth.processes import LocalProcessStarter, ProcessExit


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


@pytest.mark.slow
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
    assert len(lines) <= processes.LINES_WAITING + 1
    assert lines[-1].startswith("… and ")
    assert ended.exit_status == -signal.SIGKILL


@pytest.mark.parametrize(
    ("code", "status", "why"),
    [
        ("raise SystemExit(3)", 3, ""),
        ("import os\nos.kill(os.getpid(), 9)", -9, "killed by signal 9"),
        ("import os\nos.abort()", -signal.SIGABRT, f"killed by signal {int(signal.SIGABRT)}"),
    ],
)
def test_how_it_ended_is_told(code: str, status: int, why: str) -> None:
    _, ended = to_the_end(start(code))
    assert (ended.exit_status, ended.why) == (status, why)
    assert ended.seconds > 0


def test_programs_are_found_where_they_are_trusted_and_their_own_programs_too() -> None:
    lines, ended = to_the_end(LocalProcessStarter().start(["env", "NAME=value", "env"], LONG))
    assert ended == ProcessExit(0, ended.seconds, cpu_seconds=ended.cpu_seconds)
    assert "NAME=value" in lines


def test_the_cpu_time_of_a_program_and_of_what_it_starts_is_counted() -> None:
    burn = "import time\nwhile time.process_time() < 0.15: pass\n"
    child = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {burn!r}])"
    _, ended = to_the_end(start(burn + child))
    assert ended.cpu_seconds is not None
    assert ended.cpu_seconds >= 0.3


def test_a_program_that_is_not_installed_says_so() -> None:
    process = LocalProcessStarter().start(["no-such-program"], LONG)
    assert process.ended == ProcessExit(None, 0.0, "no-such-program is not installed")
    assert process.lines(LONG) == []
    process.end()


@pytest.mark.parametrize(("mode", "told"), [(0o600, "Permission denied"), (0o700, "Exec format error")])
def test_a_file_that_is_no_program_says_so(tmp_path: Path, mode: int, told: str) -> None:
    path = tmp_path / "program"
    path.write_bytes(b"\x00\x01")
    path.chmod(mode)
    _, ended = to_the_end(LocalProcessStarter(lambda _: str(path)).start(["program"], LONG))
    assert ended.exit_status is None
    assert ended.why == f"{path}: {told}"


def test_an_argument_that_no_program_can_be_given_says_so() -> None:
    _, ended = to_the_end(start("zero\x00byte"))
    assert ended.exit_status is None
    assert "null byte" in ended.why


def test_where_no_other_terminal_is_to_be_had_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> tuple[int, int]:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "openpty", refuse)
    ended = start("").ended
    assert ended is not None
    assert ended.why.endswith("could not be started: no pseudo-terminal (No space left on device)")


def test_a_supervisor_that_cannot_be_begun_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    before = descriptors()
    executable = sys.executable
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    ended = LocalProcessStarter(lambda _: executable).start(["python"], LONG).ended
    assert ended is not None
    assert "could not be started: No such file" in ended.why
    assert descriptors() == before


def test_a_supervisor_that_ends_before_it_begins_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    executable = sys.executable
    monkeypatch.setattr(sys, "executable", "/bin/false")
    _, ended = to_the_end(LocalProcessStarter(lambda _: executable).start(["python"], LONG))
    assert ended.exit_status is None
    assert ended.why == "not started: its supervisor exited with status 1"


def test_the_environment_is_clean_but_for_what_ssh_and_mpirun_need(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LD_PRELOAD", "NCCL_DEBUG", "PYTHONPATH", "BASH_ENV"):
        monkeypatch.setenv(name, "")
    kept = {"SSH_AUTH_SOCK": "/nowhere", "HOME": "/", "LD_LIBRARY_PATH": "/nowhere"}  # root's alone: "/"
    for name, value in kept.items():
        monkeypatch.setenv(name, value)
    lines, _ = to_the_end(LocalProcessStarter().start(["env"], LONG))
    told = dict(line.split("=", 1) for line in lines)
    assert kept.items() <= told.items()
    assert set(told) <= {"PATH", "LC_ALL", "TERM", *supervisor.PASSED_ON}


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
    assert ended.why == "stopped after its time limit of 0.5 s"


@pytest.mark.slow
def test_its_time_is_limited_though_nobody_reads_what_it_prints() -> None:
    process = start(f"{FAMILY}\nchild(group)\n{STAYS}", 1.0)
    wait_for(lambda: not supervisors_of(os.getpid()))
    lines, ended = to_the_end(process)
    assert [line for line in lines if line.startswith("PID ") and not gone(int(line.split()[1]))] == []
    assert "time limit" in ended.why
