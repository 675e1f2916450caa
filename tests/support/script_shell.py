"""Run scripts that gdrtop writes, on nothing but a folder."""

from __future__ import annotations

import json
import os
import shutil
import socketserver
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

from probes.simulation.host import SimulatedHost

_HARMLESS = ("cat", "cp", "ls", "mkdir", "rm", "sh")
SHELLCHECK = Path(sys.executable).with_name("shellcheck")
# Passes a call on to a simulated node: socket, program, arguments.
_CALL = f"""#!{sys.executable} -IS
import json, socket, sys
with socket.socket(socket.AF_UNIX) as node:
    node.connect(%r)
    node.sendall(json.dumps(sys.argv).encode() + b"\\n")
    lines, status = json.loads(node.makefile().readline())
print(*lines, sep="\\n")
sys.exit(status)
"""


class PlayedCommands(socketserver.UnixStreamServer):
    """Answers programs of scripts with what a simulated node does, and has their names."""

    def __init__(self, host: SimulatedHost, folder: Path) -> None:
        self.host, self.socket_path = host, str(folder / "node")
        super().__init__(self.socket_path, _Call)

    def __enter__(self) -> PlayedCommands:
        Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.shutdown()
        self.server_close()


class _Call(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, PlayedCommands)
        program, *arguments = json.loads(self.rfile.readline())
        result = self.server.host.perform((Path(program).name, *arguments))
        self.wfile.write(json.dumps([result.lines, result.exit_status]).encode() + b"\n")


@dataclass
class ScriptShell:
    """A shell in which only a few harmless programs exist, and others that print how they were called."""

    folder: Path
    printed: tuple[str, ...] = ()  # the names of the others
    node: PlayedCommands | None = None  # plays those in `printed` instead

    def run(self, script: str, *arguments: str) -> tuple[int, str]:
        """Run a script; return its exit status, and what it printed."""
        programs = self.folder / "programs"
        programs.mkdir(exist_ok=True)
        for name in _HARMLESS:
            if not (programs / name).exists():
                (programs / name).symlink_to(shutil.which(name) or name)
        other = '#!/bin/sh\necho "${0##*/} $*"\n' if self.node is None else _CALL % self.node.socket_path
        for name, text in {"id": "#!/bin/sh\necho 1000\n", **dict.fromkeys(self.printed, other)}.items():
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        paths = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"
        assert script.count(paths) == 1
        harmless = script.replace(paths, f"PATH={programs}")
        harmless = harmless.replace('"$(id -u)" -ne 0', "0 -ne 0")
        environment = {**os.environ, "XDG_STATE_HOME": str(self.folder / "state")}
        ended = subprocess.run(
            ["/bin/sh", "-s", *arguments], input=harmless, text=True, capture_output=True, env=environment
        )
        return ended.returncode, ended.stdout + ended.stderr
