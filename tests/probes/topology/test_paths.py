"""What lies between two devices, in both vocabularies, on small trees each argued in a line."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.node import probe_node
from probes.facts.pci.functions import PciFacts, PciFunction, PciKind, PciLink, generation, link_gbps
from probes.host.machine.local import LocalHost
from probes.simulation.host import SimulatedHost
from probes.simulation.node.model.description import simulated_names
from probes.topology.endpoints import endpoints
from probes.topology.graph import build_parts
from probes.topology.hops import Routes, Smi, smi_path
from probes.topology.nccl_paths import Nccl
from probes.topology.paths import Topology, build
from tests.probes.topology.test_endpoints import NOTHING
from tests.support.trees import BROADCOM, MELLANOX, NVIDIA, add_function, add_numa_node, add_rdma_device

ROOT = "pci0000:15"
PORT = "0000:15:01.0"


def topology(root: Path) -> Topology:
    return build(probe_node(LocalHost(str(root))))


def add_gpu(root: Path, *path: str, numa: int = 0) -> str:
    return add_function(root, path, NVIDIA, 0x2330, 0x030200, numa, driver="nvidia")


def add_nic(root: Path, name: str, *path: str, numa: int = 0, vf: bool = False) -> None:
    add_function(root, path, MELLANOX, 0x101E if vf else 0x1021, 0x020700, numa)
    add_rdma_device(root, name, path)


def add_switch(
    root: Path, *path: str, slots: int = 4, numa: int = 0, subsystem: tuple[int, int] = (0, 0)
) -> None:
    """The upstream port at the end of `path`, and downstream ports on the bus after it."""
    add_function(root, path, BROADCOM, 0xC030, numa_node=numa, subsystem=subsystem)
    bus = int(path[-1][5:7], 16) + 1
    for slot in range(slots):
        port = (*path, f"0000:{bus:02x}:{slot:02x}.0")
        add_function(root, port, BROADCOM, 0xC030, numa_node=numa, subsystem=subsystem)


def words(found: Topology, a: str, b: str) -> tuple[Maybe[Smi], Maybe[Nccl]]:
    path = found.path(a, b)
    return path.smi, path.nccl


def test_below_one_switch_is_pix_to_both(tmp_path: Path) -> None:
    add_function(tmp_path, (ROOT, PORT))
    add_switch(tmp_path, ROOT, PORT, "0000:16:00.0")
    gpu = add_gpu(tmp_path, ROOT, PORT, "0000:16:00.0", "0000:17:00.0", "0000:18:00.0")
    add_nic(tmp_path, "mlx5_0", ROOT, PORT, "0000:16:00.0", "0000:17:01.0", "0000:19:00.0")
    found = topology(tmp_path)
    assert words(found, gpu, "mlx5_0") == (Smi.PIX, Nccl.PIX)
    assert [hop.kind for hop in found.path(gpu, "mlx5_0").hops] == [
        "GPU",
        "downstream port",
        "upstream port",
        "downstream port",
        "NIC",
    ]


def two_level(root: Path, upper: tuple[int, int], lower: tuple[int, int]) -> Topology:
    add_function(root, (ROOT, PORT))
    top = (ROOT, PORT, "0000:16:00.0")
    add_switch(root, *top, subsystem=upper)
    add_switch(root, *top, "0000:17:00.0", "0000:20:00.0", subsystem=lower)
    add_switch(root, *top, "0000:17:01.0", "0000:30:00.0", subsystem=lower)
    add_gpu(root, *top, "0000:17:00.0", "0000:20:00.0", "0000:21:00.0", "0000:22:00.0")
    add_nic(root, "mlx5_0", *top, "0000:17:01.0", "0000:30:00.0", "0000:31:00.0", "0000:32:00.0")
    return topology(root)


def test_two_switches_below_one_root_are_pxb(tmp_path: Path) -> None:
    found = two_level(tmp_path, (0x15D9, 0), (0x15D9, 0))
    assert words(found, "0000:22:00.0", "mlx5_0") == (Smi.PXB, Nccl.PXB)


def test_a_broadcom_switch_of_two_levels_is_one_to_nccl(tmp_path: Path) -> None:
    # Gen5 PEX: subsystem 1000:0xxx above, 1000:1xxx below.
    found = two_level(tmp_path, (BROADCOM, 0x0100), (BROADCOM, 0x1100))
    assert words(found, "0000:22:00.0", "mlx5_0") == (Smi.PXB, Nccl.PIX)


def test_two_root_ports_of_one_host_bridge_are_phb(tmp_path: Path) -> None:
    gpu = add_gpu(tmp_path, ROOT, PORT, "0000:16:00.0")
    add_nic(tmp_path, "mlx5_0", ROOT, "0000:15:02.0", "0000:17:00.0")
    assert words(topology(tmp_path), gpu, "mlx5_0") == (Smi.PHB, Nccl.PHB)


def test_two_host_bridges_of_a_numa_node_are_node_and_phb_to_nccl(tmp_path: Path) -> None:
    gpu = add_gpu(tmp_path, ROOT, PORT, "0000:16:00.0")
    add_nic(tmp_path, "mlx5_0", "pci0000:37", "0000:37:01.0", "0000:38:00.0")
    assert words(topology(tmp_path), gpu, "mlx5_0") == (Smi.NODE, Nccl.PHB)


def test_two_numa_nodes_are_sys(tmp_path: Path) -> None:
    add_numa_node(tmp_path, 0, "0", "10 21")
    add_numa_node(tmp_path, 1, "1", "21 10")
    gpu = add_gpu(tmp_path, ROOT, PORT, "0000:16:00.0")
    add_nic(tmp_path, "mlx5_0", "pci0000:97", "0000:97:01.0", "0000:98:00.0", numa=1)
    found = topology(tmp_path)
    assert words(found, gpu, "mlx5_0") == (Smi.SYS, Nccl.SYS)
    assert [hop.link for hop in found.path(gpu, "mlx5_0").hops].count("SMP") == 1


def test_an_unknown_numa_node_leaves_smi_unknown_and_is_a_node_of_its_own_to_nccl(tmp_path: Path) -> None:
    gpu = add_gpu(tmp_path, ROOT, PORT, "0000:16:00.0", numa=0)
    add_nic(tmp_path, "mlx5_0", "pci0000:97", "0000:97:01.0", "0000:98:00.0", numa=-1)
    smi, nccl = words(topology(tmp_path), gpu, "mlx5_0")
    assert isinstance(smi, Unknown)
    assert smi.reason is Reason.NOT_THERE
    assert nccl is Nccl.SYS


def test_a_virtual_machine_that_names_no_numa_node_at_all_is_phb_to_nccl(tmp_path: Path) -> None:
    gpu = add_gpu(tmp_path, "pci0001:00", "0001:00:00.0", numa=-1)
    add_nic(tmp_path, "mlx5_0", "pci0101:00", "0101:00:00.0", numa=-1, vf=True)
    smi, nccl = words(topology(tmp_path), gpu, "mlx5_0")
    assert isinstance(smi, Unknown)
    assert nccl is Nccl.PHB


def test_two_ports_of_a_nic_are_one_device(tmp_path: Path) -> None:
    add_nic(tmp_path, "mlx5_0", ROOT, PORT, "0000:16:00.0")
    add_nic(tmp_path, "mlx5_1", ROOT, PORT, "0000:16:00.1")
    assert words(topology(tmp_path), "mlx5_0", "mlx5_1") == (Smi.PIX, Nccl.PIX)


def test_a_nic_without_its_driver_is_still_seen(tmp_path: Path) -> None:
    add_function(tmp_path, (ROOT, PORT, "0000:16:00.0"), MELLANOX, 0x1021, 0x020700)
    assert [nic.id for nic in topology(tmp_path).nics] == ["0000:16:00.0"]


def test_software_rdma_devices_are_no_endpoints(tmp_path: Path) -> None:
    add_rdma_device(tmp_path, "rxe0")
    assert topology(tmp_path).nics == ()


def test_the_weakest_link_of_a_path(tmp_path: Path) -> None:
    gpu = add_gpu(tmp_path, ROOT, PORT, "0000:16:00.0")
    add_function(tmp_path, (ROOT, PORT))
    add_function(tmp_path, (ROOT, "0000:15:02.0"), max_width=8)
    add_nic(tmp_path, "mlx5_0", ROOT, "0000:15:02.0", "0000:17:00.0")
    path = topology(tmp_path).path(gpu, "mlx5_0")
    assert path.weakest is not None
    assert path.hops[path.weakest].id == "0000:17:00.0"
    assert "x8" in path.hops[path.weakest].text
    assert path.gbps == pytest.approx(link_gbps(32.0, 8))
    back = topology(tmp_path).path("mlx5_0", gpu)
    assert back.gbps == path.gbps
    assert [hop.id for hop in back.hops] == [hop.id for hop in reversed(path.hops)]
    assert back.hops[0].link == ""


def test_equal_nics_are_shared_out_over_the_gpus(tmp_path: Path) -> None:
    add_function(tmp_path, (ROOT, PORT))
    add_switch(tmp_path, ROOT, PORT, "0000:16:00.0")
    first = add_gpu(tmp_path, ROOT, PORT, "0000:16:00.0", "0000:17:00.0", "0000:18:00.0")
    second = add_gpu(tmp_path, ROOT, PORT, "0000:16:00.0", "0000:17:01.0", "0000:19:00.0")
    add_nic(tmp_path, "mlx5_0", ROOT, PORT, "0000:16:00.0", "0000:17:02.0", "0000:1a:00.0")
    add_nic(tmp_path, "mlx5_1", ROOT, PORT, "0000:16:00.0", "0000:17:03.0", "0000:1b:00.0")
    best = topology(tmp_path).best_nics
    assert {best[first][0], best[second][0]} == {"mlx5_0", "mlx5_1"}


def test_a_nic_that_is_down_comes_last(tmp_path: Path) -> None:
    gpu = add_gpu(tmp_path, ROOT, PORT, "0000:16:00.0")
    near = (ROOT, "0000:15:02.0", "0000:17:00.0")
    add_function(tmp_path, near, MELLANOX, 0x1021, 0x020700)
    add_rdma_device(tmp_path, "mlx5_0", near, state="1: DOWN")
    add_nic(tmp_path, "mlx5_1", "pci0000:97", "0000:97:01.0", "0000:98:00.0", numa=1)
    assert topology(tmp_path).best_nics[gpu] == ("mlx5_1", "mlx5_0")


def test_simulated_gb200_reaches_its_nics_by_c2c() -> None:
    found = build(probe_node(SimulatedHost("gb200")))
    gpu = found.gpus[0].id
    assert words(found, gpu, "mlx5_0") == (Smi.NODE, Nccl.P2C)
    assert found.path(gpu, "mlx5_0").nccl_pcie is Nccl.PHB
    assert words(found, gpu, "mlx5_2") == (Smi.SYS, Nccl.PXN)


def test_simulated_hgx_uses_nvlink_peers_for_far_nics() -> None:
    found = build(probe_node(SimulatedHost("hgx-h100")))
    gpus = [gpu.id for gpu in found.gpus]
    assert words(found, gpus[0], "mlx5_7") == (Smi.SYS, Nccl.PXN)
    assert found.path(gpus[0], gpus[7]).nvlinks == 18
    assert found.path(gpus[0], gpus[7]).nccl is Nccl.NVL


@pytest.mark.parametrize("name", simulated_names())
def test_the_graph_joins_every_gpu_and_nic(name: str) -> None:
    import networkx

    found = build(probe_node(SimulatedHost(name)))
    graph = found.graph
    kinds = dict(graph.nodes(data="kind"))
    for end in (*found.gpus, *found.nics):
        assert kinds[str(end.bdf)] in ("GPU", "NIC")
    assert networkx.is_connected(graph)
    assert {kind for _, _, kind in graph.edges(data="type")} <= {"PCIe", "NVLink", "C2C", "SMP", "internal"}


@pytest.mark.parametrize(
    ("speed", "width", "gbps"), [(2.5, 1, 2.0), (16.0, 16, 252.06), (32.0, 16, 504.12), (64.0, 16, 944.0)]
)
def test_what_links_carry(speed: float, width: int, gbps: float) -> None:
    assert link_gbps(speed, width) == pytest.approx(gbps, abs=0.01)
    assert generation(speed) is not None


UNREAD = Unknown(Reason.NOT_THERE)


def function(chain: tuple[str, ...], numa: int) -> PciFunction:
    link = PciLink(UNREAD, UNREAD, UNREAD, UNREAD)
    known_numa: Maybe[int] = UNREAD if numa < 0 else numa
    return PciFunction(
        bdf=chain[-1],
        sysfs_path="/x",
        root="pci0000:00",
        chain=chain,
        kind=PciKind.GPU,
        class_code=0x030200,
        vendor_id=NVIDIA,
        device_id=0,
        subsystem_vendor_id=0,
        subsystem_device_id=0,
        driver="nvidia",
        numa_node=known_numa,
        local_cpulist=UNREAD,
        link=link,
        bars=UNREAD,
        iommu_group=UNREAD,
        iommu_type=UNREAD,
        physical_function=None,
    )


def chain_of(turns: list[int]) -> tuple[str, ...]:
    """The functions on the way to one of a tree in which every port has up to four below it."""
    buses = ["".join(map(str, turns[:depth])).zfill(1) for depth in range(len(turns))]
    return tuple(f"{int(bus, 4):04x}:{depth:02x}:{turns[depth]:02x}.0" for depth, bus in enumerate(buses))


CHAINS = st.lists(st.integers(0, 3), min_size=1, max_size=6).map(chain_of)


@pytest.mark.slow
@given(CHAINS, CHAINS, st.integers(-1, 2), st.integers(-1, 2))
def test_paths_are_the_same_both_ways(a: tuple[str, ...], b: tuple[str, ...], na: int, nb: int) -> None:
    functions = {chain[-1]: function(chain, numa) for chain, numa in ((a, na), (b, nb))}
    node = replace(NOTHING, pci=PciFacts(functions, {}))
    parts = build_parts(node, endpoints(node)[0])
    routes = Routes(parts)
    assert routes.distance(a[-1], b[-1])[1] == len(routes.between(a[-1], b[-1]))
    assert routes.between(a[-1], b[-1]) == routes.between(b[-1], a[-1])[::-1]
    of_a, of_b = routes.branch(a[-1]), routes.branch(b[-1])
    assert smi_path(parts, of_a, of_b) == smi_path(parts, of_b, of_a)
    if a != b:
        assert (smi_path(parts, of_a, of_b) in (Smi.PIX, Smi.PXB)) == (a[0] == b[0])
