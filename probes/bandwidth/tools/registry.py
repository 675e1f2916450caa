"""The bandwidth tools by the names of their programs; tool_names.py lists them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import import_module

from probes.bandwidth.tools.failures import Failure, most_telling
from probes.bandwidth.tools.tool import BandwidthTool
from probes.facts.system.tool_names import TOOL_OF


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
    return most_telling(list(lines), status, tool_of(program).patterns, memory)
