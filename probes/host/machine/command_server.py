"""Starts the read-only commands of gdrtop, and kills all that they leave behind.

probes/host/machine/command.py runs it once, as a separate program, because only a process that outlives
gdrtop can kill what a killed gdrtop leaves behind. Standard input is a socket to gdrtop. Each message is an
order with three descriptors: the command's output, its errors, and a socket that controls this command.

Each command has a supervisor, which is forked because a new Python would take longer than most commands. At
the end of file of its socket (gdrtop has enough, or has died) and after the command's end it kills what is
left. Nothing escapes, not even a daemon: the supervisor is a subreaper (prctl(2), PR_SET_CHILD_SUBREAPER), so
every orphan becomes its child, and only children are signalled, because their process ids cannot have been
reused.

It imports nothing of gdrtop and little else, so that it starts fast: json would take as long as a command.
Both ends run the same Python, so marshal serves.
"""

from __future__ import annotations

import ctypes
import marshal
import os
import select
import signal
import socket
import time

TYPE_CHECKING = False  # without an import of typing
if TYPE_CHECKING:
    from collections.abc import Iterator

MESSAGE_BYTES = 1 << 18
KILL_SECONDS = 3.0  # what survives SIGKILL so long is stuck in the kernel
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # include/uapi/linux/prctl.h
_NOT_EXECUTED = 127
_POLL_SECONDS = 0.05


def serve(orders: socket.socket) -> None:
    """Start a supervisor for each order, until gdrtop closes its end of the socket."""
    prctl = ctypes.CDLL(None).prctl
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # supervisors become no zombies
    while True:
        message, descriptors, _, _ = socket.recv_fds(orders, MESSAGE_BYTES, 3)
        if not message:
            return
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        try:
            pid = os.fork()
        except OSError:  # too many processes: gdrtop sees that the descriptors are closed
            pid = -1
        if pid == 0:
            try:
                orders.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                prctl(_PR_SET_CHILD_SUBREAPER, *map(ctypes.c_ulong, (1, 0, 0, 0)))
                *streams, control = descriptors
                _Supervisor(socket.socket(fileno=control), prctl).run(marshal.loads(message), streams)
            finally:
                os._exit(0)
        for descriptor in descriptors:
            os.close(descriptor)


class _Supervisor:
    """Starts one command, and returns when it and all that it has started are gone."""

    def __init__(self, control: socket.socket, prctl: ctypes._NamedFuncPointer) -> None:
        self._control, self._prctl = control, prctl
        self._leader = 0  # process id of the command, until it has been reaped
        self._signals, write = os.pipe()
        for descriptor in (self._signals, write):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def run(self, order: dict[str, list[str]], streams: list[int]) -> None:
        """Start the command, report its end, and kill what is left."""
        here = os.getpid()
        self._leader = os.fork()
        if self._leader == 0:
            try:
                self._execute(order, streams, here)
            except OSError as error:
                self._send(errno=error.errno)
            finally:
                os._exit(_NOT_EXECUTED)
        for descriptor in streams:
            os.close(descriptor)
        self._reap()
        sources: list[int | socket.socket] = [self._signals, self._control]
        while self._leader and self._control not in select.select(sources, [], [])[0]:
            os.read(self._signals, 4096)
            self._reap()
        until = time.monotonic() + KILL_SECONDS
        while self._reap() and time.monotonic() < until:
            for pid in _children():
                try:
                    os.kill(pid, signal.SIGKILL)
                except PermissionError:  # a child that has become another user
                    continue
            if select.select([self._signals], [], [], _POLL_SECONDS)[0]:
                os.read(self._signals, 4096)

    def _execute(self, order: dict[str, list[str]], streams: list[int], supervisor: int) -> None:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for ignored in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores the last two
            signal.signal(ignored, signal.SIG_DFL)
        self._prctl(_PR_SET_PDEATHSIG, *map(ctypes.c_ulong, (signal.SIGKILL, 0, 0, 0)))
        if os.getppid() != supervisor:  # it died before PR_SET_PDEATHSIG was set
            return
        for number, descriptor in enumerate(streams, 1):
            os.dup2(descriptor, number)
        program = order["program"]
        self._send(pid=os.getpid())
        os.execve(program[0], program, dict(pair.split("=", 1) for pair in order["environment"]))

    def _reap(self) -> bool:
        """Reap every child that has ended; return whether any child is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if not pid:
                return True
            if pid == self._leader:
                self._leader = 0
                self._send(status=os.waitstatus_to_exitcode(status))

    def _send(self, **message: int | None) -> None:
        try:
            self._control.send(marshal.dumps(message))
        except OSError:  # gdrtop has died, or has enough
            return


def process_stats() -> Iterator[tuple[int, list[bytes]]]:
    """Yield the id of each process, and what follows its name in its stat file (proc(5), /proc/PID/stat)."""
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read(1024).rpartition(b")")[2].split()
            except OSError:  # it has ended
                continue
            yield int(name), fields


def _children() -> list[int]:
    here = os.getpid()
    return [pid for pid, fields in process_stats() if int(fields[1]) == here]


def main() -> None:
    """Serve what comes over standard input."""
    requests = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # the standard input of the commands
    serve(requests)
