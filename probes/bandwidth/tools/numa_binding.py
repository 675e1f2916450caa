"""Whether numactl can bind a program on this node to a NUMA node, and why not.

numactl binds the CPU by sched_setaffinity, which fails if none of the CPUs is allowed, and the memory by
set_mempolicy, only to nodes of Mems_allowed (numactl 2.0.16; Linux kernel/cgroup/cpuset.c). A node without
memory is never one of them.
"""

from __future__ import annotations

from probes.bandwidth.model.command import missing
from probes.base.unknown import Maybe, Unknown
from probes.facts.system.numa import NumaFacts, NumaNode, parse_list
from probes.snapshot.examination import Examination


def bound_to(
    examination: Examination, numa_node: int | None, is_here: bool = True
) -> tuple[int | None, tuple[str, ...]]:
    """Return the NUMA node to bind a program to, or None and a note why not to the requested one.

    `is_here`: False for a program on a peer of the same type, which has its own cpuset.
    """
    if numa_node is None:
        return None, ()
    reason = _why_not(examination, numa_node, is_here)
    if not reason:
        return numa_node, ()
    return None, (f"not bound to NUMA node {numa_node} ({reason}): figures may vary",)


def _why_not(examination: Examination, number: int, is_here: bool) -> str:
    """Return why the node cannot be used; "" if nothing speaks against it."""
    tools = examination.tools
    if isinstance(tools, Unknown):
        return "the installed tools are unknown"
    if reason := missing(tools, "numactl"):
        return reason
    numa = examination.node.numa
    nodes = numa.nodes if isinstance(numa, NumaFacts) else ()
    node = next((each for each in nodes if each.number == number), None)
    if node is not None and node.cpulist == "":
        return "it has no CPUs"
    if node is not None and node.memory_bytes == 0:
        return "it has no memory"
    allowed = examination.cpuset
    if isinstance(allowed, Unknown) or not is_here:
        return ""
    if node is not None and _has_none(node, allowed.cpus):
        return f"gdrtop may use none of its CPUs (Cpus_allowed_list {allowed.cpus})"
    memory = _numbers(allowed.memory_nodes)
    if memory is not None and number not in memory:
        return f"gdrtop may not use its memory (Mems_allowed_list {allowed.memory_nodes})"
    return ""


def _has_none(node: NumaNode, allowed: Maybe[str]) -> bool:
    own, ours = _numbers(node.cpulist), _numbers(allowed)
    return own is not None and ours is not None and not own & ours


def _numbers(listed: Maybe[str]) -> frozenset[int] | None:
    numbers = None if isinstance(listed, Unknown) else parse_list(listed)
    return None if numbers is None else frozenset(numbers)
