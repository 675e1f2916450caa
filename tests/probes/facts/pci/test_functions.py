from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.pci import functions as pci
from probes.facts.pci.functions import PciFacts, PciKind
from probes.facts.pci.names import built_in_name, search
from probes.host.machine.local import LocalHost
from probes.host.protocol import READ_LIMIT_BYTES
from probes.live.live_sampler import LiveSampler
from probes.simulation.host import SimulatedHost
from probes.snapshot.examination import examine
from probes.snapshot.rates import read
from tests.support.machines import machine_file
from tests.support.trees import MELLANOX, NVIDIA, add_function, add_numa_node, link, tree_from_lspci, write

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


def test_what_is_no_pci_function_ends_a_chain() -> None:
    path = "/sys/devices/pci0000:00/0000:00:01.0/other/0000:01:00.0"
    assert pci.chain_of(path) == ("pci0000:00", ("0000:01:00.0",))
    assert pci.chain_of("/sys/devices/platform/0000:01:00.0") == ("", ())


def test_domains_of_five_digits_stand_last(tmp_path: Path) -> None:
    add_function(tmp_path, ("pci10000:e0", "10000:e0:01.0"))
    add_function(tmp_path, ("pci0000:ff", "0000:ff:01.0"))
    assert list(facts(tmp_path).functions) == ["0000:ff:01.0", "10000:e0:01.0"]


def near(root: Path, bdf: str, attribute: str, cpus: str, numa_node: int | None = None) -> Maybe[int]:
    """The NUMA node of a function, reported directly or by the CPUs near it."""
    add_numa_node(root, 0, "0-7", "10 21")
    add_numa_node(root, 1, "8-15", "21 10")
    path = ("pci0000:00", bdf)
    add_function(root, path, numa_node=numa_node)
    write(root, f"/sys/devices/pci0000:00/{bdf}/{attribute}", f"{cpus}\n")
    return facts(root).functions[bdf].numa_node


@pytest.mark.parametrize(
    ("attribute", "cpus"), [("local_cpulist", "8-15"), ("local_cpus", "0000ff00"), ("local_cpus", "00000300")]
)
def test_the_near_cpus_give_the_numa_node(tmp_path: Path, attribute: str, cpus: str) -> None:
    assert near(tmp_path, "0000:00:01.0", attribute, cpus) == 1


@pytest.mark.parametrize("cpus", ["0-15", "", "7-8", "8-16", "9-8", "\x1b[31m"])
def test_cpus_of_several_nodes_give_no_numa_node(tmp_path: Path, cpus: str) -> None:
    assert isinstance(near(tmp_path, "0000:00:01.0", "local_cpulist", cpus), Unknown)


def test_minus_one_stays_unknown_whatever_the_near_cpus_are(tmp_path: Path) -> None:
    assert isinstance(near(tmp_path, "0000:00:01.0", "local_cpulist", "8-15", numa_node=-1), Unknown)


def test_a_virtual_function_names_its_physical_function_and_its_iommu_group(tmp_path: Path) -> None:
    bdf = add_function(tmp_path, ("pci0000:00", "0000:00:01.2"), MELLANOX, 0x101E, 0x020000)
    directory = "/sys/devices/pci0000:00/0000:00:01.2"
    link(tmp_path, f"{directory}/physfn", "../0000:00:01.0")
    link(tmp_path, f"{directory}/iommu_group", "../../../kernel/iommu_groups/41")
    write(tmp_path, "/sys/kernel/iommu_groups/41/type", "DMA-FQ\n")
    function = facts(tmp_path).functions[bdf]
    assert function.physical_function == "0000:00:01.0"
    assert (function.iommu_group, function.iommu_type) == (41, "DMA-FQ")


def test_links_that_lead_to_nonsense_are_not_shown(tmp_path: Path) -> None:
    bdf = add_function(tmp_path, ("pci0000:00", "0000:00:01.0"), MELLANOX, 0x1021, 0x020000)
    for name in ("physfn", "iommu_group"):
        link(tmp_path, f"/sys/devices/pci0000:00/0000:00:01.0/{name}", "../\x1b[31m")
    function = facts(tmp_path).functions[bdf]
    assert function.physical_function is None
    assert isinstance(function.iommu_group, Unknown)


