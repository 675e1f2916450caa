"""Runs one read-only command: argv, trusted path, time and output limits."""

from __future__ import annotations

import os
import selectors
import signal
import stat
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass

from probes.text import printable_lines
from probes.unknown import Maybe, Reason, Unknown

TRUSTED_PATH = ("/usr/sbin", "/usr/bin", "/sbin", "/bin", "/usr/local/sbin", "/usr/local/bin")
OUTPUT_LIMIT_BYTES = 1 << 20


@dataclass(frozen=True)
class CommandOutput:
    """What a command printed, cleaned of control characters, and how it ended."""

    argv: tuple[str, ...]
    exit_status: int
    stdout: str
    stderr: str


def find_command(name: str) -> str | None:
    """The command's file on the trusted path; as root only one that nobody but root could have changed."""
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
    """The output of the command, found on the trusted path only."""
    if "/" in argv[0]:
        return Unknown(Reason.NOT_THERE, argv[0], "commands are named, not given by path")
    path = find_command(argv[0])
    if path is None:
        return Unknown(Reason.NOT_THERE, argv[0], "not installed")
    return run_program([path, *argv[1:]], seconds, tuple(argv))


def run_program(program: Sequence[str], seconds: float, argv: tuple[str, ...]) -> Maybe[CommandOutput]:
    """Runs a program given by its path; `argv` is what it is called in the answer."""
    name = " ".join(argv)
    try:
        process = subprocess.Popen(
            program,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"PATH": ":".join(TRUSTED_PATH), "LC_ALL": "C.UTF-8"},
            cwd="/",
            start_new_session=True,
        )
    except OSError as error:
        return Unknown(Reason.IO_ERROR, name, os.strerror(error.errno or 0))
    with process:
        try:
            streams = _collect(process, time.monotonic() + seconds)
            if isinstance(streams, Reason):
                told = f"no end within {seconds:g} s" if streams is Reason.TIMED_OUT else "too much output"
                return Unknown(streams, name, told)
            stdout, stderr = (printable_lines(part.decode("utf-8", "replace")) for part in streams)
            return CommandOutput(argv, process.wait(1.0), stdout, stderr)
        except subprocess.TimeoutExpired:
            return Unknown(Reason.TIMED_OUT, name, "it closed its output and did not end")
        finally:
            _end(process)


def _collect(process: subprocess.Popen[bytes], until: float) -> tuple[bytes, bytes] | Reason:
    """Both streams to their end; a reason where time or room does not suffice."""
    assert process.stdout is not None
    assert process.stderr is not None
    parts: dict[int, list[bytes]] = {process.stdout.fileno(): [], process.stderr.fileno(): []}
    outputs = list(parts.values())
    total = 0
    with selectors.DefaultSelector() as selector:
        for descriptor in parts:
            selector.register(descriptor, selectors.EVENT_READ)
        while selector.get_map():
            left = until - time.monotonic()
            if left <= 0:
                return Reason.TIMED_OUT
            for key, _ in selector.select(left):
                piece = os.read(key.fd, 1 << 16)
                if not piece:
                    selector.unregister(key.fd)
                    continue
                parts[key.fd].append(piece)
                total += len(piece)
                if total > OUTPUT_LIMIT_BYTES:
                    return Reason.MALFORMED
    return b"".join(outputs[0]), b"".join(outputs[1])


def _end(process: subprocess.Popen[bytes]) -> None:
    """Nothing that was started stays behind, grandchildren of its session included."""
    if process.poll() is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
