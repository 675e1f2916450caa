"""Commands in the guest, over SSH."""

import base64
import json
import os
import select
import shlex
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# One command under emulation, on a machine three times slower than a plain one.
COMMAND_SECONDS = 120.0
# gdrtop gives a device three seconds; a busy machine that emulates one may need more now and then.
PATIENCE = 5
TIMED_OUT = "timed out"


@dataclass(frozen=True)
class Answer:
    """What a command in the guest printed, and its exit status."""

    status: int
    output: str
    errors: str


class CommandFailed(Exception):
    """A command in the guest that had to succeed did not."""


class Forks:
    """`ask-gdrtop` of one user, kept running."""

    def __init__(self, ssh: list[str]) -> None:
        self._process = subprocess.Popen(
            ssh,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
        )

    def ask(self, arguments: Sequence[str], seconds: float) -> Answer | None:
        """The answer of one command; None: not within the time, or the process has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        deadline = time.monotonic() + seconds
        told = b""
        try:
            self._process.stdin.write(f"{json.dumps(arguments)}\n".encode())
        except OSError:
            return None
        while not told.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                return None
            part = os.read(self._process.stdout.fileno(), 1 << 16)
            if not part:
                return None
            told += part
        return Answer(**json.loads(told))

    def end(self) -> None:
        """Ends it; a command under way ends by itself."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()


class Guest:
    """A user's way into the guest; root's unless told otherwise."""

    def __init__(
        self,
        port: int,
        key: Path,
        sockets: Path,
        user: str = "root",
        all_forks: dict[str, Forks] | None = None,
    ) -> None:
        self._port = port
        self._key = key
        self._sockets = sockets
        self._user = user
        self._all_forks: dict[str, Forks] = {} if all_forks is None else all_forks  # by user
        sockets.mkdir(exist_ok=True)

    def as_user(self, user: str) -> "Guest":
        """The same guest for another user: `admin` has sudo, `typist` with a password, `visitor` has not."""
        return Guest(self._port, self._key, self._sockets, user, self._all_forks)

    def answers(self) -> bool:
        """Whether sshd is there."""
        return self.ask("true", seconds=10).status == 0

    def hang_up(self) -> None:
        """Ends the connections that commands share: a guest does not know them after a reboot."""
        for user in list(self._all_forks):
            self._all_forks.pop(user).end()
        for path in self._sockets.iterdir():
            subprocess.run(["ssh", "-F", "none", "-O", "exit", "-S", str(path), "guest"], capture_output=True)

    def ask(self, *argv: str, given: str | None = None, seconds: float = COMMAND_SECONDS) -> Answer:
        """Runs a command, whatever its status."""
        try:
            done = subprocess.run(
                self._ssh(argv),
                input=given,
                stdin=subprocess.DEVNULL if given is None else None,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=seconds,
            )
        except subprocess.TimeoutExpired:
            return Answer(124, "", f"no answer for {seconds:.0f} s")
        return Answer(done.returncode, done.stdout, done.stderr)

    @property
    def over(self) -> str:
        """What --over of gdrtop on this machine needs to reach the guest, whose name is 127.0.0.1 then."""
        return shlex.join([*self._client(), f"{self._user}@{{host}}"])

    def _client(self) -> list[str]:
        options = {
            "IdentityFile": str(self._key),
            "IdentitiesOnly": "yes",
            "StrictHostKeyChecking": "no",
            "UserKnownHostsFile": "/dev/null",
            "LogLevel": "ERROR",
            "BatchMode": "yes",
            "ConnectTimeout": "10",
            # One connection for all: a new one costs a second under emulation.
            "ControlMaster": "auto",
            "ControlPath": str(self._sockets / "%r"),
            "ControlPersist": "yes",
        }
        ssh = ["ssh", "-F", "none", "-p", str(self._port)]
        for name, value in options.items():
            ssh += ["-o", f"{name}={value}"]
        return ssh

    def _ssh(self, argv: Sequence[str]) -> list[str]:
        # sshd hands one string to the user's shell: quoted here, it is the argv again.
        remote = f"PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin LANG=C.UTF-8 {shlex.join(argv)}"
        return [*self._client(), f"{self._user}@127.0.0.1", remote]

    def gdrtop(self, *arguments: str, seconds: float = COMMAND_SECONDS) -> Answer:
        """Runs a gdrtop command in a fork of a process that has gdrtop imported (`ask-gdrtop`).

        For commands without a terminal that get no signal: they begin in a fraction of the time.
        """
        forks = self._all_forks.get(self._user)
        if forks is None:
            self.answers()  # the connection that is shared, else this process would hold it
            forks = self._all_forks[self._user] = Forks(self._ssh(("ask-gdrtop",)))
        answer = forks.ask(arguments, seconds)
        if answer is None:
            self._all_forks.pop(self._user).end()
            return Answer(124, "", f"no answer within {seconds:.0f} s")
        return answer

    def run(self, *argv: str, given: str | None = None, seconds: float = COMMAND_SECONDS) -> str:
        """A command's output; CommandFailed where it fails."""
        return _succeeded(self.ask(*argv, given=given, seconds=seconds), argv)

    def run_gdrtop(self, *arguments: str) -> str:
        """The output of `gdrtop()`; CommandFailed where it fails."""
        return _succeeded(self.gdrtop(*arguments), ("gdrtop", *arguments))

    def shell(self, script: str, seconds: float = COMMAND_SECONDS) -> str:
        """The output of a shell script."""
        return self.run("sh", "-euc", script, seconds=seconds)

    def json(self, *argv: str) -> Any:
        """What a gdrtop command says as JSON; asked again where a slow guest left a question unanswered."""
        for _ in range(PATIENCE):
            told = self.gdrtop(*argv, "--json").output  # the status says whether the answer is good
            if TIMED_OUT not in told:
                break
        return json.loads(told)

    def read(self, path: str) -> str:
        """A file's text, stripped."""
        return self.run("cat", path).strip()

    def fetch(self, path: str) -> bytes:
        """A file's bytes."""
        return base64.b64decode(self.run("base64", path))

    def write(self, path: str, text: str) -> None:
        """Writes a file."""
        self.run("tee", path, given=text)


def _succeeded(answer: Answer, argv: Sequence[str]) -> str:
    if answer.status:
        raise CommandFailed(f"{shlex.join(argv)} ended with {answer.status}: {answer.output}{answer.errors}")
    return answer.output
