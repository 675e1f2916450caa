"""Whether a program here can be bound to a NUMA node by numactl, and why not.

numactl binds the CPU by sched_setaffinity, which fails where none of the CPUs is allowed, and the memory by
set_mempolicy, to nodes of Mems_allowed only (numactl 2.0.16; Linux kernel/cgroup/cpuset.c): a node without
memory is none of these.
"""

from __future__ import annotations

from probes.bandwidth.tools.command import missing
from probes.base.unknown import Maybe, Unknown
from probes.facts.system.numa import NumaFacts, NumaNode, parse_list
from probes.snapshot.examination import Examination


def bound_to(
    examination: Examination, numa_node: int | None, is_here: bool = True
) -> tuple[int | None, tuple[str, ...]]:
    """The NUMA node that a program is to be bound to, None for none; and why not to the one wished.

    `is_here`: False for a program of a peer of the same type, in a cpuset of its own.
    """
    if numa_node is None:
        return None, ()
    reason = _why_not(examination, numa_node, is_here)
    if not reason:
        return numa_node, ()
    return None, (f"not bound to NUMA node {numa_node}, for {reason}: figures may vary",)


def _why_not(examination: Examination, number: int, is_here: bool) -> str:
    """What is known against it; "" where nothing is."""
    tools = examination.tools
    reason = (
        "which tools are installed is not known" if isinstance(tools, Unknown) else missing(tools, "numactl")
    )
    if reason:
        return reason
    numa = examination.node.numa
    nodes = numa.nodes if isinstance(numa, NumaFacts) else ()
    node = next((one for one in nodes if one.number == number), None)
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
