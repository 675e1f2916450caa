"""A GPU's place in the NVLink fabric, and what its health mask means."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Reason, Unknown
from probes.facts.gpu.fabric import GpuFabric, fabric_of, problems_of
from probes.host.nvml import NvmlFacts, NvmlGpu
from probes.simulation.host import SimulatedHost

HEALTHY = 0b01_10_10_10_10


def gpu_of(node: str) -> NvmlGpu:
    facts = SimulatedHost(node).nvml()
    assert isinstance(facts, NvmlFacts)
    gpu = facts.gpus[0]
    assert isinstance(gpu, NvmlGpu)
    return gpu


def test_a_healthy_mask_has_no_problem() -> None:
    assert problems_of(HEALTHY) == ()


def test_each_condition_is_named() -> None:
    assert problems_of(HEALTHY ^ 0b11) == ("reduced NVLink bandwidth",)
    assert problems_of(0b01_01_01_00) == (
        "route recovery in progress",
        "a route is unhealthy",
        "recovery after an access timeout",
    )
    assert problems_of(5 << 8) == ("incorrect configuration: too few NVLinks",)
    assert problems_of(15 << 8) == ("incorrect configuration: reason 15",)
    assert problems_of(0b10 << 12 | 0b10 << 14) == (
        "no partition is assigned",
        "the rack's fabric manager is disconnected",
    )


@given(st.integers(0, 2**32 - 1))
def test_any_mask_is_read(mask: int) -> None:
    assert all(problems_of(mask))


def test_a_rack_has_a_cluster_and_a_board_has_none() -> None:
    rack, board = fabric_of(gpu_of("gb200")), fabric_of(gpu_of("hgx-b200"))
    assert (rack.state, rack.clique, rack.problems) == ("completed", 1, ())
    assert isinstance(rack.cluster, str)
    assert (board.state, board.clique) == ("completed", 0)
    assert isinstance(board.cluster, Unknown)


def test_a_driver_without_health_reports_no_problems_as_unknown() -> None:
    fabric = fabric_of(replace(gpu_of("gb200"), fabric_health=0))
    assert isinstance(fabric.problems, Unknown)


def test_without_nvml_all_is_unknown() -> None:
    missing = Unknown(Reason.NOT_THERE, "NVML")
    assert fabric_of(missing) == GpuFabric(missing, missing, missing, missing)
