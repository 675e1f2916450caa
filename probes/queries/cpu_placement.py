"""Processes that may only run on CPUs of another NUMA node than their GPU's."""

from __future__ import annotations

from collections.abc import Mapping

from probes.base.unknown import Unknown
from probes.facts.gpu.gpus import GpuFacts
from probes.facts.jobs.processes import Process, ProcessFacts
from probes.facts.node import Node
from probes.facts.system.numa import parse_list
from probes.host.nvml import NvmlLive


def far_from_gpu(node: Node, facts: ProcessFacts, gpus: Mapping[str, NvmlLive]) -> tuple[int, ...]:
    """Return the pids with a CPU affinity that excludes all CPUs near their GPUs (`gpus`: by BDF).

    A process for which that is unknown is left out, and so is one that uses GPUs of several NUMA nodes.
    """
    cpus = _cpus_of_gpus(node)
    used: dict[int, list[frozenset[int]]] = {}
    for bdf, gpu in gpus.items():
        for pid in () if isinstance(gpu.processes, Unknown) else gpu.processes:
            used.setdefault(pid, []).append(cpus.get(bdf, frozenset()))
    return tuple(
        process.pid
        for process in facts.processes
        if len(set(near := used.get(process.pid, []))) == 1 and near[0] and _is_far(process, near[0])
    )


def _is_far(process: Process, near: frozenset[int]) -> bool:
    if isinstance(process.usage, Unknown) or isinstance(process.usage.cpus, Unknown):
        return False
    allowed = parse_list(process.usage.cpus)
    return bool(allowed) and near.isdisjoint(allowed or ())


def _cpus_of_gpus(node: Node) -> dict[str, frozenset[int]]:
    """Return the CPUs of each GPU's NUMA node by BDF, where both are known."""
    if isinstance(node.numa, Unknown) or not isinstance(node.gpus, GpuFacts):
        return {}
    cpus = {
        numa.number: frozenset(parse_list(numa.cpulist) or ())
        for numa in node.numa.nodes
        if not isinstance(numa.cpulist, Unknown)
    }
    return {
        gpu.bdf: cpus.get(gpu.numa_node, frozenset())
        for gpu in node.gpus.gpus
        if not isinstance(gpu.numa_node, Unknown)
    }
