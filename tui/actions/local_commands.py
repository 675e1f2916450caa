"""Run one command on this machine; nothing else in gdrtop changes a node.

There is no shell. Programs have absolute paths from the trusted directories and a clean environment, and
print to a pseudo-terminal, so that their output arrives line by line. A running command is never killed: it
ends, or it is reported as still running.
"""

from __future__ import annotations

import concurrent.futures
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from probes.base.frozen import frozen
from probes.base.unknown import Maybe, Unknown
from probes.host.machine.command import environment_of, find_command
from probes.host.trusted_path import trusted_environment
from tui.terminal.program_output import PtyReader

if TYPE_CHECKING:
    from probes.host.remote.remote_host import RemoteHost

_POLL_SECONDS = 0.2  # for the password
STEP_SECONDS = 300.0  # restarting openibd takes one or two minutes on a big node
_LINE_LIMIT = 4096
_LINES_LIMIT = 20_000  # of one step; later ones are counted and not shown
# The words of sudo and of sudo-rs, before anything has run.
_PASSWORD_WANTED = re.compile(
    r"sudo(?:-rs)?: (?:a password is required|interactive authentication is required|a terminal is required)"
)


@frozen
class CommandResult:
    """How a command ended; without a status it did not end or could not start, and `why` says so."""

    exit_status: int | None
    seconds: float
    why: str = ""
    still_running: bool = False
    wants_password: bool = False


class Commands(Protocol):
    """What runs a command on a node: this machine, or a simulated one."""

    as_root: str  # how a step gets root, to be shown

    def run(
        self, argv: Sequence[str], root: bool, text: str, on_line: Callable[[str], None]
    ) -> CommandResult:
        """Run a command to its end, and pass on each line as it is printed."""


class LocalCommands:
    """This machine. A command inherits the descriptors `keep`: it holds the lock as long as it runs."""

    def __init__(self, keep: Sequence[int] = (), seconds: float = STEP_SECONDS) -> None:
        self._keep, self._seconds = tuple(keep), seconds
        self._is_root = os.geteuid() == 0
        self.as_root = "as root" if self._is_root else "by sudo"
        self.abandoned = threading.Event()  # set: stop waiting for the running command

    def run(
        self, argv: Sequence[str], root: bool, text: str, on_line: Callable[[str], None]
    ) -> CommandResult:
        """Run a command from the trusted path, with sudo if it needs root and gdrtop is not root."""
        program = self._program(argv, root and not self._is_root)
        if isinstance(program, str):
            return CommandResult(None, 0.0, program)
        environment = self._environment(argv[0])
        if isinstance(environment, Unknown):
            return CommandResult(None, 0.0, str(environment))
        began = time.monotonic()
        try:
            master, slave = os.openpty()
        except OSError as error:
            return CommandResult(None, 0.0, f"no pseudo-terminal for {argv[0]}: {error.strerror}")
        output = PtyReader(master, _LINE_LIMIT)
        try:
            process = self._start(program, environment, slave, bool(text))
        except OSError as error:
            output.close()
            return CommandResult(None, 0.0, f"{program[0]}: {error.strerror}")
        finally:
            os.close(slave)
        try:
            _write_input(process, text)
            return self._follow(process, output, began, on_line, root and not self._is_root)
        finally:
            output.close()

    def _program(self, argv: Sequence[str], by_sudo: bool) -> list[str] | str:
        """Return what to start, or why it cannot be started."""
        program: list[str] = []
        for name in ("sudo", argv[0]) if by_sudo else (argv[0],):
            path = find_command(name)
            if path is None:
                return f"{name} is not installed"
            # -n: `ask_for_password` lets sudo ask on the real terminal.
            program += [path, "-n", "--"] if name == "sudo" else [path]
        return [*program, *argv[1:]]

    def _environment(self, name: str) -> Maybe[Mapping[str, str]]:
        environment = environment_of(name)
        return environment if isinstance(environment, Unknown) else {**environment, "TERM": "xterm-256color"}

    def _start(
        self, program: list[str], environment: Mapping[str, str], output: int, with_input: bool
    ) -> subprocess.Popen[bytes]:
        # Its own process group, because Ctrl-C and a hangup at our terminal are for us; not its own session,
        # because sudo's tickets belong to a session and its terminal.
        group: dict[str, Any] = (
            {"process_group": 0} if sys.version_info >= (3, 11) else {"preexec_fn": os.setpgrp}
        )
        return subprocess.Popen(
            program,
            stdin=subprocess.PIPE if with_input else subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            cwd="/",
            umask=0o022,
            pass_fds=self._keep,
            **group,
        )

    def _follow(
        self,
        process: subprocess.Popen[bytes],
        output: PtyReader,
        began: float,
        on_line: Callable[[str], None],
        by_sudo: bool,
    ) -> CommandResult:
        """Read what it prints until it ends; its children may outlive it and print on, unread."""
        count = 0
        wants_password = False
        while True:
            ended = process.poll() is not None
            lines = output.read(0.0 if ended else 0.05)
            for line in lines if lines is not None else output.rest() if ended else ():
                wants_password = wants_password or bool(
                    by_sudo and not count and _PASSWORD_WANTED.match(line)
                )
                count += 1
                if count <= _LINES_LIMIT:
                    on_line(line)
            took = time.monotonic() - began
            if ended and lines is None:
                if count > _LINES_LIMIT:
                    on_line(f"… and {count - _LINES_LIMIT} more lines")
                status = process.returncode
                why = f"killed by signal {-status}" if status < 0 else ""
                return CommandResult(status, took, why, wants_password=wants_password and status == 1)
            # Also if it never stops printing.
            if not ended and (took > self._seconds or self.abandoned.is_set()):
                why = f"still running after {took:.0f} s, as process {process.pid}"
                return CommandResult(None, took, why, still_running=True)


