"""Run a read-only command: argv, trusted path, time and output limits.

No process stays behind: the command's process group is killed when the command ends or times out, and the
kernel kills the command when gdrtop itself dies (prctl(2), PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import stat
import subprocess
import time
from collections import deque
from collections.abc import Sequence

from probes.base.frozen import dataclass
from probes.base.text import printable_lines
from probes.base.unknown import Maybe, Reason, Unknown
from probes.host.cluster_login import CLUSTER_CLIENTS, cluster_login
from probes.host.progress import note

TRUSTED_PATH = ("/usr/sbin", "/usr/bin", "/sbin", "/bin", "/usr/local/sbin", "/usr/local/bin")
OUTPUT_LIMIT_BYTES = 1 << 20
# Of a log, the newest lines are worth the most: of a longer output, the end is returned.
LOGS = ("dmesg", "journalctl")
# A command that used CPU in the second half of its time gets more time, up to this many times: if all CPUs
# are busy, it is slow, not stuck.
_MOST_TIMES = 6
# From util-linux. Where it is missing, a command survives a gdrtop that is killed with SIGKILL.
_DIES_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL")


@dataclass(frozen=True)
class CommandOutput:
    """Output of a command, with control characters replaced, and its exit status.

    More than OUTPUT_LIMIT_BYTES is malformed, except of LOGS.
    """

    argv: tuple[str, ...]
    exit_status: int
    stdout: str
    stderr: str
    left_out_bytes: int = 0  # of a log's output: its oldest lines, before `stdout`


def find_command(name: str) -> str | None:
    """Return the path of a command on the trusted path; for root, only if only root can have changed it."""
    for directory in TRUSTED_PATH:
        path = f"{directory}/{name}"
        try:
            found = os.stat(path)
        except OSError:
            continue
        if not stat.S_ISREG(found.st_mode) or not os.access(path, os.X_OK):
            continue
        if os.geteuid() == 0 and (found.st_uid != 0 or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
            continue
        return path
    return None


def run_command(argv: Sequence[str], seconds: float) -> Maybe[CommandOutput]:
    """Run a command from the trusted path."""
    if "/" in argv[0]:
        return Unknown(Reason.NOT_THERE, argv[0], "a command must be given by name, not by path")
    path = find_command(argv[0])
    if path is None:
        return Unknown(Reason.NOT_THERE, argv[0], "not installed")
    return run_program([path, *argv[1:]], seconds, tuple(argv))


def run_program(program: Sequence[str], seconds: float, argv: tuple[str, ...]) -> Maybe[CommandOutput]:
    """Run a program given by path; the answer calls it `argv`."""
    name = " ".join(argv)
    environment = {"PATH": ":".join(TRUSTED_PATH), "LC_ALL": "C.UTF-8"}
    if argv[0] in CLUSTER_CLIENTS:
        login = cluster_login()
        if isinstance(login, Unknown):
            return login
        environment |= login
    setpriv = find_command(_DIES_WITH_PARENT[0])
    if setpriv is not None:
        program = [setpriv, *_DIES_WITH_PARENT[1:], *program]
    try:
        process = subprocess.Popen(
            program,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            cwd="/",
            start_new_session=True,
        )
    except OSError as error:
        return Unknown(Reason.IO_ERROR, name, os.strerror(error.errno or 0))
    with process:
        try:
            streams = _collect(process, seconds, name, keep_end=argv[0] in LOGS)
            if isinstance(streams, Reason):
                timeout = f"still running after {seconds:g} s"
                detail = timeout if streams is Reason.TIMED_OUT else "too much output"
                return Unknown(streams, name, detail)
            if not _has_ended(process, 1.0):
                return Unknown(Reason.TIMED_OUT, name, "closed its output but did not exit")
        finally:
            _kill_group(process)
        output, errors, left_out = streams
        stdout, stderr = (printable_lines(part.decode("utf-8", "replace")) for part in (output, errors))
        return CommandOutput(argv, process.wait(), stdout, stderr, left_out)


def _collect(
    process: subprocess.Popen[bytes], seconds: float, name: str, keep_end: bool
) -> tuple[bytes, bytes, int] | Reason:
    """Read both streams to their end; return a reason if they take too long or are too large.

    `keep_end`: of a long output keep only its last lines. The third value is how many bytes were left out.
    """
    assert process.stdout is not None
    assert process.stderr is not None
    output = process.stdout.fileno()
    parts: dict[int, deque[bytes]] = {output: deque(), process.stderr.fileno(): deque()}
    outputs = list(parts.values())
    total, halves, ticks, left_out = 0, 0, 0, 0
    until = time.monotonic() + seconds / 2
    with selectors.DefaultSelector() as selector:
        for descriptor in parts:
            selector.register(descriptor, selectors.EVENT_READ)
        while selector.get_map():
            left = until - time.monotonic()
            if left <= 0:
                used, halves = _cpu_ticks(process.pid), halves + 1
                if halves > 1 and (used <= ticks or halves >= 2 * _MOST_TIMES):
                    return Reason.TIMED_OUT
                ticks, until = used, time.monotonic() + seconds / 2
                note(name, seconds)
                continue
            for key, _ in selector.select(left):
                piece = os.read(key.fd, 1 << 16)
                if not piece:
                    selector.unregister(key.fd)
                    continue
                parts[key.fd].append(piece)
                total += len(piece)
                while keep_end and total > OUTPUT_LIMIT_BYTES and len(parts[output]) > 1:
                    oldest = len(parts[output].popleft())
                    left_out, total = left_out + oldest, total - oldest
                if total > OUTPUT_LIMIT_BYTES:
                    return Reason.MALFORMED
    kept = b"".join(outputs[0])
    if left_out:  # the first line is cut
        cut, _, kept = kept.partition(b"\n")
        left_out += len(cut) + 1
    return kept, b"".join(outputs[1]), left_out


def _cpu_ticks(group: int) -> int:
    """Return the CPU time of a process group in clock ticks (proc(5), /proc/PID/stat)."""
    ticks = 0
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read(1024).rpartition(b")")[2].split()
            except OSError:  # it has ended
                continue
            if int(fields[2]) == group:
                ticks += int(fields[11]) + int(fields[12])
    return ticks


def _has_ended(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Return whether the process ends in time. It is not reaped, so that its group ID is not reused."""
    until = time.monotonic() + seconds
    while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() >= until:
            return False
        time.sleep(0.005)
    return True


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill the command and the children that it left in the background."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
