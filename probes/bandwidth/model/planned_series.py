"""A test that is ready to run: its settings, its processes, what it can reach at most, and what it shows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from probes.bandwidth.model.command import Command
from probes.bandwidth.model.expected import Expectation
from probes.bandwidth.model.limits import Limit
from probes.bandwidth.model.request import Mode
from probes.base.frozen import frozen


@frozen
class PlannedProcess:
    """One process of a test."""

    name: str  # "server", "client", or the program
    command: Command
    host: str = ""  # "": this node; else the peer, by an SSH that is part of the command


@frozen
class Pair:
    """What a test runs between, as results are compared; "" for what takes no part."""

    gpu: str = ""  # BDF
    gpu_label: str = ""  # "GPU0"
    nic: str = ""  # RDMA device
    port: int = 0
    far_nic: str = ""  # the other end's, if that is another device
    peer: str = ""


@frozen
class PlannedTest:
    """One test. Its processes start in this order, each when the one before it waits."""

    title: str  # "GPU0 → mlx5_0 · DMA-BUF"
    settings: Settings
    setup: Mode
    pair: Pair
    memory: str  # HOST_MEMORY, BY_PEERMEM, BY_DMABUF or STAGED of samples.py; "": the tool's own choice
    processes: tuple[PlannedProcess, ...]
    limit: Limit
    purpose: Purpose
    seconds: float  # estimated duration, from the moment the ends connect
    time_limit_s: float  # after which it is stopped as failed
    end_after_s: float | None = None  # an endless test is stopped this long after its first row
    tcp_port: int = 0  # on which its server on this node listens; 0: no server here
    for_peer: tuple[str, ...] = ()  # the argv that the user has to start on the peer
    far: Settings | None = None  # the server's, if its device or GPU on this node is another one
    expected: Expectation | None = None  # what this machine type should reach; None: not known
    notes: tuple[str, ...] = ()  # what differs from the request or from the best, a sentence each

    @property
    def tool(self) -> str:
        """The program that measures: the last one."""
        return self.processes[-1].command.tool


@frozen
class LeftOut:
    """A test of a series that this node cannot run."""

    title: str
    reason: str
    is_missed: bool = True  # False: not expected to run, such as a port without a cable, far from any GPU

    @property
    def path(self) -> str:
        """The path that it would have used, "GPU3 → mlx5_3", or only a NIC."""
        return self.title.partition(" · ")[0]


@frozen
class Series:
    """Tests that run one after another."""

    title: str
    tests: tuple[PlannedTest, ...]
    left_out: tuple[LeftOut, ...] = ()

    @property
    def seconds(self) -> float:
        """Estimated duration of all tests."""
        return sum(test.seconds for test in self.tests)


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
    required_tests: tuple[str, ...] = ()  # the `Sample.what` that have to be measured; (): any will do

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

    @abstractmethod
    def purpose(self, is_loopback: bool = False) -> Purpose:
        """Return what a test with these settings shows."""
