"""Placeholder of the interface; the module is being written on another branch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from probes.simulation.host import SimulatedHost


@dataclass(frozen=True)
class Ended:
    """How a process ended."""

    exit_status: int | None
    seconds: float
    why: str = ""


class Process(Protocol):
    """One process of a test."""

    def lines(self, seconds: float) -> list[str]:
        """What it has printed since."""

    @property
    def ended(self) -> Ended | None:
        """How it ended."""

    def end(self) -> None:
        """Ends it."""


class Processes(Protocol):
    """What starts processes."""

    def start(self, argv: Sequence[str], seconds: float) -> Process:
        """Starts one."""


class LocalProcesses:
    """This machine."""

    def start(self, argv: Sequence[str], seconds: float) -> Process:
        """Not yet."""
        raise NotImplementedError


class SimulatedProcesses:
    """A simulated node."""

    def __init__(self, host: SimulatedHost) -> None:
        self._host = host

    def start(self, argv: Sequence[str], seconds: float) -> Process:
        """Not yet."""
        raise NotImplementedError
