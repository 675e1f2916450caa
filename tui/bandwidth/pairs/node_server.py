"""The program that starts the processes of tests on another node; remote_processes.py sends it there.

It runs from memory, with Python 3.6 or newer and the standard library, and writes no file. Each process gets
a terminal and a supervisor, as on this machine. The supervisor stops it after its time limit, and when this
program ends: at the end of its standard input (the connection or gdrtop has ended), or when it is killed.

Orders and reports are lines of JSON; bytes of output are text whose characters are the bytes:

    {"start": 1, "argv": ["ib_write_bw", "-d", "mlx5_0"], "seconds": 20.0, "grace_seconds": 2.0}
    {"end": 1}
    {"process": 1, "output": "…"}
    {"process": 1, "ended": [0, 5.2, "", 0.4]}
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import time
from typing import Any

from probes.host.remote.collector import TRUSTED_PATH, find_command
from tui.bandwidth.supervisor import MESSAGE_BYTES, end_orphans, environment, exit_status, open_terminal
from tui.bandwidth.supervisor import main as supervise

GREETING = "gdrtop processes 1"
_INPUT, _OUTPUT = 0, 1
_PIECE_BYTES = 1 << 14
_MOST_ORDERS_BYTES = 1 << 20  # without a line end
_MOST_WAITING_BYTES = 1 << 18  # while so much is not sent yet, no output is read, and the tools block
_READS_AFTER_END = 64  # a terminal buffers 64 KiB, and what could not be killed may go on printing
_POLL_SECONDS = 60.0


class SupervisedProcess:
    """A process, its supervisor and its terminal."""

    def __init__(self, order: dict[str, Any]) -> None:
        """Start a supervisor; OSError: there is no process, terminal or descriptor left for it."""
        self.began = time.monotonic()
        self.leader = 0
        self.failure = ""
        self.terminal, slave = open_terminal()
        try:
            self.control, remote = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self.control.send(json.dumps(order).encode("ascii"))
            self.supervisor = os.fork()
            if self.supervisor == 0:
                _supervise(remote.fileno(), slave)
            remote.close()
        except OSError:
            os.close(self.terminal)
            raise
        finally:
            os.close(slave)

    def read(self) -> bytes:
        """Return the next output; nothing: there is none, or its end."""
        try:
            ready = select.select([self.terminal], [], [], 0.0)[0]
            return os.read(self.terminal, _PIECE_BYTES) if ready else b""
        except OSError:  # EIO: no process has the other end open
            return b""

    def close(self) -> None:
        """Let go of the terminal, which hangs up, and of the supervisor, which has ended or soon will."""
        os.close(self.terminal)
        self.control.close()

    def end_orphans(self) -> str:
        """Kill what the supervisor has left, which is dead; return how the process ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.supervisor, signal.SIGKILL)
        _, status = os.waitpid(self.supervisor, 0)
        return end_orphans(self.leader, exit_status(status), self.failure)


def _supervise(control: int, terminal: int) -> None:
    """Become the supervisor: as if it had been executed with these descriptors."""
    try:
        os.setsid()
        os.chdir("/")
        os.umask(0o022)
        null = os.open(os.devnull, os.O_RDWR)
        for number, descriptor in enumerate((control, terminal, null)):
            os.dup2(descriptor, number)
        for name in os.listdir("/proc/self/fd"):
            if int(name) > 2:
                with contextlib.suppress(OSError):
                    os.close(int(name))
        supervise()
    finally:
        os._exit(0)


class NodeServer:
    """Obeys the orders on standard input, and reports on standard output."""

    def __init__(self) -> None:
        self._processes: dict[int, SupervisedProcess] = {}
        self._ended: list[int] = []  # supervisors that still have to be reaped
        self._orders = b""
        self._waiting = bytearray(f"\n{GREETING}\n".encode("ascii"))  # after what a shell may have printed
        os.set_blocking(_OUTPUT, False)

    def run(self, seconds: float) -> None:
        """Serve for at most so many seconds."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and self._step():
            self._ended = [pid for pid in self._ended if os.waitpid(pid, os.WNOHANG)[0] == 0]

    def _step(self) -> bool:
        """Wait for news and handle it; False: gdrtop has gone."""
        running = list(self._processes.items())
        wanted = [_INPUT, *(process.control.fileno() for _, process in running)]
        if len(self._waiting) < _MOST_WAITING_BYTES:
            wanted += [process.terminal for _, process in running]
        ready, writable, _ = select.select(wanted, [_OUTPUT] * bool(self._waiting), [], _POLL_SECONDS)
        if writable:
            try:
                del self._waiting[: os.write(_OUTPUT, self._waiting[:_PIECE_BYTES])]
            except BlockingIOError:
                pass
            except OSError:
                return False
        for number, process in running:
            if process.terminal in ready:
                self._send_output(number, process)
            if process.control.fileno() in ready:
                self._report(number, process)
        return _INPUT not in ready or self._obey()

    def _send(self, number: int, **report: object) -> None:
        report["process"] = number
        self._waiting += json.dumps(report).encode("ascii") + b"\n"

    def _send_output(self, number: int, process: SupervisedProcess) -> bool:
        output = process.read()
        if output:
            self._send(number, output=output.decode("latin-1"))
        return bool(output)

    def _report(self, number: int, process: SupervisedProcess) -> None:
        """Handle a message of a supervisor, or its death."""
        try:
            packet = process.control.recv(MESSAGE_BYTES)
        except OSError:
            packet = b""
        message = json.loads(packet.decode("ascii")) if packet else {}
        process.leader = message.get("started", process.leader)
        process.failure = message.get("failed", process.failure)
        ended = message.get("ended")
        if packet and ended is None:
            return
        if not packet:
            took = time.monotonic() - process.began
            ended = [None, took, process.end_orphans(), None]
        else:
            self._ended.append(process.supervisor)
        for _ in range(_READS_AFTER_END):
            if not self._send_output(number, process):
                break
        del self._processes[number]
        process.close()
        self._send(number, ended=ended)

    def _obey(self) -> bool:
        """Read orders and obey them; False: there will be no more."""
        piece = os.read(_INPUT, _PIECE_BYTES)
        *lines, self._orders = (self._orders + piece).split(b"\n")
        for line in lines:
            order = json.loads(line.decode("ascii"))
            if "start" in order:
                number, name = order.pop("start"), order["argv"][0]
                try:
                    order["argv"][0] = find_command(name)
                    self._processes[number] = SupervisedProcess(order)
                except OSError as error:
                    self._send(number, ended=[None, 0.0, f"{name}: {error.strerror}", None])
            elif order["end"] in self._processes:
                # The supervisor sees the same when this program ends, so that both stops work alike.
                with contextlib.suppress(OSError):  # it has died; its report will come
                    self._processes[order["end"]].control.shutdown(socket.SHUT_WR)
        return bool(piece) and len(self._orders) < _MOST_ORDERS_BYTES


def main(seconds: float) -> None:
    """Serve for at most so many seconds."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it was ignored, no status could be read
    variables = environment(TRUSTED_PATH)
    os.environ.clear()
    os.environ.update(variables)
    NodeServer().run(seconds)
