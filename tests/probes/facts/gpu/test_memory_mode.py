"""Who manages GPU memory on Grace."""

import pytest

from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.gpu.gpus import DriverFacts, Flavor
from probes.facts.gpu.memory_mode import MemoryMode, memory_mode
from probes.facts.system.numa import NumaFacts, NumaNode

CPUS = NumaNode(0, "0-71", 480 << 30, {0: 10})
GPU_MEMORY = NumaNode(2, "", 277 << 30, {0: 80})
FOR_MIG = NumaNode(3, "", 0, {0: 80})
ABSENT = Unknown(Reason.NOT_THERE, "/sys/devices/system/node")


@pytest.mark.parametrize(
    ("option", "nodes", "mode"),
    [
        ('"driver"', (CPUS,), MemoryMode.DRIVER),
        ('"numa"', (CPUS, GPU_MEMORY), MemoryMode.NUMA),
        ('""', (CPUS, GPU_MEMORY, FOR_MIG), MemoryMode.NUMA),
        ('""', (CPUS, FOR_MIG), MemoryMode.DRIVER),
    ],
)
def test_the_option_or_the_numa_nodes_decide(
    option: str, nodes: tuple[NumaNode, ...], mode: MemoryMode
) -> None:
    parameters = {"CoherentGPUMemoryMode": option}
    driver = DriverFacts("580.95.05", Flavor.OPEN, parameters, "13.0", None)
    assert memory_mode(driver, NumaFacts(nodes)) is mode


@pytest.mark.parametrize("parameters", [{}, ABSENT])
def test_without_numa_nodes_the_mode_is_unknown(parameters: Maybe[dict[str, str]]) -> None:
    driver = DriverFacts("570.124.06", Flavor.OPEN, parameters, "12.8", None)
    assert memory_mode(driver, ABSENT) is ABSENT