def test_uevent_without_ids_gives_way_to_the_attribute_files(tmp_path: Path) -> None:
    bdf = add_function(tmp_path, ("pci0000:00", "0000:00:01.0"))
    directory = "/sys/devices/pci0000:00/0000:00:01.0"
    write(tmp_path, f"{directory}/uevent", "DRIVER=nvidia\n")
    for name, text in (("class", "0x030200"), ("vendor", "0x10de"), ("device", "0x2330")):
        write(tmp_path, f"{directory}/{name}", text)
    function = facts(tmp_path).functions[bdf]
    assert (function.kind, function.device_id, function.driver) == (PciKind.GPU, 0x2330, "nvidia")


@pytest.mark.parametrize("ids", ["-1:-2", "1_0:2_0", "ffffffffffff:0", ":", "zz:zz"])
def test_ids_that_are_none_are_unknown(tmp_path: Path, ids: str) -> None:
    bdf = add_function(tmp_path, ("pci0000:00", "0000:00:01.0"))
    directory = "/sys/devices/pci0000:00/0000:00:01.0"
    write(tmp_path, f"{directory}/uevent", f"PCI_CLASS=20000\nPCI_ID={ids}\n")
    assert isinstance(facts(tmp_path).functions[bdf].vendor_id, Unknown)


