"""Whose memory a test had in truth, and how the NIC got at it, against what was asked for.

What perftest registers it prints before its rows; PerftestOutput takes a test that prints no line about a GPU
buffer for one of host memory, so that this alone is inferred.
"""

from __future__ import annotations

from probes.bandwidth.result import Result
from probes.bandwidth.samples import BY_DMABUF, BY_PEERMEM, HOST_MEMORY, INTEGRATED_MEMORY, About

_GPU_PATHS = (BY_DMABUF, BY_PEERMEM)


def memory_used(result: Result) -> str:
    """As `Result.memory`, but of what the tool told; what was asked for where it told nothing."""
    if result.memory not in _GPU_PATHS:
        return result.memory
    if any(told.startswith(HOST_MEMORY) for told in facts_about(result, About.MEMORY)):
        return HOST_MEMORY
    registered = facts_about(result, About.REGISTERED)
    return result.memory if not registered or result.memory in registered else registered[0]


def is_as_asked(result: Result) -> bool:
    """Whether the memory is not known to be another one than was asked for."""
    return memory_used(result) == result.memory


def how_it_is_known(result: Result) -> str:
    """What the tool said, or did not say, about memory that is not as asked; "" where it is."""
    used = memory_used(result)
    if used == result.memory:
        return ""
    told = facts_about(result, About.MEMORY)
    if INTEGRATED_MEMORY in told:
        return f"the tool itself says: {INTEGRATED_MEMORY}; {result.memory} was asked for"
    if used == HOST_MEMORY:
        return (
            "no line about a GPU buffer was printed, so that it is taken for host memory;"
            f" {result.memory} was asked for"
        )
    return f"the tool itself says: registered by {used}, not by {result.memory} as was asked for"


def facts_about(result: Result, about: About) -> list[str]:
    """What the tool said about something, each word once."""
    return list(dict.fromkeys(one.value for one in result.facts if one.about is about))
