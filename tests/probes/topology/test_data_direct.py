"""Paths of GB300, whose NICs reach GPU memory by functions at the GPUs' own switches."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from probes.bandwidth.model.limits import limit_of_host_memory, limit_of_pair
from probes.base.unknown import Reason, Unknown
from probes.nccl.topology_file import system_of, xml_text
from probes.simulation.host import SimulatedHost
from probes.snapshot.examination import Examination, examine
from probes.topology.hops import Smi
from probes.topology.nccl_paths import Nccl
from probes.topology.paths import Topology, build

GPU1, DMA = "0009:06:00.0", "0009:03:00.0"


@cache
def gb300(faults: str = "") -> Examination:
    return examine(SimulatedHost(f"gb300{faults}", clock=lambda: 1000.0))


def topology() -> Topology:
    return gb300().topology


def test_the_path_to_a_gpu_ends_at_the_nics_own_dma_function() -> None:
    path = topology().path(GPU1, "mlx5_0")
    assert (path.nccl, path.nccl_pcie, path.smi) == (Nccl.PXB, Nccl.PXB, Smi.NODE)
    assert path.by_data_direct
    ids = [hop.id for hop in path.hops]
    assert (ids[0], ids[-1]) == (GPU1, DMA)
    assert "host bridge" not in [hop.kind for hop in path.hops]
    assert path.gbps == 64 * 16 * 236 / 256
    assert topology().best_nics[GPU1][0] == "mlx5_0"


def test_other_gpus_reach_the_nic_over_nvlink() -> None:
    assert topology().path("0008:06:00.0", "mlx5_0").nccl is Nccl.PXN
    assert topology().path("0018:06:00.0", "mlx5_0").nccl is Nccl.PXN


def test_the_path_between_nics_has_their_own_functions() -> None:
    hops = topology().path("mlx5_0", "mlx5_1").hops
    assert (hops[0].id, hops[-1].id) == ("0000:03:00.0", "0002:03:00.0")


def test_without_an_answer_the_path_is_that_of_the_nic_over_c2c() -> None:
    node = replace(topology().node, data_direct=Unknown(Reason.NOT_RECORDED, "libmlx5"))
    path = build(node).path(GPU1, "mlx5_0")
    assert (path.nccl, path.by_data_direct) == (Nccl.P2C, False)


def test_the_cpu_is_no_limit_with_data_direct() -> None:
    examination = gb300()
    direct = limit_of_pair(examination, GPU1, "mlx5_0")
    assert direct.least is not None
    assert direct.least.name == "port 1 of mlx5_0"
    assert "PCIe link of mlx5_0_dma" in [bound.name for bound in direct.bounds]
    by_cpu = limit_of_pair(examination, GPU1, "mlx5_0", data_direct=False)
    host = limit_of_host_memory(examination, "mlx5_0")
    assert by_cpu.gbps == host.gbps
    assert by_cpu.least is not None
    assert by_cpu.least.nominal_gbps == 32 * 16 * 128 / 130


def test_a_hidden_function_leaves_the_limit_of_the_cpu() -> None:
    examination = gb300("+data-direct-hidden")
    limit = limit_of_pair(examination, examination.topology.gpus[1].id, "mlx5_0")
    assert limit.least is not None
    assert limit.least.nominal_gbps == 32 * 16 * 128 / 130


def test_the_topology_file_of_the_node_has_the_dma_functions() -> None:
    text = xml_text(system_of(topology()))
    assert f'busid="{DMA}" class="0x080100" vendor="0x15b3" device="0x2100"' in text
    assert 'busid="0000:03:00.0" class="0x020700"' in text
