"""Simulated nodes can exist: what excludes what, as data, over all nodes and faults."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from probes.checks.registry import findings
from probes.facts.system.platform import ORACLE_TAG
from probes.live.job_examination import examine_and_sample
from probes.queries.finding import Status
from probes.simulation.faults.catalogue import FAULTS, NoSuchFault
from probes.simulation.host import SimulatedHost
from probes.simulation.node.model.names import SIMULATED_NAMES
from probes.simulation.node.model.tree import Tree
from probes.snapshot.condition import CONTRADICTED
from tests.support.tiers import USUAL_FAULTS, nodes_to_try, usual

# Options of the driver: the versions from and before which it has them (nv-reg.h; NVIDIA/aicr issue 2459).
OPTIONS = {
    "GrdmaPciTopoCheckOverride": ((570, 86, 16), (595, 58, 0)),
    "CoherentGPUMemoryMode": ((580, 65, 6), (1000, 0, 0)),
}
# Text of the driver's log: the first version that writes it, and the first without it (nv-dmabuf.c).
LINES = {
    "PCI topology not supported for dma-buf": ((580, 65, 6), (1000, 0, 0)),
    "importer unable to handle MMIO": ((580, 65, 6), (1000, 0, 0)),
    "dynamic attachment with no P2P support": ((515, 43, 4), (580, 65, 6)),
}
# The first NCCL with code for a GPU, and the first driver that knows it. Sources: NCCL's Makefile by tag, its
# release notes of 2.32.3; g_nv_name_released.h of the open modules.
GPUS = {
    (9, 0): ((2, 15, 1), (520, 56, 6)),
    (10, 0): ((2, 25, 1), (570, 86, 15)),
    (10, 3): ((2, 25, 1), (580, 82, 7)),
    (10, 7): ((2, 32, 3), (610, 0, 0)),
    (12, 1): ((2, 25, 1), (580, 94, 13)),
}
# The end of a cloud's kernel release, and what DMI says there (data sources of cloud-init).
CLOUDS = {
    "-aws": ("sys_vendor", "Amazon EC2"),
    "-azure": ("chassis_asset_tag", "7783-7084-3265-9085-8269-3286-77"),
    "-gcp": ("sys_vendor", "Google"),
    "-oracle": ("chassis_asset_tag", ORACLE_TAG),
}
EFA = "1d0f:"
# Faults that are the impossible: a driver or an NCCL that is too old, by their own names.
TOO_OLD = ("dmabuf-driver-too-old", "peermem-not-on-disk-old-driver", "nccl-older-than-gpu")
CASES = [*SIMULATED_NAMES, *(f"{fault.on}+{name}" for name, fault in FAULTS.items() if name not in TOO_OLD)]


def impossible(tree: Tree) -> Iterator[str]:
    """Yield what cannot be on one node."""
    node = tree.description
    driver = node.driver.numbers
    parameters = tree.text("/proc/driver/nvidia/params")
    for name, (first, removed) in OPTIONS.items():
        if f"{name}:" in parameters and not first <= driver < removed:
            yield f"driver {node.driver.version} with {name}"
    for text, (first, removed) in LINES.items():
        is_its_own = first <= driver < removed and not node.gpu.c2c
        if any(text in line for line in tree.kernel_log) and not is_its_own:
            yield f"driver {node.driver.version}, {node.gpu.c2c} C2C links: {text}"
    nccl, first = GPUS.get(tuple(node.gpu.capability), ((0, 0, 0), (0, 0, 0)))  # type: ignore[arg-type]
    if driver < first:
        yield f"driver {node.driver.version} with {node.gpu.name}"
    maps = "".join(tree.text(f"/proc/{program.pid}/maps") for program in tree.programs if program.nics)
    for version in set(re.findall(r"libnccl\.so\.(\d+\.\d+\.\d+)", maps)):
        if tuple(map(int, version.split("."))) < nccl:
            yield f"NCCL {version} with {node.gpu.name}"
    if node.driver.flavor == "proprietary" and node.gpu.capability[0] >= 10:
        yield f"the proprietary driver with {node.gpu.name}"
    for end, (file, text) in CLOUDS.items():
        if node.kernel.endswith(end) and text not in tree.text(f"/sys/class/dmi/id/{file}"):
            yield f"kernel {node.kernel} without {text!r} in {file}"
    if any(nic.id.startswith(EFA) for nic in node.nic.values()) and not node.kernel.endswith("-aws"):
        yield f"EFA with kernel {node.kernel}"


@pytest.mark.parametrize("name", CASES)
def test_nodes_and_their_faults_can_exist(name: str) -> None:
    assert not list(impossible(SimulatedHost(name, clock=lambda: 1000.0).tree))


@pytest.mark.parametrize("fault", usual(FAULTS, USUAL_FAULTS))
def test_no_job_uses_a_path_that_its_node_cannot_have(fault: str) -> None:
    """gdrtop's own check finds none, on the fault's node and on others."""
    for node in nodes_to_try(fault):
        if fault == CONTRADICTED:
            continue
        try:
            host = SimulatedHost(f"{node}+{fault}", clock=lambda: 1000.0)
        except NoSuchFault:
            continue
        examination, _ = examine_and_sample(host)
        (finding,) = findings(examination, only=(CONTRADICTED,))
        assert finding.status is not Status.FOUND, (node, finding.cause)