class RemoteCommands(LocalCommands):
    """A node that is elsewhere: each command goes there by the transport, and gets root by sudo -n.

    The connection keeps no command alive, and ending it may leave a command running there.
    """

    def __init__(self, host: RemoteHost, keep: Sequence[int] = (), seconds: float = STEP_SECONDS) -> None:
        super().__init__(keep, seconds)
        self._host = host
        self._is_root = host.is_root() and not host.target.is_sudo
        self.as_root = "as root" if self._is_root else "by sudo -n"

    def run(
        self, argv: Sequence[str], root: bool, text: str, on_line: Callable[[str], None]
    ) -> CommandResult:
        """Run a command on the node; what was read there before no longer counts."""
        try:
            return super().run(argv, root, text, on_line)
        finally:
            self._host.forget()

    def _program(self, argv: Sequence[str], by_sudo: bool) -> list[str] | str:
        from probes.host.remote.transport import CLEAN

        target = self._host.target
        return target.root_command(argv) if by_sudo else target.command([*CLEAN, *argv])

    def _environment(self, name: str) -> Maybe[Mapping[str, str]]:
        del name
        return trusted_environment()  # the transport needs SSH_AUTH_SOCK, KRB5CCNAME, HOME, KUBECONFIG


def _write_input(process: subprocess.Popen[bytes], text: str) -> None:
    if process.stdin is not None:
        try:
            process.stdin.write(text.encode("utf-8", "replace"))
            process.stdin.close()
        except OSError:  # it ended without reading; its exit status says why
            return


def why_no_root() -> str:
    """Return why this user cannot run steps that need root, or ""."""
    if os.geteuid() == 0 or find_command("sudo") is not None:
        return ""
    return "root is needed and sudo is not installed; run the script as root instead"


def ask_for_password() -> bool:
    """Let sudo ask for the password on this process's terminal; return whether it was accepted."""
    sudo = find_command("sudo")
    return sudo is not None and subprocess.run([sudo, "-v"], cwd="/").returncode == 0


def wait_for_password(
    call: Callable[[Callable[[], object]], object], ask: Callable[[], bool], is_leaving: Callable[[], bool]
) -> bool:
    """Run `ask` in the screen's thread and wait for its answer; called in the run's thread."""
    answer: concurrent.futures.Future[bool] = concurrent.futures.Future()

    def asked() -> None:
        try:
            answer.set_result(ask())
        except Exception:  # the run goes on without a password, and says so
            answer.set_result(False)
            raise

    if is_leaving():
        return False
    call(asked)
    while True:
        try:
            return answer.result(_POLL_SECONDS)
        except concurrent.futures.TimeoutError:
            if is_leaving():
                return False


def ask_on_terminal(suspend: Callable[[], AbstractContextManager[object]], title: str) -> bool:
    """Suspend the dashboard and let sudo ask; return whether the password was accepted."""
    from textual.app import SuspendNotSupported

    try:
        with suspend():
            # Ctrl-C ends sudo. A handler and not SIG_IGN, which sudo would inherit.
            before = signal.signal(signal.SIGINT, lambda number, frame: None)
            try:
                print(f"gdrtop: “{title}” needs root", file=sys.__stdout__, flush=True)
                return ask_for_password()
            finally:
                signal.signal(signal.SIGINT, before)
    except SuspendNotSupported:
        return False