class Witness(LocalHost):
    """A tree that remembers which files were opened."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.opened: list[str] = []

    def read_bytes(self, path: str, limit: int = READ_LIMIT_BYTES) -> Maybe[bytes]:
        self.opened.append(path)
        return super().read_bytes(path, limit)


def test_reading_wakes_no_sleeping_device(tmp_path: Path) -> None:
    kinds = [(NVIDIA, 0x030200), (NVIDIA, 0x068000), (MELLANOX, 0x020000), (0x1000, 0x060400)]
    for number, (vendor, class_code) in enumerate(kinds):
        path = ("pci0000:00", f"0000:00:{number:02x}.0")
        add_function(tmp_path, path, vendor, 0x1021, class_code)
        write(tmp_path, f"/sys/devices/{'/'.join(path)}/config", "\x10")
    host = Witness(str(tmp_path))
    pci.probe(host)
    assert host.opened
    assert not [path for path in host.opened if path.endswith("/config")]


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


@pytest.mark.parametrize("text", ["000000001" + "0" * 5000, "-1", "²", "0016", ""])
def test_numbers_that_are_none_are_unknown(tmp_path: Path, text: str) -> None:
    bdf = add_function(tmp_path, ("pci0000:00", "0000:00:01.0"), NVIDIA, 0x2330, 0x030200)
    for name in ("current_link_width", "numa_node"):
        write(tmp_path, f"/sys/devices/pci0000:00/0000:00:01.0/{name}", text)
    function = facts(tmp_path).functions[bdf]
    assert isinstance(function.link.width, Unknown)


@given(st.text())
def test_parsers_take_any_text(text: str) -> None:
    pci.parse_uevent(text)
    pci.parse_speed(text)
    pci.parse_resource(text)
    pci.chain_of(text)


@given(st.binary(max_size=400))
def test_pci_ids_may_be_anything(content: bytes) -> None:
    search(b"\n10de  NVIDIA\n\t2330  GH100\n" + content, {(0x10DE, 0x2330), (0x1000, 1)})


def test_names_come_from_pci_ids_where_it_is(tmp_path: Path) -> None:
    text = "# list\n10de  NVIDIA Corporation\n\t2330  GH100 [H100 \x1b[31mSXM5]\n\t\t10de 16c1  sub\n"
    write(tmp_path, "/usr/share/misc/pci.ids", text)
    bdf = add_function(tmp_path, ("pci0000:00", "0000:00:01.0"), NVIDIA, 0x2330, 0x030200)
    name = facts(tmp_path).names[bdf]
    assert name.startswith("NVIDIA GH100 [H100")
    assert "\x1b" not in name


def test_a_vendor_at_the_end_of_pci_ids_is_found() -> None:
    text = b"# list\n10de  NVIDIA\n\t2330  GH100\n# comment\n\n\t2331  H100 PCIe\n15b3  Mellanox\n\t1021  CX7"
    wanted = {(0x10DE, 0x2331), (0x15B3, 0x1021), (0x10DE, 0x1021)}
    assert search(text, wanted) == {(0x10DE, 0x2331): "NVIDIA H100 PCIe", (0x15B3, 0x1021): "Mellanox CX7"}


def test_a_device_too_new_for_pci_ids_is_named_all_the_same(tmp_path: Path) -> None:
    write(tmp_path, "/usr/share/misc/pci.ids", "# list\n10de  NVIDIA Corporation\n\t2330  GH100\n")
    bdf = add_function(tmp_path, ("pci0000:00", "0000:00:01.0"), NVIDIA, 0x2335, 0x030200)
    assert "H200" in facts(tmp_path).names[bdf]


@pytest.mark.parametrize(
    ("vendor", "device", "name"),
    [
        (0x14E4, 0x1760, "Broadcom BCM57608 400Gb"),
        (0x14E4, 0x1614, "Broadcom BCM57454 NetXtreme-E 100Gb"),
        (0x1DD8, 0x1002, "AMD Pensando DSC Ethernet Controller"),
        (0x1414, 0x00BA, "Microsoft MANA virtual function"),
        (0x1DED, 0x107F, "Alibaba Elastic RDMA Adapter"),
        (0x1D0F, 0xEFA4, "Amazon Elastic Fabric Adapter [EFA]"),
        (0x15B3, 0x2101, "Mellanox ConnectX-10 NVLink-C2C"),
        (0x15B3, 0xA2DF, "Mellanox BlueField-4"),
        # A device that is not in the file keeps its maker's name.
        (0x14E4, 0x1762, "Broadcom device 1762"),
        (0x1AE0, 0x0001, "1ae0 device 0001"),
    ],
)
def test_nics_have_names_where_there_is_no_pci_ids(vendor: int, device: int, name: str) -> None:
    assert built_in_name(vendor, device) == name


@pytest.mark.slow
def test_an_h100_node_as_its_lspci_printed_it(tmp_path: Path) -> None:
    text = machine_file("lspci/h100-8gpu-supermicro-lspci-vvv.txt").read_text(errors="replace")
    tree_from_lspci(text, tmp_path)
    found = facts(tmp_path)
    assert len(found.functions) == 517
    gpus = [function for function in found.functions.values() if function.kind is PciKind.GPU]
    assert len(gpus) == 8
    for gpu in gpus:
        assert gpu.driver == "nvidia"
        assert (gpu.link.speed_gtps, gpu.link.width) == (32.0, 16)
        assert not isinstance(gpu.bars, Unknown)
        assert max(bar.size_bytes for bar in gpu.bars if bar.prefetchable) == 128 << 30
    switches = [function for function in found.functions.values() if function.kind is PciKind.NVSWITCH]
    assert {function.driver for function in switches} == {"nvidia-nvswitch"}


@pytest.mark.slow
def test_a_workstation_as_its_lspci_tree_was_drawn(tmp_path: Path) -> None:
    tree_from_lspci(machine_file("lspci/puget-wrx90-full.md").read_text(), tmp_path)
    found = facts(tmp_path).functions
    gpus = [bdf for bdf, pci_function in found.items() if pci_function.kind is PciKind.GPU]
    assert gpus == ["0000:c1:00.0", "0000:c2:00.0"]
    # Each on a root port of its own below one host bridge: nvidia-smi calls this PHB.
    assert {found[bdf].root for bdf in gpus} == {"pci0000:c0"}
    assert [found[bdf].chain[0] for bdf in gpus] == ["0000:c0:01.1", "0000:c0:03.1"]
    assert found["0000:21:00.1"].chain == ("0000:20:01.1", "0000:21:00.1")
    # Two switches below one another.
    assert found["0000:05:00.0"].chain == (
        "0000:00:03.1",
        "0000:01:00.0",
        "0000:02:00.0",
        "0000:03:00.0",
        "0000:04:10.0",
        "0000:05:00.0",
    )
    assert found["0000:c1:00.0"].driver == "nvidia"


# Sleeping functions


# Each of these files is read from the device (drivers/pci/pci-sysfs.c).
WAKING = ("config", "vpd", "current_link_speed", "current_link_width", "max_link_width")


class Noting:
    """A host that notes the files which gdrtop reads."""

    def __init__(self, host: Any) -> None:
        self._host = host
        self.paths: list[str] = []
        self.commands: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._host, name)

    def read(self, path: str, limit: int = 65536) -> Maybe[str]:
        self.paths.append(path)
        answer: Maybe[str] = self._host.read(path, limit)
        return answer

    def read_bytes(self, path: str, limit: int = 65536) -> Maybe[bytes]:
        self.paths.append(path)
        answer: Maybe[bytes] = self._host.read_bytes(path, limit)
        return answer

    def run(self, argv: tuple[str, ...], seconds: float = 2.0) -> Any:
        self.commands.append(argv[0])
        return self._host.run(argv, seconds)


@pytest.mark.parametrize(
    ("file", "state"), [("power/runtime_status", "suspended"), ("power_state", "D3cold")], ids=str
)
@pytest.mark.parametrize("name", ["hgx-h100", "gb200"])
def test_neither_an_examination_nor_the_live_view_wakes_it(name: str, file: str, state: str) -> None:
    now = [1000.0]
    host = SimulatedHost(name, clock=lambda: now[0])
    host.tree.commands["rdma_topo"] = lambda argv, seconds: ""
    for bdf in host.tree.directories["/sys/bus/pci/devices"]:
        host.tree.add(f"{host.tree.real(f'/sys/bus/pci/devices/{bdf}')}/{file}", f"{state}\n")
    noting: Any = Noting(host)
    node, live = examine(noting).node, LiveSampler()
    for _ in range(8):
        now[0] += 1.0
        live.sample(noting, node, read(noting, node))
    assert isinstance(node.pci, PciFacts)
    gpus = [function for function in node.pci.functions.values() if function.kind is PciKind.GPU]
    assert gpus
    assert all("would wake it" in str(gpu.link.speed_gtps) for gpu in gpus)
    assert any(path.endswith("/numa_node") for path in noting.paths)
    assert [path for path in noting.paths if "/pci" in path and path.rpartition("/")[2] in WAKING] == []
    assert "rdma_topo" not in noting.commands


# VPDs. The second one is cut off, as a device's own bytes may be.


def _vpd(*fields: tuple[bytes, bytes]) -> bytes:
    read_only = b"".join(name + bytes([len(text)]) + text for name, text in fields)
    parts = ((0x82, b"ConnectX-7"), (0x90, read_only), (0x91, b"YA\x03abc"))
    return b"".join(bytes([tag]) + len(part).to_bytes(2, "little") + part for tag, part in parts) + b"\x78"


def test_a_card_has_the_serial_number_of_its_vpd() -> None:
    vpd = _vpd((b"PN", b"MCX75310AAS-NEAT"), (b"SN", b"MT2245X01234 \0"), (b"RV", b"\x00"))
    assert pci.serial_of(vpd) == "MT2245X01234"
    for other in (b"", vpd[:20], _vpd((b"PN", b"x"), (b"SN", b"")), b"\x82" * 50, b"\x90\xff\xffSN\x00"):
        assert isinstance(pci.serial_of(other), Unknown)


@given(st.binary(max_size=300))
def test_no_vpd_crashes_the_reader(vpd: bytes) -> None:
    pci.serial_of(b"\x90" + vpd)
    pci.serial_of(vpd)
