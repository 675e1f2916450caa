"""Steps run in order, stop at the first that fails, and what happens is told and logged."""

import contextlib
import errno
import fcntl
import os
import pwd
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from probes.base.plan import FileChange, Plan, Step, instruction
from probes.host.machine.local import LocalHost
from probes.simulation.host import SimulatedHost
from tui.actions.audit_log import Actor, Audit, AuditError, MemoryLog, past_runs
from tui.actions.events import Printed, RunEnded, RunEvent, RunOutcome, StepBegan, StepEnded
from tui.actions.local_commands import CommandResult, LocalCommands
from tui.actions.runner import Runner
from tui.runtime.lock import ActionLock, LockTaken

HERE = Actor("h100-07", "boot-1", "root", 4242)


class Told:
    """Everything a run has said."""

    def __init__(self) -> None:
        self.events: list[RunEvent] = []
        self.log = MemoryLog()

    def run(
        self, commands: object, *steps: Step, get_password: Callable[[], bool] = lambda: False
    ) -> RunEnded:
        runner = Runner(
            LocalHost(),
            commands,  # type: ignore[arg-type]
            Audit(self.log, HERE),
            self.events.append,
            get_password,
        )
        return runner.run("test", Plan("Test", steps))

    @property
    def printed(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, Printed)]

    @property
    def begun(self) -> list[int]:
        return [event.number for event in self.events if isinstance(event, StepBegan)]


def command(*argv: str) -> Step:
    """A step that this machine may run: it needs no root and changes nothing."""
    return Step("tries the runner", argv, needs_root=False)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    # What is by hand is another test's: here the harmless programs of this machine are run.
    programs = {"printf", "false", "sleep", "env", "true", "seq", "sh", "setpci"}
    monkeypatch.setattr("tui.actions.manual_steps._PROGRAMS", programs)
    return Told()


def test_steps_run_in_order_and_pass_on_their_lines(told: Told) -> None:
    ended = told.run(LocalCommands(), command("printf", "one\\ntwo\\n"), command("printf", "\\033[31mthree"))
    assert ended.outcome is RunOutcome.DONE
    assert told.printed == ["one", "two", "\x1b[31mthree"]
    assert [event.exit_status for event in told.events if isinstance(event, StepEnded)] == [0, 0]


def test_nothing_runs_after_a_failed_step(told: Told) -> None:
    ended = told.run(LocalCommands(), command("true"), command("false"), command("printf", "never"))
    assert ended.outcome is RunOutcome.FAILED
    assert "step 2" in ended.why
    assert told.printed == []
    assert [step.argv[0] for step in ended.left] == ["printf"]
    (run,) = past_runs(told.log.lines())
    assert [step.outcome for step in run.steps] == [RunOutcome.DONE, RunOutcome.FAILED]


def test_nothing_runs_after_a_manual_step(told: Told) -> None:
    ended = told.run(LocalCommands(), command("true"), instruction("think"), command("printf", "never"))
    assert ended.outcome is RunOutcome.LEFT
    assert [step.why for step in ended.left] == ["think", "tries the runner"]
    assert told.begun == [1]


def test_an_unlisted_program_is_never_run(told: Told) -> None:
    ended = told.run(LocalCommands(), command("rm", "/nothing/is/here"))
    assert ended.outcome is RunOutcome.REFUSED
    assert told.begun == []


