"""Supervises one process of a test: starts it, and stops it with everything that it has started.

tui/bandwidth/processes.py runs it as a separate program, because only a process that outlives gdrtop can stop
what a killed gdrtop leaves behind. Standard input is a socket to gdrtop: it carries the order, and at its end
of file (gdrtop asks for a stop, or has died) the process is stopped. Standard output is the terminal of the
process.

Nothing that the process starts escapes, not even in a session of its own: the supervisor is a subreaper
(prctl(2), PR_SET_CHILD_SUBREAPER), so every orphan becomes its child, and ECHILD from waitpid(2) means that
nothing is left. Only direct children are signalled, because their process ids cannot have been reused.

If the supervisor is killed too, PR_SET_PDEATHSIG kills the process itself, and the kernel sends SIGHUP to the
foreground group of its terminal. Only then something can be left: a child that ignores SIGHUP or has left the
group. If gdrtop is alive, it kills these by their session.

It imports nothing of gdrtop, so that it starts within some 30 ms. On other nodes it runs with Python 3.6 or
newer, within tui/bandwidth/pairs/node_server.py.

probes/host/machine/command_server.py has a similar loop, and the two stay two programs. That one forks a
supervisor for each command and kills at once; this one has a terminal, a grace period, the CPU time of what
it reaps, and a report of what cannot be killed. A module for both would have to be found without gdrtop on
sys.path (python -I), and a mistake in it would break both promises that nothing outlives a killed gdrtop.
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
import tty
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

GRACE_SECONDS = 2.0  # from SIGTERM to SIGKILL
KILL_SECONDS = 3.0  # from SIGKILL to the report that a process cannot be killed
MESSAGE_BYTES = 1 << 20
STILL_THERE = "still exists after SIGKILL"
# HOME, USER, LOGNAME: mpirun and what ssh starts (ProxyCommand, Match exec) read their settings there.
# SSH_AUTH_SOCK, KRB5CCNAME: without the agent and the ticket ssh would have to ask for a password.
# LD_LIBRARY_PATH: tools built against HPC-X or a private CUDA need it. It is no new risk: gdrtop's own
# libraries were found with it already, and sudo never passes it on to root.
PASSED_ON = ("HOME", "USER", "LOGNAME", "SSH_AUTH_SOCK", "KRB5CCNAME", "LD_LIBRARY_PATH")
_CONTROL, _TERMINAL = 0, 1
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # include/uapi/linux/prctl.h
_STUCK_SECONDS = 0.5  # what survives SIGKILL so long is stuck in the kernel
_POLL_SECONDS = 0.1


class Entry(NamedTuple):
    """A process in the process table: proc(5), /proc/pid/stat."""

    pid: int
    name: str
    state: str
    parent: int
    session: int


def process_table() -> Iterator[Entry]:
    """Return the processes that this user may see."""
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


def describe(left: list[Entry]) -> str:
    """Describe processes that could not be killed."""
    named = ", ".join(
        f"process {entry.pid} ({entry.name}){' in uninterruptible sleep' * (entry.state == 'D')}"
        for entry in left
    )
    return f"{STILL_THERE}: {named or 'a process hidden from this user'}"


def environment(trusted_path: Sequence[str], own: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables of a tool: a few of this process, and those that are the same everywhere."""
    passed_on = {name: own[name] for name in PASSED_ON if name in own}
    return {"PATH": ":".join(trusted_path), "LC_ALL": "C.UTF-8", "TERM": "dumb", **passed_on}


def open_terminal() -> tuple[int, int]:
    """Return both descriptors of a new terminal without line buffering and echo; OSError: there is none.

    A read from /dev/tty returns end of file at once.
    """
    try:
        master, slave = os.openpty()
    except OSError as error:
        raise OSError(error.errno, f"no pseudo-terminal ({error.strerror})") from None
    try:
        tty.setraw(slave)
        settings = termios.tcgetattr(slave)
        settings[6][termios.VMIN] = 0  # termios(3): read(2) returns 0 if nothing was typed
        termios.tcsetattr(slave, termios.TCSANOW, settings)
    except termios.error as error:
        os.close(master)
        os.close(slave)
        raise OSError(*error.args) from None
    return master, slave


def exit_status(wait_status: int) -> int:
    """Return an exit status as in subprocess, negative for a signal."""
    return -os.WTERMSIG(wait_status) if os.WIFSIGNALED(wait_status) else os.WEXITSTATUS(wait_status)


def end_orphans(leader: int, status: int, failure: str) -> str:
    """Kill what a dead supervisor has left; return how the process ended.

    `leader`: the process, 0 if it was not started; `status`: of the supervisor; `failure`: its last words.
    """
    if not leader:
        return failure or f"not started: its supervisor exited with status {status}"
    why = failure or f"killed with its supervisor (status {status})"
    until = time.monotonic() + KILL_SECONDS
    while True:
        left = [entry for entry in process_table() if entry.session == leader and entry.state != "Z"]
        if not left or time.monotonic() > until:
            return f"{why}; {describe(left)}" if left else why
        for entry in left:
            _signal(os.kill, entry.pid, signal.SIGKILL)
        time.sleep(0.02)


