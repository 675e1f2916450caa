"""What the planner, the runner and the results ask of every bandwidth tool.

A tool is one object: its programs (probes/facts/system/tool_names.py), the settings of a run with the command
line and the limit they imply, the parser of its output, the files of probes/messages that explain what it
prints, and how to install it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import import_module

from probes.bandwidth.model.command import Command, Refused
from probes.bandwidth.model.limits import Limit
from probes.bandwidth.model.planned_series import Purpose, Settings
from probes.bandwidth.model.request import Request
from probes.bandwidth.model.samples import LINE_LIMIT
from probes.bandwidth.tools.failures import Failure, Output, most_telling
from probes.base.unknown import Maybe
from probes.facts.gpu.gpus import Gpu
from probes.facts.system.tool_names import TOOL_OF
from probes.facts.system.tools import ToolFacts
from probes.snapshot.examination import Examination


class LocalSettings(Settings):
    """The settings of a tool that is a single process on this node."""

    @property
    @abstractmethod
    def seconds(self) -> float:
        """About how long the test takes."""

    @property
    @abstractmethod
    def title(self) -> str:
        """The title of the test without the GPUs."""

    @property
    def memory(self) -> str:
        """The memory that it is to use, as PlannedTest.memory."""
        return ""

    @abstractmethod
    def command(self, tools: Maybe[ToolFacts]) -> Command | Refused:
        """Return the command, or the reason why there is none."""

    def limit(self, examination: Examination) -> Limit:
        """Return what the test can reach at most; without bounds if no link limits it."""
        return Limit(())


class Parser(ABC):
    """Reads the output of one run, line by line."""

    def feed(self, line: str) -> tuple[Output, ...]:
        """Return what a line reports: nothing for most lines."""
        return self.read(line[:LINE_LIMIT].rstrip())

    @abstractmethod
    def read(self, line: str) -> tuple[Output, ...]:
        """Return what a line of bounded length reports."""


class BandwidthTool(ABC):
    """One bandwidth tool."""

    messages: tuple[str, ...] = (
        "benchmarks",
        "cuda",
        "system",
    )  # files of probes/messages that explain its output
    source = ""  # where it is from: "from source: …"

    @abstractmethod
    def parser(self, program: str) -> Parser:
        """Return a parser for one run of a program."""

    @abstractmethod
    def purpose(self, program: str, with_gpu: bool = True) -> Purpose:
        """Return what a program shows, with any settings; `with_gpu`: its build can use GPU memory."""

    def install_hint(self, examination: Examination) -> str:
        """Return how to install the tool on this node."""
        return self.source


class LocalTool(BandwidthTool):
    """A tool that is a single process on this node."""

    is_per_gpu = True  # one test for each GPU; False: one test for all of them
    binds_to_gpu = False  # the process belongs on the GPU's NUMA node

    @abstractmethod
    def settings(self, request: Request, gpus: Sequence[Gpu], numa_node: int | None) -> LocalSettings:
        """Return the settings of a test of these GPUs."""

    def purpose(self, program: str, with_gpu: bool = True) -> Purpose:
        return self.settings(Request(tool=program), (), None).purpose()


@cache
def tool_of(program: str) -> BandwidthTool:
    """Return the tool of a program of TEST_TOOLS."""
    tool = import_module(f"probes.bandwidth.tools.{TOOL_OF[program].replace('-', '_')}").TOOL
    assert isinstance(tool, BandwidthTool)
    return tool


def explain(program: str, lines: Iterable[str], status: int | None, memory: str = "") -> Failure | None:
    """Return the failure that explains most of a program's run; None if it succeeded.

    `status` is the exit status, negative for a signal as in subprocess; None while the test runs. `memory`
    is the memory that was requested, HOST_MEMORY, BY_PEERMEM or BY_DMABUF, if known.
    """
    return most_telling(list(lines), status, tool_of(program).messages, memory)
