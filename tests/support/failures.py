"""Failures of all bandwidth tools at once."""

from collections.abc import Iterable

from probes.bandwidth.tools.failures import Failure, most_telling
from probes.bandwidth.tools.tool import tool_of
from probes.facts.system.tool_names import TEST_TOOLS

MESSAGES = tuple(sorted({file for program in TEST_TOOLS for file in tool_of(program).messages}))
"""The files of messages that explain what they print."""


def explain(lines: Iterable[str], status: int | None, memory: str = "") -> Failure | None:
    """Return the failure that explains most, whatever tool printed the lines."""
    return most_telling(list(lines), status, MESSAGES, memory)
