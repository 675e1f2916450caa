"""The failure patterns of all tools at once."""

from collections.abc import Iterable

from probes.bandwidth.tools.failures import FIRST_PATTERNS, LAST_PATTERNS, Failure, most_telling
from probes.bandwidth.tools.tool import tool_of
from probes.facts.system.tool_names import TEST_TOOLS

TOOLS = tuple(dict.fromkeys(tool_of(program) for program in TEST_TOOLS))
PATTERNS = (*FIRST_PATTERNS, *(row for tool in TOOLS for row in tool.failure_patterns), *LAST_PATTERNS)


def explain(lines: Iterable[str], status: int | None, memory: str = "") -> Failure | None:
    """Return the failure that explains most, whatever tool printed the lines."""
    return most_telling(list(lines), status, PATTERNS, memory)
