"""How the memory of GPUs with C2C links to a Grace CPU is managed.

NVreg_CoherentGPUMemoryMode: with "numa" Linux has each GPU's memory as a NUMA node without CPUs; with
"driver" (CDMM, since driver 580) only the NVIDIA driver manages it. The default is "numa" before driver 615
and "driver" since (NVIDIA HPC SDK 26.11 release notes), so without the option the NUMA nodes decide.
"""

from __future__ import annotations

from enum import Enum

from probes.base.unknown import Maybe, Unknown, known
from probes.facts.gpu.gpus import DriverFacts
from probes.facts.system.numa import NumaFacts

PARAMETER = "CoherentGPUMemoryMode"


class MemoryMode(Enum):
    """Who manages GPU memory."""

    NUMA = "GPU memory is a NUMA node"
    DRIVER = "the driver manages GPU memory (CDMM)"


def memory_mode(driver: DriverFacts, numa: Maybe[NumaFacts]) -> Maybe[MemoryMode]:
    """Return the mode of a node whose GPUs have C2C links, by the driver's option, else by the NUMA nodes."""
    option = known(driver.parameters, {}).get(PARAMETER, "").strip('" ')
    if option == "driver":
        return MemoryMode.DRIVER
    if isinstance(numa, Unknown):
        return numa
    return MemoryMode.NUMA if gpu_numa_nodes(numa) else MemoryMode.DRIVER


def gpu_numa_nodes(numa: Maybe[NumaFacts]) -> tuple[int, ...]:
    """Return the NUMA nodes that have memory and no CPUs: on Grace, those of GPUs."""
    nodes = () if isinstance(numa, Unknown) else numa.nodes
    return tuple(node.number for node in nodes if node.cpulist == "" and known(node.memory_bytes, 0))
