"""Whose memory a test had in truth, and how the NIC got at it, against what was asked for.

What perftest registers it prints before its rows; PerftestOutput takes a test that prints no line about a GPU
buffer for one of host memory, so that this alone is inferred. NCCL tells the way of each channel, and that a
NIC reaches GPU memory itself by /GDRDMA behind it (NCCL src/transport/net.cc): without it, it copies through
host memory.
"""

from __future__ import annotations

from probes.bandwidth.model.result import Ending, Result
from probes.bandwidth.tools.samples import BY_DMABUF, BY_PEERMEM, HOST_MEMORY, INTEGRATED_MEMORY, About

_GPU_PATHS = (BY_DMABUF, BY_PEERMEM)
_NETWORK, _SOCKET, _DIRECT = "NET/", "NET/Socket", "/GDRDMA"


def memory_used(result: Result) -> str:
    """As `Result.memory`, but of what the tool told; what was asked for where it told nothing."""
    if result.wants_nics:
        return _by_nccl(result)
    if result.memory not in _GPU_PATHS:
        return result.memory
    if any(told.startswith(HOST_MEMORY) for told in facts_about(result, About.MEMORY)):
        return HOST_MEMORY
    registered = facts_about(result, About.REGISTERED)
    return result.memory if not registered or result.memory in registered else registered[0]


def _by_nccl(result: Result) -> str:
    """`Result.memory` where NICs reached GPU memory, by some way at least; else what took their place."""
    routes = nic_routes(result)
    if any(one.startswith(_SOCKET) for one in routes):
        return "TCP in place of RDMA"
    if not routes:
        return "an unknown way"
    return result.memory if any(_DIRECT in one for one in routes) else HOST_MEMORY


def nic_routes(result: Result) -> list[str]:
    """The ways over a network that NCCL told of."""
    return [one for one in facts_about(result, About.ROUTE) if one.startswith(_NETWORK)]


def is_as_requested(result: Result) -> bool:
    """Whether the memory is not known to be another one than was asked for."""
    return memory_used(result) == result.memory


def is_measured(result: Result) -> bool:
    """Whether it can stand for its test: it came to its end, with the memory that was asked for."""
    return result.ending is Ending.DONE and is_as_requested(result)


def mismatch_evidence(result: Result) -> str:
    """What the tool said, or did not say, about memory that is not as asked; "" where it is."""
    used = memory_used(result)
    if used == result.memory:
        return ""
    if result.wants_nics:
        return f"{used}: {_told_by_nccl(result)}"
    told = facts_about(result, About.MEMORY)
    if INTEGRATED_MEMORY in told:
        return f"the tool reports: {INTEGRATED_MEMORY}; {result.memory} was requested"
    if used == HOST_MEMORY:
        return (
            "no line about a GPU buffer was printed, so that it is taken for host memory;"
            f" {result.memory} was requested"
        )
    return f"the tool reports: registered by {used}, not by {result.memory} as requested"


def _told_by_nccl(result: Result) -> str:
    routes = nic_routes(result)
    if not routes:
        return "NCCL told of no way over a NIC, and so nothing is known of GPUDirect RDMA"
    if any(one.startswith(_SOCKET) for one in routes):
        return "NCCL found no RDMA NIC that it could use (gdrtop check tells why)"
    return "no GDRDMA in any way: NCCL copied through host memory (gdrtop check tells why)"


def facts_about(result: Result, about: About) -> list[str]:
    """What the tool said about something, each word once."""
    return list(dict.fromkeys(one.value for one in result.facts if one.about is about))