def test_the_environment_is_clean(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD", "/tmp/evil.so")
    monkeypatch.setenv("MODPROBE_OPTIONS", "--force")
    told.run(LocalCommands(), command("env"))
    names = {line.partition("=")[0] for line in told.printed}
    assert names <= {"PATH", "LC_ALL", "TERM", "PWD", "SHLVL", "_"}
    assert "/usr/sbin" in next(line for line in told.printed if line.startswith("PATH="))


def test_a_program_that_is_not_installed_says_so(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tui.actions.manual_steps._PROGRAMS", {"no-such-program"})
    ended = told.run(LocalCommands(), command("no-such-program"))
    assert ended.outcome is RunOutcome.FAILED
    assert "not installed" in ended.why


def test_a_step_without_a_free_terminal_says_so_and_the_log_has_its_end(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "openpty", no_terminal)
    ended = told.run(LocalCommands(), command("true"), command("true"))
    assert ended.outcome is RunOutcome.FAILED
    assert ended.why == "step 1: no pseudo-terminal for true: No space left on device"
    (run,) = past_runs(told.log.lines())
    assert run.outcome is RunOutcome.FAILED


def no_terminal() -> tuple[int, int]:
    """What openpty(3) does when /proc/sys/kernel/pty/max is reached."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_an_endless_step_is_reported_and_not_killed(told: Told) -> None:
    ended = told.run(LocalCommands(seconds=0.2), command("sleep", "2"), command("true"))
    assert ended.outcome is RunOutcome.STILL_RUNNING
    pid = int(ended.why.split("process ")[1])
    os.kill(pid, 0)  # it was not killed
    assert told.begun == [1]
    (run,) = past_runs(told.log.lines())
    assert run.steps[0].outcome is RunOutcome.STILL_RUNNING
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_a_stop_lets_the_running_step_end_and_starts_no_other(told: Told) -> None:
    runner: list[Runner] = []

    def stop_at_first_line(event: RunEvent) -> None:
        told.events.append(event)
        if isinstance(event, Printed):
            runner[0].stop("interrupted")

    runner.append(Runner(LocalHost(), LocalCommands(), Audit(told.log, HERE), stop_at_first_line))
    steps = (command("seq", "1", "3"), command("printf", "never"))
    ended = runner[0].run("test", Plan("Test", steps))
    assert ended.outcome is RunOutcome.STOPPED
    assert "interrupted" in ended.why
    assert told.printed == ["1", "2", "3"]
    (run,) = past_runs(told.log.lines())
    assert run.outcome is RunOutcome.STOPPED
    assert len(run.steps) == 1


def test_an_abandoned_step_is_reported_as_still_running(told: Told) -> None:
    commands = LocalCommands()
    threading.Timer(0.2, commands.abandoned.set).start()
    ended = told.run(commands, command("sleep", "2"))
    assert ended.outcome is RunOutcome.STILL_RUNNING


def test_nothing_runs_that_cannot_be_logged(told: Told) -> None:
    class Full(MemoryLog):
        def append(self, line: str) -> None:
            raise AuditError(
                "the log /var/log/gdrtop/actions.jsonl cannot be written: No space left on device"
            )

    told.log = Full()
    ended = told.run(LocalCommands(), command("printf", "never"))
    assert ended.outcome is RunOutcome.REFUSED
    assert "No space left on device" in ended.why
    assert told.begun == []


def test_a_flood_of_lines_is_cut_and_counted(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tui.actions.local_commands._LINES_LIMIT", 100)
    told.run(LocalCommands(), command("seq", "1", "1000"))
    assert len(told.printed) == 101
    assert told.printed[-1] == "… and 900 more lines"


@pytest.mark.slow
def test_a_step_of_a_killed_gdrtop_goes_on_and_keeps_the_lock(tmp_path: Path) -> None:
    """A gdrtop killed in the middle: its step ends by itself, and no other acts meanwhile."""
    name = str(tmp_path / "lock")
    done = tmp_path / "done"
    code = f"""
import sys
from tui.runtime.lock import ActionLock
from tui.actions.local_commands import LocalCommands
with ActionLock({name!r}) as lock:
    argv = ("sh", "-c", "echo begun; sleep 1; echo to nobody; touch {done}")
    LocalCommands(keep=(lock.descriptor,)).run(argv, False, "", lambda line: print(line, flush=True))
"""
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"begun\n"
    child.kill()
    child.communicate()
    with pytest.raises(LockTaken, match="another gdrtop is running"), ActionLock(name):
        pass
    until(done.exists)
    until(lambda: free(name))


def free(name: str) -> bool:
    try:
        with ActionLock(name):
            return True
    except LockTaken:
        return False


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_second_gdrtop_is_refused_and_told_who_has_the_lock(tmp_path: Path) -> None:
    name = str(tmp_path / "lock")
    with (
        ActionLock(name),
        pytest.raises(LockTaken, match=f"pid {os.getpid()}, user {pwd.getpwuid(os.getuid()).pw_name}"),
        ActionLock(name),
    ):
        pass
    assert free(name)


def test_the_lock_is_private_and_follows_no_symlink(tmp_path: Path) -> None:
    """Whoever can open the file can lock it, and keep its owner out."""
    directory = tmp_path / "lock"
    with ActionLock(str(directory)):
        (file,) = directory.iterdir()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    linked = tmp_path / "linked"
    linked.symlink_to(elsewhere)
    file.unlink()
    file.symlink_to(tmp_path / "target")
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    for path in (linked, directory, open_to_all):
        with pytest.raises(LockTaken, match="cannot acquire the lock"), ActionLock(str(path)):
            pass
    assert not (tmp_path / "target").exists()
    assert not list(elsewhere.iterdir())


def test_a_user_respects_roots_lock_and_root_no_users_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tui.runtime.lock.ROOTS_DIRECTORY", str(tmp_path / "roots"))
    with ActionLock(str(tmp_path / "roots")):
        monkeypatch.setattr("tui.runtime.lock.is_root", lambda: False)
        with pytest.raises(LockTaken, match="user root"), ActionLock(str(tmp_path / "users")):
            pass
        monkeypatch.setattr("tui.runtime.lock.is_root", lambda: True)
    with ActionLock(str(tmp_path / "users")), ActionLock(str(tmp_path / "roots")):
        pass


def test_roots_lock_is_found_among_many_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel hands out /proc/locks a page at a time: about 70 of them."""
    monkeypatch.setattr("tui.runtime.lock.ROOTS_DIRECTORY", str(tmp_path / "roots"))
    with contextlib.ExitStack() as stack:

        def lock_others() -> None:
            for _ in range(200):
                fcntl.flock(stack.enter_context(tempfile.TemporaryFile(dir=tmp_path)), fcntl.LOCK_EX)

        lock_others()
        stack.enter_context(ActionLock(str(tmp_path / "roots")))
        lock_others()
        monkeypatch.setattr("tui.runtime.lock.is_root", lambda: False)
        with pytest.raises(LockTaken, match="user root"), ActionLock(str(tmp_path / "users")):
            pass


class WantsPassword:
    """sudo, as long as nobody has given it the password."""

    as_root = "by sudo"

    def __init__(self) -> None:
        self.is_given = False

    def run(self, argv: Sequence[str], root: bool, given: str, hear: Callable[[str], None]) -> CommandResult:
        return CommandResult(0, 0.1) if self.is_given else CommandResult(1, 0.1, wants_password=True)


def test_sudo_gets_its_password_once_and_the_step_runs(told: Told) -> None:
    sudo = WantsPassword()
    asked = []

    def give() -> bool:
        asked.append(1)
        sudo.is_given = True
        return True

    assert told.run(sudo, command("true"), command("true"), get_password=give).outcome is RunOutcome.DONE
    assert asked == [1]


def test_without_a_password_nothing_runs(told: Told) -> None:
    ended = told.run(WantsPassword(), command("true"))
    assert ended.outcome is RunOutcome.FAILED
    assert "password" in ended.why


def test_a_sudo_that_asks_every_time_is_reported(told: Told) -> None:
    ended = told.run(WantsPassword(), command("true"), get_password=lambda: True)
    assert "every time" in ended.why


class Lockdown:
    """setpci under kernel lockdown: it writes nothing and ends with 0."""

    as_root = "as root"

    def run(self, argv: Sequence[str], root: bool, given: str, hear: Callable[[str], None]) -> CommandResult:
        if "=" not in argv[-1]:
            hear("000c")
        return CommandResult(0, 0.1)


def test_an_unwritten_register_is_a_failure_even_if_setpci_exits_with_0(told: Told) -> None:
    clear = Step("clears it", ("setpci", "-s", "0000:17:00.0", "ECAP_ACS+6.w=0000:000c"))
    set_again = Step("sets it", ("setpci", "-s", "0000:17:00.0", "ECAP_ACS+6.w=000c:000c"))
    assert "still reads 000c" in told.run(Lockdown(), clear).why
    assert told.run(Lockdown(), set_again).outcome is RunOutcome.DONE


# Files, on a simulated node: its own tree alone is written


def change(host: SimulatedHost, log: MemoryLog, file: FileChange) -> RunEnded:
    from tui.actions.rehearsal import SimulatedCommands

    commands = SimulatedCommands(host, wait=lambda seconds: None)
    runner = Runner(host, commands, Audit(log, HERE), lambda event: None)
    return runner.run("test", Plan("Test", (Step("changes a file", file=file),)))


def test_a_file_is_written_whole_with_a_backup() -> None:
    host, log = SimulatedHost("hgx-h100"), MemoryLog()
    path = "/etc/modules-load.d/nvidia.conf"
    before = host.read(path)
    assert change(host, log, FileChange(path, "nvidia_uvm\n")).outcome is RunOutcome.DONE
    assert host.read(path) == "nvidia_uvm"
    (run,) = past_runs(log.lines())
    assert host.read(run.steps[0].kept) == before
    names = host.names("/etc/modules-load.d")
    assert isinstance(names, tuple)
    assert not [name for name in names if name.endswith(".new")]
    # Only files that end in .conf are read at boot.
    assert not run.steps[0].kept.endswith(".conf")


def test_a_file_is_restored_and_a_new_one_removed() -> None:
    host, log = SimulatedHost("hgx-h100"), MemoryLog()
    path = "/etc/some.d/new.conf"
    assert change(host, log, FileChange(path, "text\n")).outcome is RunOutcome.DONE
    assert host.read(path) == "text"
    assert change(host, log, FileChange(path, None)).outcome is RunOutcome.DONE
    kept = past_runs(log.lines())[0].steps[0].kept
    assert not isinstance(host.read(kept), str) or host.read(kept) == "text"
    assert change(host, log, FileChange(path, None, kept)).outcome is RunOutcome.DONE
    assert host.read(path) == "text"