class ProcessSupervisor:
    """Starts one process, and runs until it and everything that it started are gone."""

    def __init__(self) -> None:
        self._leader = 0  # process id of the tool, until it has been reaped
        self._status: int | None = None
        self._cpu_seconds = 0.0  # of all children that were reaped, and of those that they reaped
        self._why = ""
        self._grace_seconds = GRACE_SECONDS
        self._was_signalled = False
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        # A tool that aborts must leave no core file.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        self._signals, write = os.pipe()
        for descriptor in (self._signals, write):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(write)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def run(self) -> None:
        """Read the order, start the process, wait for its end, and stop what is left."""
        message = os.read(_CONTROL, MESSAGE_BYTES)
        if not message:
            return
        order = json.loads(message)
        self._grace_seconds = order["grace_seconds"]
        if self._pause(0.0, with_control=True):
            _send(ended=[None, 0.0, "canceled before it started", None])
            return
        began = time.monotonic()
        try:
            process = subprocess.Popen(
                order["argv"],
                # Reads return end of file at once: ssh works as with -n, and mpirun forwards nothing.
                stdin=subprocess.DEVNULL,
                stdout=_TERMINAL,
                stderr=_TERMINAL,
                cwd="/",
                start_new_session=True,
                # Safe here: this process has no other thread.
                preexec_fn=_terminal_taker(os.getpid()),
            )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            _send(ended=[None, 0.0, f"{order['argv'][0]}: {reason}", None])
            return
        self._leader = process.pid
        _send(started=process.pid)
        self._watch(began, order["seconds"])
        took = time.monotonic() - began
        left = self._stop_all()
        # It was reaped here and not by subprocess, which would wait for it again.
        process.returncode = self._status
        if left is None:
            _send(ended=[self._status, took, self._why, self._cpu_seconds])
            return
        _send(ended=[self._status, took, f"{self._why}; {describe(left)}".removeprefix("; "), None])
        # Kill whatever returns from the kernel later, and what it has started meanwhile.
        while self._reap():
            self._kill(self._children())
            self._pause(1.0)

    def _watch(self, began: float, seconds: float) -> None:
        """Return when the process has ended or must be stopped, and note the reason."""
        while self._reap() and self._leader:
            left = began + seconds - time.monotonic()
            if left <= 0:
                self._why = f"stopped after its time limit of {seconds:g} s"
                return
            control_ready = self._pause(left, with_control=True)
            if control_ready or self._was_signalled:
                self._reap()
                if self._leader:
                    self._why = "canceled" if control_ready else "its supervisor was terminated"
                return

    def _pause(self, seconds: float, with_control: bool = False) -> bool:
        """Wait for a signal, or for end of file from gdrtop; return whether that came."""
        sources = [self._signals, *[_CONTROL] * with_control]
        ready = select.select(sources, [], [], seconds)[0]
        if self._signals in ready:
            came = set(os.read(self._signals, 4096))
            self._was_signalled = self._was_signalled or bool(came - {signal.SIGCHLD})
        return _CONTROL in ready

    def _stop_all(self) -> list[Entry] | None:
        """Send each process SIGTERM once and SIGKILL after the grace period; return what is left, or None.

        Only once, because mpirun gives up on a second SIGTERM and does not stop its ranks.
        """
        began = time.monotonic()
        terminated: set[int] = set()
        if self._leader:
            terminated.add(self._leader)
            for number in (signal.SIGTERM, signal.SIGCONT):
                _signal(os.killpg, self._leader, number)
        while self._reap():
            took = time.monotonic() - began
            children = self._children()
            if took < self._grace_seconds:
                for entry in children:
                    if entry.pid not in terminated:
                        terminated.add(entry.pid)
                        for number in (signal.SIGTERM, signal.SIGCONT):
                            _signal(os.kill, entry.pid, number)
            else:
                self._kill(children)
                if self._leader:  # /proc may hide it: hidepid, or a program with file capabilities
                    _signal(os.killpg, self._leader, signal.SIGKILL)
                if took > self._grace_seconds + _STUCK_SECONDS:
                    # A stuck process reaps nothing, so the process ids of its children cannot be reused.
                    self._kill(_below(children))
                if took > self._grace_seconds + KILL_SECONDS:
                    return [entry for entry in [*children, *_below(children)] if entry.state != "Z"]
            self._pause(_POLL_SECONDS)
        return None

    def _children(self) -> list[Entry]:
        here = os.getpid()
        return [entry for entry in process_table() if entry.parent == here]

    def _kill(self, entries: list[Entry]) -> None:
        for entry in entries:
            _signal(os.kill, entry.pid, signal.SIGKILL)

    def _reap(self) -> bool:
        """Reap every child that has ended; return whether any child is left."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if not pid:
                return True
            self._cpu_seconds += usage.ru_utime + usage.ru_stime
            if pid == self._leader:
                self._leader, self._status = 0, exit_status(status)


def _below(entries: list[Entry]) -> list[Entry]:
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
    except (ProcessLookupError, PermissionError):  # it is gone, or not ours: then it is reported as left
        return


def _terminal_taker(supervisor: int) -> Callable[[], None]:
    """Return what the new process does before it executes the tool."""

    def take() -> None:
        for number in range(1, signal.NSIG):  # exec keeps ignored signals, such as nohup's SIGHUP
            if signal.getsignal(number) is signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)
        fcntl.ioctl(_TERMINAL, termios.TIOCSCTTY, 0)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != supervisor:  # it died before PR_SET_PDEATHSIG was set
            os._exit(1)

    return take


def _prctl(option: int, value: int) -> None:
    zeros = (ctypes.c_ulong(0),) * 3
    if ctypes.CDLL(None, use_errno=True).prctl(option, ctypes.c_ulong(value), *zeros) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _send(**message: object) -> None:
    try:
        os.write(_CONTROL, json.dumps(message).encode())
    except OSError:  # gdrtop has died
        return


def main() -> None:
    """Supervise the process of the order on standard input, or report why that failed."""
    try:
        ProcessSupervisor().run()
    except Exception as error:
        _send(failed=f"{type(error).__name__}: {error}")
        sys.exit(1)


if __name__ == "__main__":
    main()
