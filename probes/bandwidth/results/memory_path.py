"""Which memory a test really used, and how the NIC accessed it, compared with what was requested.

perftest prints before its rows what it registers. PerftestOutput takes a test that prints no line about a GPU
buffer for one of host memory: only this is inferred. NCCL prints the transport of each channel, with /GDRDMA
behind it if the NIC accesses GPU memory itself (NCCL src/transport/net.cc); without it, it copies through
host memory.
"""

from __future__ import annotations

from probes.bandwidth.model.result import Ending, Result
from probes.bandwidth.model.samples import GPU_PATHS, HOST_MEMORY, INTEGRATED_MEMORY, STAGED, About

_NETWORK, _SOCKET, _DIRECT = "NET/", "NET/Socket", "/GDRDMA"


def memory_used(result: Result) -> str:
    """Return the memory that the tool reported, as in `Result.memory`; if none, the requested one."""
    if result.over_network:
        return _memory_of_nccl(result)
    if result.memory not in GPU_PATHS:
        return result.memory
    if any(memory.startswith(HOST_MEMORY) for memory in facts_about(result, About.MEMORY)):
        return HOST_MEMORY
    registered = facts_about(result, About.REGISTERED)
    return result.memory if not registered or result.memory in registered else registered[0]


def _memory_of_nccl(result: Result) -> str:
    """Return `Result.memory` if the routes are as requested; else what was used instead.

    Staged needs every route to be; GPUDirect RDMA any, since NCCL may send through host memory by default.
    """
    routes = nic_routes(result)
    if any(route.startswith(_SOCKET) for route in routes):
        return "TCP instead of RDMA"
    if not routes:
        return "an unknown path"
    is_direct = any(_DIRECT in route for route in routes)
    if result.memory == STAGED:
        return "GPUDirect RDMA" if is_direct else STAGED
    return result.memory if is_direct else HOST_MEMORY


def nic_routes(result: Result) -> list[str]:
    """Return the network routes that NCCL reported."""
    return [route for route in facts_about(result, About.ROUTE) if route.startswith(_NETWORK)]


def staged_routes(result: Result) -> list[str]:
    """Return the network routes on which NCCL copied through host memory."""
    return [route for route in nic_routes(result) if _DIRECT not in route]


def is_as_requested(result: Result) -> bool:
    """Return whether the test used the requested memory, as far as gdrtop can tell."""
    return memory_used(result) == result.memory


def is_measured(result: Result) -> bool:
    """Return whether the result can stand for its test: it is done, with the requested memory."""
    return result.ending is Ending.DONE and is_as_requested(result)


def mismatch_evidence(result: Result) -> str:
    """Return what the tool reported about memory that is not the requested one; "" if it is."""
    used = memory_used(result)
    if used == result.memory:
        return ""
    if result.over_network:
        return f"{used}: {_nccl_evidence(result)}"
    if INTEGRATED_MEMORY in facts_about(result, About.MEMORY):
        return f"the tool reports {INTEGRATED_MEMORY}; {result.memory} was requested"
    if used == HOST_MEMORY:
        return (
            "the tool printed no line about a GPU buffer, so it used host memory;"
            f" {result.memory} was requested"
        )
    return f"the tool reports registration via {used}, but {result.memory} was requested"


def _nccl_evidence(result: Result) -> str:
    if not (routes := nic_routes(result)):
        return "NCCL reported no route over a NIC, so gdrtop cannot tell whether it used GPUDirect RDMA"
    if any(route.startswith(_SOCKET) for route in routes):
        return "NCCL found no RDMA NIC that it could use (gdrtop check shows why)"
    if direct := [route for route in routes if _DIRECT in route]:
        return f"NCCL used {direct[0]} although NCCL_NET_GDR_LEVEL=LOC forbids it"
    return "no route has GDRDMA: NCCL copied through host memory (gdrtop check shows why)"


def facts_about(result: Result, about: About) -> list[str]:
    """Return the values that the tool reported about something, each once."""
    return list(dict.fromkeys(fact.value for fact in result.facts if fact.about is about))
