"""Paths that leave PCIe: NVLink, a relaying GPU, chip-to-chip links, a peer's NIC."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from probes.base.unknown import Reason, Unknown
from probes.facts.gpu.gpus import GpuFacts
from probes.facts.node import Node, probe_node
from probes.host.machine.local import LocalHost
from probes.topology.nccl_paths import Nccl
from probes.topology.paths import Topology, build
from tests.support.trees import MELLANOX, NVIDIA, add_function, add_rdma_device

SILENT = Unknown(Reason.DRIVER_ERROR, "NVML")
GPUS = [f"0000:0{bus}:00.0" for bus in (1, 2, 3)]


def three_gpus(root: Path) -> None:
    """Each on a root port of its own; the third on the other NUMA node."""
    for bus, numa in ((1, 0), (2, 0), (3, 1)):
        add_function(root, gpu_path(bus), NVIDIA, 0x2330, 0x030200, numa)


def gpu_path(bus: int) -> tuple[str, ...]:
    bridge = "pci0000:80" if bus == 3 else "pci0000:00"
    return bridge, f"0000:{bridge[-2:]}:0{bus}.0", f"0000:0{bus}:00.0"


def add_nic(
    root: Path, name: str, *path: str, numa: int = 0, rate: str = "400 Gb/sec (4X NDR)", up: bool = True
) -> None:
    add_function(root, path, MELLANOX, 0x1021, 0x020700, numa)
    add_rdma_device(root, name, path, rate=rate, state="4: ACTIVE" if up else "1: DOWN")


def topology(root: Path, **of_gpus: list[Any]) -> Topology:
    """With facts NVML would give, one for each GPU."""
    node: Node = probe_node(LocalHost(str(root)))
    assert isinstance(node.gpus, GpuFacts)
    gpus = list(node.gpus.gpus)
    for name, values in of_gpus.items():
        gpus = [replace(gpu, **{name: value}) for gpu, value in zip(gpus, values, strict=True)]
    return build(replace(node, gpus=replace(node.gpus, gpus=tuple(gpus))))


def test_gpus_that_share_a_third_gpu_have_no_bonded_links(tmp_path: Path) -> None:
    three_gpus(tmp_path)
    a, b, c = GPUS
    found = topology(tmp_path, nvlink_peers=[((b, 2),), ((a, 2), (c, 2)), ((b, 2),)])
    assert (found.path(a, b).nccl, found.path(a, b).nvlinks) == (Nccl.NVL, 2)
    assert (found.path(a, c).nccl, found.path(a, c).nvlinks) == (Nccl.NVB, 0)


def test_a_switch_no_one_sees_still_joins_gpus(tmp_path: Path) -> None:
    three_gpus(tmp_path)
    switches = (("0000:f0:00.0", 9), ("0000:f1:00.0", 9))
    found = topology(tmp_path, nvlink_peers=[switches, switches, ()])
    assert found.path(GPUS[0], GPUS[1]).nvlinks == 18
    assert found.path(GPUS[0], GPUS[2]).nccl is Nccl.SYS


def test_one_gpu_that_does_not_answer_does_not_hide_the_links_to_it(tmp_path: Path) -> None:
    three_gpus(tmp_path)
    found = topology(tmp_path, nvlink_peers=[((GPUS[1], 4),), SILENT, SILENT])
    assert found.path(GPUS[0], GPUS[1]).nvlinks == found.path(GPUS[1], GPUS[0]).nvlinks == 4
    assert found.path(GPUS[1], GPUS[2]).nvlinks == 0


def test_gpus_on_one_cpu_by_c2c(tmp_path: Path) -> None:
    three_gpus(tmp_path)
    found = topology(tmp_path, c2c_links=[1, 1, 1])
    path = found.path(GPUS[0], GPUS[1])
    assert (path.nccl, path.nccl_pcie) == (Nccl.C2C, Nccl.PHB)
    assert found.path(GPUS[0], GPUS[2]).nccl is Nccl.SYS


def test_only_the_fastest_nics_are_nearest_by_c2c(tmp_path: Path) -> None:
    three_gpus(tmp_path)
    add_nic(tmp_path, "mlx5_0", "pci0000:00", "0000:00:08.0", "0000:08:00.0")
    add_nic(tmp_path, "mlx5_1", "pci0000:00", "0000:00:09.0", "0000:09:00.0", rate="100 Gb/sec (2X HDR)")
    add_nic(tmp_path, "mlx5_2", "pci0000:00", "0000:00:0a.0", "0000:0a:00.0", up=False)
    add_nic(tmp_path, "mlx5_3", "pci0000:80", "0000:80:08.0", "0000:0b:00.0", numa=1)
    found = topology(tmp_path, c2c_links=[1, 0, 0])
    words = [found.path(GPUS[0], f"mlx5_{n}").nccl for n in range(4)]
    assert words == [Nccl.P2C, Nccl.PHB, Nccl.P2C, Nccl.SYS]
    assert found.path(GPUS[0], "mlx5_0").nccl_pcie is Nccl.PHB
    assert found.path(GPUS[1], "mlx5_0").nccl is Nccl.PHB


def test_a_peer_near_the_nic_lends_it_over_nvlink(tmp_path: Path) -> None:
    three_gpus(tmp_path)
    switch = ("pci0000:00", "0000:00:04.0", "0000:20:00.0")
    add_function(tmp_path, switch[:2])
    add_function(tmp_path, switch)
    for slot in (0, 1):
        add_function(tmp_path, (*switch, f"0000:21:0{slot}.0"))
    near = (*switch, "0000:21:00.0", "0000:22:00.0")
    add_function(tmp_path, near, NVIDIA, 0x2330, 0x030200)
    add_nic(tmp_path, "mlx5_0", *switch, "0000:21:01.0", "0000:23:00.0")
    peers = [((near[-1], 4),), (), (), ((GPUS[0], 4),)]
    found = topology(tmp_path, nvlink_peers=peers)
    assert found.path(near[-1], "mlx5_0").nccl is Nccl.PIX
    lent = found.path(GPUS[0], "mlx5_0")
    assert (lent.nccl, lent.nccl_pcie) == (Nccl.PXN, Nccl.PHB)
    assert found.path(GPUS[1], "mlx5_0").nccl is Nccl.PHB


def test_gpus_in_the_graph_are_no_nvswitches(tmp_path: Path) -> None:
    three_gpus(tmp_path)
    a, b, _ = GPUS
    graph = topology(tmp_path, nvlink_peers=[((b, 2), ("0000:f0:00.0", 4)), ((a, 2),), ()]).graph
    assert {graph.nodes[gpu]["kind"] for gpu in GPUS} == {"GPU"}
    assert graph.nodes["0000:f0:00.0"]["kind"] == "NVSwitch"
    assert graph.edges[a, b]["links"] == 2
