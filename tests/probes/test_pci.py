from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from probes import pci
from probes.host import LocalHost
from probes.pci import PciFacts, PciKind
from probes.unknown import Reason, Unknown
from tests.trees import MELLANOX, NVIDIA, add_function, write

SWITCH = ("pci0000:15", "0000:15:01.0", "0000:16:00.0")


def facts(root: Path) -> PciFacts:
    found = pci.probe(LocalHost(str(root)))
    assert isinstance(found, PciFacts)
    return found


def test_a_gpu_below_a_switch(tmp_path: Path) -> None:
    add_function(tmp_path, SWITCH[:2])
    add_function(tmp_path, SWITCH, device=0xC030, vendor=0x1000)
    add_function(tmp_path, (*SWITCH, "0000:17:00.0"))
    add_function(
        tmp_path,
        (*SWITCH, "0000:17:00.0", "0000:18:00.0"),
        NVIDIA,
        0x2330,
        0x030200,
        speed="2.5 GT/s PCIe",
        driver="nvidia",
        resource="0x0000000090000000 0x0000000090ffffff 0x0000000000040200\n"
        "0x0000000000000000 0x0000000000000000 0x0000000000000000\n"
        "0x0000200000000000 0x0000201fffffffff 0x000000000014220c",
    )
    found = facts(tmp_path)
    gpu = found.functions["0000:18:00.0"]
    assert gpu.kind is PciKind.GPU
    assert gpu.root == "pci0000:15"
    assert gpu.chain == ("0000:15:01.0", "0000:16:00.0", "0000:17:00.0", "0000:18:00.0")
    assert gpu.driver == "nvidia"
    assert gpu.numa_node == 0
    assert (gpu.link.speed_gtps, gpu.link.max_speed_gtps, gpu.link.width) == (2.5, 32.0, 16)
    assert not isinstance(gpu.bars, Unknown)
    assert [(bar.index, bar.size_bytes, bar.prefetchable) for bar in gpu.bars] == [
        (0, 16 << 20, False),
        (2, 128 << 30, True),
    ]
    assert "H100" in found.names["0000:18:00.0"]


def test_old_kernels_spell_speeds_otherwise_and_gone_links_have_none(tmp_path: Path) -> None:
    bdf = add_function(
        tmp_path,
        ("pci0000:00", "0000:00:01.0"),
        MELLANOX,
        0x1021,
        0x020000,
        speed="16 GT/s",
        width=255,
        max_speed="Unknown",
    )
    link = facts(tmp_path).functions[bdf].link
    assert link.speed_gtps == 16.0
    assert isinstance(link.width, Unknown)
    assert isinstance(link.max_speed_gtps, Unknown)


def test_numa_minus_one_is_unknown_not_a_node(tmp_path: Path) -> None:
    bdf = add_function(tmp_path, ("pci0000:00", "0000:00:01.0"), numa_node=-1)
    numa = facts(tmp_path).functions[bdf].numa_node
    assert isinstance(numa, Unknown)
    assert "-1" in numa.detail


def test_a_tree_with_attribute_files_only(tmp_path: Path) -> None:
    base = "/sys/bus/pci/devices/0000:01:00.0"
    for name, text in (("class", "0x030200"), ("vendor", "0x10de"), ("device", "0x2330"), ("numa_node", "1")):
        write(tmp_path, f"{base}/{name}", text)
    gpu = facts(tmp_path).functions["0000:01:00.0"]
    assert gpu.kind is PciKind.GPU
    assert gpu.numa_node == 1
    assert isinstance(gpu.driver, Unknown)


def test_another_makers_display_is_no_gpu(tmp_path: Path) -> None:
    bdf = add_function(tmp_path, ("pci0000:00", "0000:00:01.0"), 0x1A03, 0x2000, 0x030000)
    assert facts(tmp_path).functions[bdf].kind is PciKind.OTHER


def test_a_vmd_domain_begins_a_chain_of_its_own() -> None:
    path = "/sys/devices/pci0000:00/0000:00:0e.0/pci10000:e0/10000:e0:01.0/10000:e1:00.0"
    assert pci.chain_of(path) == ("pci10000:e0", ("10000:e0:01.0", "10000:e1:00.0"))


def test_no_pci_bus_is_not_there(tmp_path: Path) -> None:
    found = pci.probe(LocalHost(str(tmp_path)))
    assert isinstance(found, Unknown)
    assert found.reason is Reason.NOT_THERE


def test_garbage_in_every_file(tmp_path: Path) -> None:
    bdf = add_function(tmp_path, ("pci0000:00", "0000:00:01.0"), NVIDIA, 0x2330, 0x030200)
    directory = tmp_path / "sys/devices/pci0000:00/0000:00:01.0"
    for file in directory.iterdir():
        if file.name != "uevent":
            file.write_bytes(b"\x1b[31m\xff\x00" * 40)
    function = facts(tmp_path).functions[bdf]
    assert isinstance(function.numa_node, Unknown)
    assert isinstance(function.link.max_width, Unknown)
    assert function.bars == ()


@given(st.text())
def test_parsers_take_any_text(text: str) -> None:
    pci.parse_uevent(text)
    pci.parse_speed(text)
    pci.parse_resource(text)
    pci.chain_of(text)


@given(st.binary(max_size=400))
def test_pci_ids_may_be_anything(content: bytes) -> None:
    from probes.pci_names import search

    search(b"\n10de  NVIDIA\n\t2330  GH100\n" + content, {(0x10DE, 0x2330), (0x1000, 1)})


def test_names_come_from_pci_ids_where_it_is(tmp_path: Path) -> None:
    text = "# list\n10de  NVIDIA Corporation\n\t2330  GH100 [H100 \x1b[31mSXM5]\n\t\t10de 16c1  sub\n"
    write(tmp_path, "/usr/share/misc/pci.ids", text)
    bdf = add_function(tmp_path, ("pci0000:00", "0000:00:01.0"), NVIDIA, 0x2330, 0x030200)
    name = facts(tmp_path).names[bdf]
    assert name.startswith("NVIDIA GH100 [H100")
    assert "\x1b" not in name
