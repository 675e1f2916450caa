"""A test that is ready to be run: its ends, what it can reach at most, and what it is good for."""

from __future__ import annotations

from dataclasses import dataclass

from probes.bandwidth.model.limits import Limit
from probes.bandwidth.model.request import Mode
from probes.bandwidth.tools.command import Command
from probes.bandwidth.tools.perftest_command import PerftestSettings
from probes.bandwidth.tools.tool import Purpose, Settings


@dataclass(frozen=True)
class PlannedProcess:
    """One process of a test."""

    name: str  # "server", "client", or the tool
    command: Command
    host: str = ""  # "": here; else there, by SSH, which the command has in it


@dataclass(frozen=True)
class Pair:
    """What a test goes between, as results are compared; "" where that has no part in it."""

    gpu: str = ""  # BDF
    gpu_label: str = ""  # "GPU0"
    nic: str = ""  # RDMA device
    port: int = 0
    far_nic: str = ""  # the other end's, where that is another device
    peer: str = ""


@dataclass(frozen=True)
class PlannedTest:
    """One test. Its ends are started in this order, each when the one before waits for it."""

    title: str  # "GPU0 → mlx5_0 · DMA-BUF"
    settings: Settings
    setup: Mode
    pair: Pair
    memory: str  # HOST_MEMORY, BY_PEERMEM or BY_DMABUF of samples.py; "" for tools without a NIC
    processes: tuple[PlannedProcess, ...]
    limit: Limit
    purpose: Purpose
    seconds: float  # about as long as it will take, once the ends have met
    time_limit_s: float  # after which it is ended as a failure
    end_after_s: float | None = None  # a test without an end is ended so long after its first row
    tcp_port: int = 0  # on which its server here listens; 0: none does
    for_peer: tuple[str, ...] = ()  # the argv that somebody at the peer has to start
    far: PerftestSettings | None = None  # the server's, where its device or GPU here is another one
    notes: tuple[str, ...] = ()  # what is done otherwise than one would wish, a sentence each

    @property
    def tool(self) -> str:
        """The program that measures: the last end's."""
        return self.processes[-1].command.tool


@dataclass(frozen=True)
class LeftOut:
    """A test of a series that this node cannot run."""

    title: str
    reason: str
    is_missed: bool = True  # False: nobody expected it, as of a port without a cable that is no GPU's nearest

    @property
    def path(self) -> str:
        """What it would have gone over, "GPU3 → mlx5_3", or a NIC alone."""
        return self.title.partition(" · ")[0]


@dataclass(frozen=True)
class Series:
    """Tests that are run one after another."""

    title: str
    tests: tuple[PlannedTest, ...]
    left_out: tuple[LeftOut, ...] = ()

    @property
    def seconds(self) -> float:
        """About how long all of it takes."""
        return sum(test.seconds for test in self.tests)
