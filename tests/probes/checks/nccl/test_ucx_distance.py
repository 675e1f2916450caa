"""UCX on a GPU whose NUMA node has no NIC."""

from __future__ import annotations

from dataclasses import replace

import pytest

from probes.base.evidence import Severity
from probes.base.unknown import Reason, Unknown
from probes.checks.registry import findings
from probes.queries.finding import Finding, Status
from probes.simulation.host import SimulatedHost
from probes.simulation.node.jobs.processes import add_rank
from probes.snapshot.examination import Examination, examine

_UCP = "/opt/ucx/libucp.so.0.0.0"


def examination_with_job(libraries: tuple[str, ...], variables: dict[str, str], node: str) -> Examination:
    """A job on the last GPU of an Intel node."""
    host = SimulatedHost(node, clock=lambda: 1000.0)
    host.tree.add("/proc/cpuinfo", "vendor_id : GenuineIntel\ncpu family : 6\nmodel : 143\n")
    add_rank(host.tree, 46000, len(host.tree.gpus) - 1, variables, libraries)
    return examine(host)


def finding_on(examination: Examination) -> Finding:
    (finding,) = findings(examination, only={"ucx-far-nic"})
    return finding


@pytest.mark.parametrize(
    ("libraries", "variables", "node", "is_found"),
    [
        ((_UCP,), {}, "pcie-l40s", True),
        ((_UCP,), {"UCX_DISTANCE_BW": "auto,sys:16500MBs"}, "pcie-l40s", False),
        ((_UCP, "/opt/nccl/libnccl.so.2.27.5"), {}, "pcie-l40s", False),
        ((_UCP,), {}, "hgx-h100", False),
    ],
)
def test_ucx_with_a_nic_on_another_numa_node(
    libraries: tuple[str, ...], variables: dict[str, str], node: str, is_found: bool
) -> None:
    """openucx/ucx issue 11121: “Though with UCX it does not work if the GPU is on a different NUMA node”."""
    finding = finding_on(examination_with_job(libraries, variables, node))
    assert (finding.status is Status.FOUND) == is_found
    assert not is_found or finding.severity is Severity.NOTE


def test_a_nic_without_a_numa_node_may_be_the_near_one() -> None:
    examination = examination_with_job((_UCP,), {}, "pcie-l40s")
    assert finding_on(examination).status is Status.FOUND
    topology = examination.topology
    nics = (replace(topology.nics[0], numa_node=Unknown(Reason.IO_ERROR)), *topology.nics[1:])
    finding = finding_on(replace(examination, topology=replace(topology, nics=nics)))
    assert finding.status is Status.UNKNOWN
    assert nics[0].label in finding.cause
