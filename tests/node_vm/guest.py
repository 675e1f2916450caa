"""Commands in the guest, over SSH."""

import base64
import json
import shlex
import subprocess
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


class Guest:
    """A user's way into the guest; root's unless told otherwise."""

    def __init__(self, port: int, key: Path, sockets: Path, user: str = "root") -> None:
        self._port = port
        self._key = key
        self._sockets = sockets
        self._user = user
        sockets.mkdir(exist_ok=True)

    def as_user(self, user: str) -> "Guest":
        """The same guest for another user: `admin` has sudo, `typist` with a password, `visitor` has not."""
        return Guest(self._port, self._key, self._sockets, user)

    def answers(self) -> bool:
        """Whether sshd is there."""
        return self.ask("true", seconds=10).status == 0

    def hang_up(self) -> None:
        """Ends the connection that all commands share: a guest that is booted anew does not know it."""
        path = self._sockets / self._user
        if path.exists():
            subprocess.run(["ssh", "-F", "none", "-O", "exit", "-S", str(path), "guest"], capture_output=True)

    def ask(self, *argv: str, given: str | None = None, seconds: float = COMMAND_SECONDS) -> Answer:
        """Runs a command, whatever its status."""
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
        # sshd hands one string to the user's shell: quoted here, it is the argv again.
        remote = f"PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin LANG=C.UTF-8 {shlex.join(argv)}"
        try:
            done = subprocess.run(
                [*ssh, f"{self._user}@127.0.0.1", remote],
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

    def run(self, *argv: str, given: str | None = None, seconds: float = COMMAND_SECONDS) -> str:
        """A command's output; CommandFailed where it fails."""
        answer = self.ask(*argv, given=given, seconds=seconds)
        if answer.status:
            told = f"{answer.output}{answer.errors}"
            raise CommandFailed(f"{shlex.join(argv)} ended with {answer.status}: {told}")
        return answer.output

    def shell(self, script: str) -> str:
        """The output of a shell script."""
        return self.run("sh", "-euc", script)

    def json(self, *argv: str) -> Any:
        """What a gdrtop command says as JSON; asked again where a slow guest left a question unanswered."""
        for _ in range(PATIENCE):
            told = self.run("gdrtop", *argv, "--json")
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
