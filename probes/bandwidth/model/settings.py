"""The settings of one run of a tool, what it sends, and what it shows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from probes.base.frozen import frozen


@frozen
class Purpose:
    """What a test shows and what it does not, one line each: shown before it runs."""

    proves: str
    not_proven: str


class Load(NamedTuple):
    """What a test sends."""

    size_bytes: int | None = None  # None: all sizes, or the tool's own
    queue_pairs: int = 1
    is_bidirectional: bool = False


class Settings(ABC):
    """The settings of one run of a program."""

    tool: str  # the program
    is_endless: bool = False  # it prints rows until it is stopped

    @property
    def load(self) -> Load:
        """What the test sends."""
        return Load()

    @property
    def gpu_indices(self) -> tuple[int, ...]:
        """The GPUs that the test uses, in PCI order."""
        return ()

    @property
    def nics(self) -> tuple[str, ...] | None:
        """The RDMA devices that the test uses; None: any of this node."""
        return ()

    @property
    def required_tests(self) -> tuple[str, ...]:
        """The `Sample.what` that have to be measured, all of them; () if any sample will do."""
        return ()

    @property
    def measures(self) -> bool:
        """Whether the test gives figures, and not only passed and failed."""
        return True

    @abstractmethod
    def purpose(self, is_loopback: bool = False) -> Purpose:
        """Return what a test with these settings shows."""
