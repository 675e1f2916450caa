"""The distance between GPUs and NICs, NUMA nodes and BAR1."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from probes.base.evidence import Severity
from probes.facts.gpu.gpus import GpuFacts
from probes.facts.system.numa import NumaFacts
from probes.queries.finding import Status
from tests.probes.checks.pcie.nodes import ABSENT, SLOW, finding, healthy, with_functions, with_node
from tests.support.doctor import findings_on


def test_the_distance_is_unknown_without_numa_nodes() -> None:
    examination = healthy("pcie-l40s")
    assert finding(examination, "gpu-nic-cross-socket").status is Status.FOUND
    topology = examination.topology
    gpus = tuple(replace(gpu, numa_node=ABSENT) for gpu in topology.gpus)
    lost = replace(examination, topology=replace(topology, gpus=gpus))
    assert finding(lost, "gpu-nic-cross-socket").status is Status.UNKNOWN


@pytest.mark.parametrize(
    ("node", "name", "level"),
    [
        ("pcie-l40s", "gpu-nic-cross-socket", "SYS"),
        ("dgx-a100+gpu-nic-through-cpu", "gpu-nic-through-cpu", "PHB"),
    ],
)
def test_the_suggested_gdr_level_is_a_word(node: str, name: str, level: str) -> None:
    """Numbers in NCCL's log are not the numbers that NCCL_NET_GDR_LEVEL takes."""
    plan = findings_on(node)[name].fix
    assert plan is not None
    assert any(f"NCCL_NET_GDR_LEVEL={level} " in step.why for step in plan.steps)


def test_distance_is_not_judged_on_grace_and_in_guests() -> None:
    for name in ("gpu-nic-cross-socket", "gpu-nic-through-cpu", "gpu-nic-shared"):
        assert findings_on("gb200")[name].status is Status.PASSED
        assert findings_on("cloud-vm")[name].status is Status.PASSED


def test_a_node_without_any_near_pair_gets_a_note() -> None:
    examination = healthy("pcie-l40s")
    topology = examination.topology
    far = replace(examination, topology=replace(topology, gpus=topology.gpus[2:]))
    result = finding(far, "gpu-nic-cross-socket")
    assert (result.status, result.severity) == (Status.FOUND, Severity.NOTE)


def test_a_single_numa_node_is_ok() -> None:
    numa = healthy().node.numa
    assert isinstance(numa, NumaFacts)
    single = with_node(with_functions(healthy(), numa_node=ABSENT), numa=NumaFacts(numa.nodes[:1]))
    assert finding(single, "numa-node-unknown").status is Status.PASSED
    both = with_functions(healthy(), numa_node=ABSENT)
    assert finding(both, "numa-node-unknown").severity is Severity.WARNING
    assert finding(with_node(both, numa=SLOW), "numa-node-unknown").status is Status.UNKNOWN


@pytest.mark.parametrize(
    ("bar", "memory", "status"),
    [
        (256 << 20, 15 << 30, Status.FOUND),
        (256 << 20, ABSENT, Status.FOUND),
        (128 << 30, 80 << 30, Status.PASSED),
        (32 << 30, 32 << 30, Status.PASSED),
        (128 << 30, ABSENT, Status.UNKNOWN),
        (ABSENT, 80 << 30, Status.UNKNOWN),
    ],
)
def test_bar1_against_memory(bar: Any, memory: Any, status: Status) -> None:
    gpus = healthy().node.gpus
    assert isinstance(gpus, GpuFacts)
    changed = tuple(replace(gpu, bar1_total_bytes=bar, memory_total_bytes=memory) for gpu in gpus.gpus)
    assert finding(with_node(healthy(), gpus=replace(gpus, gpus=changed)), "bar1-too-small").status is status
