"""Nodes behind OpenSSH servers on this machine, and gdrtop started as a user starts it.

As a program, it installs the server on Debian: python -m tests.support.sshd
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests.support.process_families import ROOT, wait_for
from tests.support.system_packages import SYSTEM_PATH, free_port, install, missing_packages

PROGRAMS = {"sshd": "openssh-server", "ssh": "openssh-client", "ssh-keygen": "openssh-client"}
_SEPARATED = "/run/sshd"  # where root's sshd leaves its rights; Debian makes it when the service starts
_SERVER = """\
ListenAddress 127.0.0.1:{port}
HostKey {directory}/{key}
AuthorizedKeysFile {directory}/user.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
"""
_CLIENT = """\
Host *
  HostName 127.0.0.1
  IdentityFile {directory}/user
  IdentitiesOnly yes
  IdentityAgent none
  UserKnownHostsFile {directory}/known_hosts
  GlobalKnownHostsFile /dev/null
"""


class Network:
    """Servers by the names of their nodes, which the `ssh` of `environment` knows."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._servers: dict[str, psutil.Popen] = {}
        self._sockets: list[socket.socket] = []
        self._sessions: list[psutil.Process] = []
        (directory / "bin").mkdir()
        ssh = directory / "bin/ssh"
        ssh.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {directory}/config "$@"\n')
        ssh.chmod(0o755)
        for name in ("user", "stranger", "host", "other"):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", directory / name], check=True
            )
        (directory / "config").write_text(_CLIENT.format(directory=directory))
        (directory / "known_hosts").touch()
        self.environment = {
            **os.environ,
            "PATH": f"{directory}/bin:{os.environ['PATH']}",
            "XDG_DATA_HOME": f"{directory}/data",
            "XDG_STATE_HOME": f"{directory}/state",
        }

    def serve(self, name: str, more: str = "", key: str = "host", known: str = "host") -> int:
        """Start a node's server; return its port.

        `more`: lines of its configuration; `known`: the host key that ssh knows.
        """
        directory, port = self._directory, free_port()
        configuration, log = directory / f"{name}.server", directory / f"{name}.log"
        # Of each option the first line counts.
        configuration.write_text(f"{more}\n{_SERVER.format(port=port, directory=directory, key=key)}")
        with log.open("w") as errors:
            command = [str(shutil.which("sshd", path=SYSTEM_PATH)), "-D", "-e", "-f", str(configuration)]
            self._servers[name] = psutil.Popen(command, stderr=errors)
        wait_for(lambda: "listening" in log.read_text() or self._servers[name].poll() is not None)
        assert self._servers[name].poll() is None, log.read_text()
        self.add(name, port, known)
        return port

    def add(self, name: str, port: int, known: str = "", more: str = "") -> None:
        """Let ssh find a node at a port; `more`: lines of ssh's configuration."""
        before = (self._directory / "config").read_text()
        own = f"Host {name}\n  {more}\n  Port {port}\n  HostKeyAlias {name}\n"
        (self._directory / "config").write_text(f"{own}{before}")
        if known:
            with (self._directory / "known_hosts").open("a") as file:
                file.write(f"{name} {(self._directory / f'{known}.pub').read_text()}")

    def listen(self, name: str, sent: bytes | None = None) -> None:
        """Accept connections as a node that is no ssh server, and send this to each without an end."""
        listener = socket.create_server(("127.0.0.1", 0))
        self.hold(listener)
        self.add(name, listener.getsockname()[1])
        if sent is not None:
            threading.Thread(target=_flood, args=(listener, sent), daemon=True).start()

    def hold(self, connection: socket.socket) -> None:
        """Keep a socket open until the end."""
        self._sockets.append(connection)

    def start(self, *words: str | Path) -> psutil.Popen:
        """Start a Python program in a process group of its own, as a shell does for a terminal."""
        return psutil.Popen(
            [sys.executable, *words],
            cwd=ROOT,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def gdrtop(self, *words: str) -> tuple[int, str, str]:
        """Run gdrtop; return its exit status, output and errors."""
        started = self.start("-m", "tui", *words)
        out, errors = started.communicate()
        return started.returncode, out, errors

    def sessions(self) -> list[psutil.Process]:
        """What runs on the nodes now, with what it left when its session ended."""
        for server in self._servers.values():
            self._sessions += [
                child for child in server.children(recursive=True) if child not in self._sessions
            ]
        return [process for process in self._sessions if is_running(process)]

    def collectors(self) -> list[psutil.Process]:
        """The programs of gdrtop that run on the nodes."""
        return [process for process in self.sessions() if is_collector(process)]

    def close(self) -> None:
        """End all servers, and what still runs behind them."""
        for process in [*self.sessions(), *self._servers.values()]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        for server in self._servers.values():
            server.wait()
        for listener in self._sockets:
            listener.close()


def is_running(process: psutil.Process) -> bool:
    """Whether it has not ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


def is_collector(process: psutil.Process) -> bool:
    """Whether it is the Python that runs gdrtop's program on a node, not the shell that starts it."""
    with contextlib.suppress(psutil.NoSuchProcess):
        words = process.cmdline()
        return "-S" in words and any("zlib" in word for word in words)
    return False


def _flood(listener: socket.socket, sent: bytes) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:  # closed
            return
        with connection, contextlib.suppress(OSError):
            while True:
                connection.sendall(sent)


@contextlib.contextmanager
def network(directory: Path) -> Iterator[Network]:
    """Nodes without any server; it ends with all that it has started."""
    if os.geteuid() == 0:
        os.makedirs(_SEPARATED, mode=0o755, exist_ok=True)
    found = Network(directory)
    try:
        yield found
    finally:
        found.close()


def complaint() -> str:
    """Why no server can be started here, or ""."""
    packages = missing_packages(PROGRAMS)
    return f"not installed: {', '.join(packages)}" if packages else ""


if __name__ == "__main__":
    install(missing_packages(PROGRAMS))
