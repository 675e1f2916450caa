"""A collector that runs on this machine, and one that answers as a simulated node in this process."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from probes.host.remote.transport import ConnectionFailed, Target
from probes.simulation.host import SimulatedHost
from tests.support.stand_in import answer

_TRANSPORT = ("sh", "-c", 'shift; exec "$@"', "sh", "{host}")


def local_target(path: Path | None = None, is_sudo: bool = False) -> Target:
    """This machine as a node, like ssh without a network; `path`: where its shell finds commands."""
    environment = () if path is None else ("env", f"PATH={path}")
    return Target("node", (*environment, *_TRANSPORT), is_sudo)


def script_target(script: str) -> Target:
    """A node that is reached by this shell script."""
    return Target("node", ("sh", "-c", script, "sh", "{host}"))


def write_program(path: Path, script: str) -> None:
    """Write a shell script."""
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


class SimulatedConnection:
    """What `Connection` is to RemoteHost, to a simulated node in this process."""

    def __init__(self, host: SimulatedHost, clock: Callable[[], float] = lambda: 0.0) -> None:
        self.host, self._clock = host, clock
        self.greeting = {"kind": "simulated", "is_root": True}
        self.rounds = self.memory_bytes = 0
        self.failure = ""
        self.is_closed = False
        self.asked: list[Sequence[Any]] = []

    def ask(self, questions: Sequence[Sequence[Any]], until: float = 0.0) -> dict[str, Any]:
        """Answer as the collector does."""
        self.until = until
        if self.failure:
            raise ConnectionFailed(self.failure)
        self.rounds += 1
        self.asked = list(questions)
        answers = [answer(self.host, list(question)) for question in questions]
        message = {"answers": answers, "monotonic": self.host.monotonic(), "wall": self.host.wall_clock()}
        found: dict[str, Any] = json.loads(json.dumps(message))
        return found

    def close(self) -> None:
        """Note the end."""
        self.is_closed = True
