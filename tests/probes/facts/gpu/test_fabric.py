"""A GPU's place in the NVLink fabric, and what its health mask means."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Reason, Unknown
from probes.facts.gpu.gpus import NVLSM, GpuFabric, addresses_of, fabric_of, probe_fabric, problems_of
from probes.facts.pci.functions import PciFacts
from probes.host.machine.local import LocalHost
from probes.host.nvml import NvmlFacts, NvmlGpu
from probes.simulation.host import SimulatedHost
from tests.support.trees import write

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


# NVLSM, ib_umad and IMEX


WITH_BRIDGE = PciFacts({}, {}, {"0000:05:00.0": "VPD has SMDL=SW_MNG"})
WITHOUT = PciFacts({}, {})


def test_a_board_with_a_bridge() -> None:
    facts = probe_fabric(SimulatedHost("hgx-b200"), WITH_BRIDGE)
    assert (facts.nvlsm_program, facts.nvlsm_runs, facts.umad_loaded) == (NVLSM, True, True)


def test_other_nodes_are_not_searched_for_nvlsm() -> None:
    facts = probe_fabric(SimulatedHost("hgx-h100"), WITHOUT)
    assert isinstance(facts.nvlsm_runs, Unknown)
    assert facts.nvlsm_runs.reason is Reason.NOT_THERE
    assert facts.umad_loaded is False


def test_hidden_processes_are_unknown_and_not_absent(tmp_path: Path) -> None:
    write(tmp_path, "/proc/77/comm", "bash\n")
    facts = probe_fabric(LocalHost(str(tmp_path)), WITH_BRIDGE)
    assert isinstance(facts.nvlsm_runs, Unknown)
    write(tmp_path, "/proc/1/comm", "systemd\n")
    assert probe_fabric(LocalHost(str(tmp_path)), WITH_BRIDGE).nvlsm_runs is False
    write(tmp_path, "/proc/78/comm", "nvlsm\n")
    assert probe_fabric(LocalHost(str(tmp_path)), WITH_BRIDGE).nvlsm_runs is True


def test_imex_channels_and_the_nodes_of_the_domain(tmp_path: Path) -> None:
    facts = probe_fabric(LocalHost(str(tmp_path)), WITHOUT)
    assert isinstance(facts.imex_channels, Unknown)
    assert isinstance(facts.imex_nodes, Unknown)
    for name in ("channel0", "channel2047", "other"):
        write(tmp_path, f"/dev/nvidia-caps-imex-channels/{name}", "")
    write(tmp_path, "/etc/nvidia-imex/nodes_config.cfg", "# the domain\n10.0.0.1\n\n10.0.0.2\n")
    facts = probe_fabric(LocalHost(str(tmp_path)), WITHOUT)
    assert (facts.imex_channels, facts.imex_nodes) == (2, 2)


@given(st.text())
def test_any_list_of_nodes_is_counted(text: str) -> None:
    assert len(addresses_of(text)) <= len(text.splitlines())
