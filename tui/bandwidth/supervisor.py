"""Keeps one test: a process beside gdrtop that starts it, and ends it with all that it has started.

Run by tui/bandwidth/processes.py as a program of its own, because only a process that outlives gdrtop can
end what a killed gdrtop leaves. Standard input is a socket to gdrtop: it brings what to start, and once it is
at its end (gdrtop says so, or has died in whatever way) the test is ended. Standard output is the test's
terminal.

Nothing that the test starts gets away, in sessions of its own neither: the keeper is its subreaper (prctl(2)
PR_SET_CHILD_SUBREAPER), so whatever loses its parent becomes the keeper's child, and ECHILD of waitpid(2)
says that nothing is left. Only direct children are signalled: their numbers cannot have passed to others.

Where somebody kills the keeper too, PR_SET_PDEATHSIG kills the test itself, and the kernel sends SIGHUP to
its terminal's foreground group. Only then can there be something left: a child of the test that ignores
SIGHUP or has left the group; gdrtop, where it lives, ends these by their session.

Imports nothing of gdrtop, so that it starts in some 30 ms.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import resource
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

GRACE_SECONDS = 2.0  # from SIGTERM to SIGKILL
KILL_SECONDS = 3.0  # from SIGKILL to the word that something cannot be ended
MESSAGE_BYTES = 1 << 20
STILL_THERE = "still there after SIGKILL"
_CONTROL, _TERMINAL = 0, 1
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # include/uapi/linux/prctl.h
_STUCK_SECONDS = 0.5  # what SIGKILL has not ended by then is stuck in the kernel
_LOOK_SECONDS = 0.1


class Entry(NamedTuple):
    """One line of the process table: proc(5), /proc/pid/stat."""

    pid: int
    name: str
    state: str
    parent: int
    session: int


def process_table() -> Iterator[Entry]:
    """The processes that this user may see."""
    for directory in os.listdir("/proc"):
        if directory.isdigit():
            try:
                with open(f"/proc/{directory}/stat", "rb") as file:
                    before, _, after = file.read().rpartition(b")")
            except OSError:  # it has ended
                continue
            state, parent, _, session = after.split()[:4]
            name = before.partition(b"(")[2].decode("ascii", "replace")
            yield Entry(int(directory), name, state.decode(), int(parent), int(session))


def told_of(left: list[Entry]) -> str:
    """That processes could not be ended, in words."""
    named = ", ".join(
        f"process {entry.pid} ({entry.name}){' in uninterruptible sleep' * (entry.state == 'D')}"
        for entry in left
    )
    return f"{STILL_THERE}: {named or 'a process that this user may not see'}"


class ProcessSupervisor:
    """Starts one test and stays until it and all that it started have gone."""

    def __init__(self) -> None:
        self._leader = 0  # the test's own process, as long as it is there
        self._status: int | None = None
        self._why = ""
        self._was_asked = False  # by a signal
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        # A test that aborts leaves no file behind.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        self._signals, write = os.pipe()
        for descriptor in (self._signals, write):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def keep(self) -> None:
        """All of it."""
        asked = os.read(_CONTROL, MESSAGE_BYTES)
        if not asked:
            return
        order = json.loads(asked)
        if self._pause(0.0, with_control=True):
            _tell(ended=[None, 0.0, "cancelled before it began"])
            return
        began = time.monotonic()
        try:
            process = subprocess.Popen(
                order["argv"],
                # Who reads from it sees its end at once: ssh is as with -n, mpirun passes nothing on.
                stdin=subprocess.DEVNULL,
                stdout=_TERMINAL,
                stderr=_TERMINAL,
                cwd="/",
                start_new_session=True,
                # Harmless here: this process has no other thread.
                preexec_fn=_taking_terminal(os.getpid()),
            )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            told = error.strerror if isinstance(error, OSError) else str(error)
            _tell(ended=[None, 0.0, f"{order['argv'][0]}: {told}"])
            return
        self._leader = process.pid
        _tell(begun=process.pid)
        self._watch(began, order["seconds"])
        took = time.monotonic() - began
        left = self._end_all()
        # Reaped below, not by subprocess, which would ask again.
        process.returncode = self._status
        if left is None:
            _tell(ended=[self._status, took, self._why])
            return
        _tell(ended=[self._status, took, f"{self._why}; {told_of(left)}".removeprefix("; ")])
        # Whatever comes out of the kernel again dies at once, and what it began meanwhile.
        while self._reap():
            self._kill(self._children())
            self._pause(1.0)

    def _watch(self, began: float, seconds: float) -> None:
        """Returns when the test has ended or is to be ended, with the reason kept."""
        while self._reap() and self._leader:
            left = began + seconds - time.monotonic()
            if left <= 0:
                self._why = f"ended after {seconds:g} s, its limit of time"
                return
            control_ready = self._pause(left, with_control=True)
            if control_ready or self._was_asked:
                self._reap()
                if self._leader:
                    self._why = "cancelled" if control_ready else "its keeper was asked to end"
                return

    def _pause(self, seconds: float, with_control: bool = False) -> bool:
        """Until a signal comes, or gdrtop's word where it is waited for; whether that came."""
        sources = [self._signals, *[_CONTROL] * with_control]
        ready = select.select(sources, [], [], seconds)[0]
        if self._signals in ready:
            came = set(os.read(self._signals, 4096))
            self._was_asked = self._was_asked or bool(came - {signal.SIGCHLD})
        return _CONTROL in ready

    def _end_all(self) -> list[Entry] | None:
        """SIGTERM once to each, SIGKILL after the grace; what is still there after all that, or None.

        Once, for mpirun takes a second SIGTERM for impatience and leaves its ranks without a farewell.
        """
        began = time.monotonic()
        asked: set[int] = set()
        if self._leader:
            asked.add(self._leader)
            for number in (signal.SIGTERM, signal.SIGCONT):
                _signal(os.killpg, self._leader, number)
        while self._reap():
            took = time.monotonic() - began
            children = self._children()
            if took < GRACE_SECONDS:
                for entry in children:
                    if entry.pid not in asked:
                        asked.add(entry.pid)
                        for number in (signal.SIGTERM, signal.SIGCONT):
                            _signal(os.kill, entry.pid, number)
            else:
                self._kill(children)
                if self._leader:  # though /proc may hide it: hidepid, and a program with file capabilities
                    _signal(os.killpg, self._leader, signal.SIGKILL)
                if took > GRACE_SECONDS + _STUCK_SECONDS:
                    # What is stuck reaps nothing, so its children's numbers are theirs for as long.
                    self._kill(_below(children))
                if took > GRACE_SECONDS + KILL_SECONDS:
                    return [entry for entry in [*children, *_below(children)] if entry.state != "Z"]
            self._pause(_LOOK_SECONDS)
        return None

    def _children(self) -> list[Entry]:
        here = os.getpid()
        return [entry for entry in process_table() if entry.parent == here]

    def _kill(self, entries: list[Entry]) -> None:
        for entry in entries:
            _signal(os.kill, entry.pid, signal.SIGKILL)

    def _reap(self) -> bool:
        """Takes the status of every child that has ended; whether any child is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if not pid:
                return True
            if pid == self._leader:
                self._leader, self._status = 0, os.waitstatus_to_exitcode(status)


def _below(entries: list[Entry]) -> list[Entry]:
    """The children of these, and theirs, to the last."""
    table = list(process_table())
    found: list[Entry] = []
    parents = {entry.pid for entry in entries}
    while parents:
        children = [entry for entry in table if entry.parent in parents]
        found += children
        parents = {entry.pid for entry in children}
    return found


def _signal(send: Callable[[int, int], None], pid: int, number: int) -> None:
    try:
        send(pid, number)
    except (ProcessLookupError, PermissionError):  # it has gone, or is not ours: then it is told of as left
        return


def _taking_terminal(keeper: int) -> Callable[[], None]:
    """What the test's process does before it becomes the test's program."""

    def take() -> None:
        for number in signal.valid_signals():  # nohup's ignored SIGHUP goes through exec
            if signal.getsignal(number) is signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)
        fcntl.ioctl(_TERMINAL, termios.TIOCSCTTY, 0)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != keeper:  # it has died before it could be asked for
            os._exit(1)

    return take


def _prctl(option: int, value: int) -> None:
    zeros = (ctypes.c_ulong(0),) * 3
    if ctypes.CDLL(None, use_errno=True).prctl(option, ctypes.c_ulong(value), *zeros) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _tell(**message: object) -> None:
    try:
        os.write(_CONTROL, json.dumps(message).encode())
    except OSError:  # gdrtop has died
        return


if __name__ == "__main__":
    try:
        ProcessSupervisor().keep()
    except Exception as error:
        _tell(failed=f"{type(error).__name__}: {error}")
        sys.exit(1)
