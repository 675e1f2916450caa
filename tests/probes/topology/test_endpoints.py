"""Which devices are ends of paths, which NICs are a GPU's best, and what random trees must never break."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.base.origin import Origin, Source
from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.node import Node, probe_node
from probes.facts.pci.functions import PciFacts, PciFunction, PciKind, PciLink
from probes.host.machine.local import LocalHost
from probes.topology.hops import Smi
from probes.topology.nccl_paths import Nccl, pci_path, seat_of
from probes.topology.paths import Topology, build
from tests.support.trees import MELLANOX, NVIDIA, add_function, add_rdma_device, link, write

LOST = Unknown(Reason.TIMED_OUT, "probe")
NOTHING = Node(Origin(Source.LIVE), 0.0, *[LOST] * 10)
BRIDGE = "pci0000:00"
GPU = "0000:01:00.0"


def add_gpu(root: Path) -> None:
    add_function(root, (BRIDGE, "0000:00:01.0", GPU), NVIDIA, 0x2330, 0x030200)


def add_nic(root: Path, name: str, *path: str, numa: int = 0, width: int = 16, ports: int = 1) -> None:
    add_function(root, path, MELLANOX, 0x1021, 0x020700, numa, max_width=width)
    add_rdma_device(root, name, path, ports=ports)


def topology(root: Path) -> Topology:
    return build(probe_node(LocalHost(str(root))))


def test_a_node_of_which_nothing_is_known_is_empty() -> None:
    found = build(NOTHING)
    assert (found.gpus, found.nics, found.paths, found.best_nics) == ((), (), {}, {})
    assert len(found.graph) == 0


def test_gpus_are_found_on_the_bus_where_the_gpu_probe_gave_nothing(tmp_path: Path) -> None:
    add_gpu(tmp_path)
    found = build(replace(probe_node(LocalHost(str(tmp_path))), gpus=LOST))
    assert [(gpu.id, gpu.label) for gpu in found.gpus] == [(GPU, "GPU0")]


def test_gpus_and_nics_stay_where_the_bus_could_not_be_read(tmp_path: Path) -> None:
    add_gpu(tmp_path)
    add_nic(tmp_path, "mlx5_0", BRIDGE, "0000:00:02.0", "0000:02:00.0")
    found = build(replace(probe_node(LocalHost(str(tmp_path))), pci=LOST))
    path = found.path(GPU, "mlx5_0")
    assert isinstance(path.smi, Unknown)
    assert isinstance(path.nccl, Unknown)
    assert isinstance(path.gbps, Unknown)
    assert found.best_nics[GPU] == ("mlx5_0",)


def test_virtual_functions_kept_for_guests_are_no_endpoints(tmp_path: Path) -> None:
    card = (BRIDGE, "0000:00:02.0", "0000:02:00.0")
    add_function(tmp_path, card, MELLANOX, 0x1021, 0x020700)
    for number in (1, 2):
        path = (*card[:2], f"0000:02:00.{number}")
        add_function(tmp_path, path, MELLANOX, 0x101E, 0x020700)
        link(tmp_path, f"/sys/devices/{'/'.join(path)}/physfn", "../0000:02:00.0")
    add_rdma_device(tmp_path, "mlx5_vf", (*card[:2], "0000:02:00.2"))
    assert [nic.id for nic in topology(tmp_path).nics] == ["mlx5_vf", "0000:02:00.0"]


def test_virtual_functions_of_a_card_are_one_device(tmp_path: Path) -> None:
    for name, place in (("mlx5_0", "00.0"), ("mlx5_1", "01.2")):
        add_nic(tmp_path, name, BRIDGE, "0000:00:02.0", f"0000:02:{place}")
    path = topology(tmp_path).path("mlx5_0", "mlx5_1")
    assert (path.smi, path.nccl) == (Smi.PIX, Nccl.PIX)


def test_a_virtual_function_whose_card_nccl_cannot_see_hangs_on_no_numa_node(tmp_path: Path) -> None:
    add_gpu(tmp_path)
    add_nic(tmp_path, "mlx5_0", BRIDGE, "0000:00:02.0", "0000:02:01.2")
    assert topology(tmp_path).path(GPU, "mlx5_0").nccl is Nccl.SYS


def test_amazons_efa_is_asked_for_by_its_own_address(tmp_path: Path) -> None:
    add_gpu(tmp_path)
    path = (BRIDGE, "0000:00:1b.0")
    add_function(tmp_path, path, 0x1D0F, 0xEFA0, 0x020000)
    add_rdma_device(tmp_path, "efa_0", path)
    assert topology(tmp_path).path(GPU, "efa_0").nccl is Nccl.PHB


def test_a_place_that_the_tree_does_not_tell_is_not_guessed(tmp_path: Path) -> None:
    """A dump with directories where the kernel has links names no host bridge."""
    for bdf, ids, kind in ((GPU, "10DE:2330", "30200"), ("0000:02:00.0", "15B3:1021", "20700")):
        write(
            tmp_path,
            f"/sys/bus/pci/devices/{bdf}/uevent",
            f"PCI_CLASS={kind}\nPCI_ID={ids}\nPCI_SUBSYS_ID=0:0\n",
        )
        write(tmp_path, f"/sys/bus/pci/devices/{bdf}/numa_node", "0\n")
    path = topology(tmp_path).path(GPU, "0000:02:00.0")
    assert isinstance(path.smi, Unknown)
    assert isinstance(path.nccl, Unknown)
    assert path.hops == ()


def test_links_beside_a_switch_that_is_not_listed_are_told_by_their_other_ends(tmp_path: Path) -> None:
    port = (BRIDGE, "0000:00:02.0")
    add_gpu(tmp_path)
    add_function(tmp_path, port)
    add_nic(tmp_path, "mlx5_0", *port, "0000:02:00.0", "0000:03:00.0", "0000:04:00.0", width=8)
    hops = topology(tmp_path).path(GPU, "mlx5_0").hops
    assert [(hop.id, hop.kind, hop.text.split(",")[0]) for hop in hops[-4:]] == [
        ("0000:00:02.0", "root port", ""),
        ("0000:02:00.0", "upstream port", "Gen5 x16"),
        ("0000:03:00.0", "downstream port", "switch"),
        ("0000:04:00.0", "NIC", "Gen5 x8"),
    ]


def test_a_link_of_which_neither_end_is_listed_has_no_capacity_to_tell(tmp_path: Path) -> None:
    add_gpu(tmp_path)
    switches = [f"0000:0{bus}:00.0" for bus in range(2, 6)]
    add_nic(tmp_path, "mlx5_0", BRIDGE, "0000:00:02.0", *switches, "0000:06:00.0")
    hop = next(hop for hop in topology(tmp_path).path(GPU, "mlx5_0").hops if hop.id == "0000:04:00.0")
    assert isinstance(hop.gbps, Unknown)
    assert hop.text == "link ?"


def test_a_nic_whose_ports_could_not_be_listed_is_not_taken_to_be_down(tmp_path: Path) -> None:
    add_gpu(tmp_path)
    add_nic(tmp_path, "mlx5_0", BRIDGE, "0000:00:02.0", "0000:02:00.0", ports=0)
    add_nic(tmp_path, "mlx5_1", "pci0000:80", "0000:80:02.0", "0000:82:00.0", numa=1)
    assert topology(tmp_path).best_nics[GPU] == ("mlx5_0", "mlx5_1")


def test_of_nics_equally_near_the_one_behind_a_narrow_link_comes_last(tmp_path: Path) -> None:
    add_gpu(tmp_path)
    add_nic(tmp_path, "mlx5_0", BRIDGE, "0000:00:02.0", "0000:02:00.0", width=4)
    add_nic(tmp_path, "mlx5_1", BRIDGE, "0000:00:03.0", "0000:03:00.0")
    assert topology(tmp_path).best_nics[GPU] == ("mlx5_1", "mlx5_0")


UNREAD = Unknown(Reason.NOT_THERE)


@st.composite
def nodes(draw: st.DrawFn) -> Node:
    """A tree of up to 24 functions, some bridges not listed, with GPUs and NICs as leaves."""
    functions: dict[str, PciFunction] = {}
    chains: list[tuple[str, tuple[str, ...]]] = [(f"pci0000:{n:02x}", ()) for n in range(3)]
    for number in range(draw(st.integers(2, 24))):
        root, above = draw(st.sampled_from(chains))
        kind = draw(st.sampled_from([PciKind.BRIDGE, PciKind.GPU, PciKind.NIC]))
        bdf = f"0000:{number + 16:02x}:00.{draw(st.integers(0, 1))}"
        if kind is PciKind.BRIDGE:
            chains.append((root, (*above, bdf)))
            if draw(st.integers(0, 9)) == 0:
                continue
        functions[bdf] = PciFunction(
            bdf=bdf,
            sysfs_path=f"/sys/devices/{bdf}",
            root=root,
            chain=(*above, bdf),
            kind=kind,
            class_code=0,
            vendor_id=draw(st.sampled_from([MELLANOX, 0x1000])) if kind is not PciKind.GPU else NVIDIA,
            device_id=draw(st.sampled_from([0xC010, 0xC030])),
            subsystem_vendor_id=0x1000,
            subsystem_device_id=draw(st.sampled_from([0xA000, 0x0000, 0x1000])),
            driver=UNREAD,
            numa_node=draw(st.sampled_from([0, 1, UNREAD])),
            local_cpulist=UNREAD,
            link=draw(st.sampled_from([PciLink(32.0, 16, 32.0, 16), PciLink(UNREAD, UNREAD, 16.0, 8)])),
            bars=UNREAD,
            iommu_group=UNREAD,
            iommu_type=UNREAD,
            physical_function=None,
        )
    return replace(NOTHING, pci=PciFacts(functions, {}))


def word_of(fact: Maybe[Smi] | Maybe[Nccl]) -> str:
    return fact.reason.value if isinstance(fact, Unknown) else fact.value


def test_two_switches_are_pxb_whichever_side_is_the_deeper(tmp_path: Path) -> None:
    top = (BRIDGE, "0000:00:02.0", "0000:02:00.0")
    deep = (*top, "0000:03:01.0", "0000:05:00.0", "0000:06:00.0")
    for path in (top[:2], top, (*top, "0000:03:00.0"), deep[:4], deep[:5], deep):
        add_function(tmp_path, path)
    near = (*top, "0000:03:00.0", "0000:04:00.0")
    add_function(tmp_path, near, NVIDIA, 0x2330, 0x030200)
    add_nic(tmp_path, "mlx5_0", *deep, "0000:07:00.0")
    path = topology(tmp_path).path(near[-1], "mlx5_0")
    assert (path.smi, path.nccl) == (Smi.PXB, Nccl.PXB)


@pytest.mark.slow
@settings(max_examples=200)
@given(nodes())
def test_any_tree_gives_paths_that_hold_both_ways(node: Node) -> None:
    assert isinstance(node.pci, PciFacts)
    found = build(node)
    ends = (*found.gpus, *found.nics)
    for a in ends:
        for b in ends:
            if a.id == b.id:
                continue
            there, back = found.path(a.id, b.id), found.path(b.id, a.id)
            assert (word_of(there.smi), word_of(there.nccl)) == (word_of(back.smi), word_of(back.nccl))
            assert [hop.id for hop in there.hops] == [hop.id for hop in reversed(back.hops)]
            assert (there.hops[0].id, there.hops[-1].id) == (a.id, b.id)
            assert there.crosses_host_bridge == any(hop.kind == "host bridge" for hop in there.hops)
            assert there.weakest is None or there.gbps == back.gbps
            of_a, of_b = node.pci.functions[a.id], node.pci.functions[b.id]
            seats = seat_of(found.parts, of_a), seat_of(found.parts, of_b)
            assert pci_path(*seats) is pci_path(*reversed(seats))
            meet = of_a.root == of_b.root and of_a.chain[0] == of_b.chain[0]
            assert (there.smi in (Smi.PIX, Smi.PXB)) == meet
    for gpu in found.gpus:
        assert sorted(found.best_nics[gpu.id]) == sorted(nic.id for nic in found.nics)
