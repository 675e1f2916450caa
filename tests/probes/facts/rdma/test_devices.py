import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.rdma import devices as rdma
from probes.facts.rdma.devices import RdmaFacts
from probes.host.machine.local import LocalHost
from probes.simulation.host import SimulatedHost
from probes.snapshot.rates import read_port
from tests.support.machines import machine_file
from tests.support.trees import add_function, add_rdma_device, link, write

NIC = ("pci0000:00", "0000:00:01.0", "0000:01:00.0")


def facts(root: Path) -> RdmaFacts:
    found = rdma.probe(LocalHost(str(root)))
    assert isinstance(found, RdmaFacts)
    return found


def test_a_port(tmp_path: Path) -> None:
    add_function(tmp_path, NIC, 0x15B3, 0x1021, 0x020700, numa_node=1)
    add_rdma_device(tmp_path, "mlx5_0", NIC)
    write(tmp_path, "/sys/class/infiniband_verbs/uverbs3/ibdev", "mlx5_0\n")
    write(tmp_path, "/sys/class/infiniband_verbs/uverbs3/dev", "231:195\n")
    write(tmp_path, "/sys/devices/" + "/".join(NIC) + "/net/ib0/dev_port", "0\n")
    (device,) = facts(tmp_path).devices
    assert (device.name, device.bdf, device.numa_node) == ("mlx5_0", "0000:01:00.0", 1)
    assert (device.node_type, device.firmware) == ("CA", "28.43.2026")
    assert (device.uverbs, device.uverbs_number) == ("/dev/infiniband/uverbs3", (231, 195))
    (port,) = device.ports
    assert (port.number, port.state, port.physical_state) == (1, "ACTIVE", "LinkUp")
    assert (port.rate_gbps, port.rate_text, port.link_layer) == (400.0, "4X NDR", "InfiniBand")
    assert port.netdev == "ib0"
    assert not isinstance(port.gids, Unknown)
    assert [(gid.index, gid.type) for gid in port.gids] == [(0, "RoCE v2")]


def test_devices_stand_in_natural_order(tmp_path: Path) -> None:
    for number in (10, 2, 0):
        add_rdma_device(tmp_path, f"mlx5_{number}")
    assert [device.name for device in facts(tmp_path).devices] == ["mlx5_0", "mlx5_2", "mlx5_10"]


def test_a_software_device_is_on_no_pci_function(tmp_path: Path) -> None:
    add_rdma_device(tmp_path, "rxe0", link_layer="Ethernet")
    (device,) = facts(tmp_path).devices
    assert isinstance(device.bdf, Unknown)
    assert "software" in device.bdf.detail


def test_a_nic_whose_link_is_missing_is_no_software_device(tmp_path: Path) -> None:
    write(tmp_path, "/sys/class/infiniband/mlx4_0/node_type", "1: CA\n")
    (device,) = facts(tmp_path).devices
    assert isinstance(device.bdf, Unknown)
    assert device.bdf.detail == "the link to its PCI function is missing"


def add_auxiliary(root: Path, path: tuple[str, ...], name: str, driver: str = "mlx5_ib.rdma") -> None:
    """A device on the auxiliary bus below a PCI function, with its driver."""
    directory = f"/sys/devices/{'/'.join(path)}/{name}"
    link(root, f"/sys/bus/auxiliary/devices/{name}", f"../../../devices/{'/'.join(path)}/{name}")
    write(root, f"{directory}/uevent", "")
    if driver:
        link(root, f"{directory}/driver", f"../../../bus/auxiliary/drivers/{driver}")


def test_a_device_in_another_network_namespace_is_elsewhere(tmp_path: Path) -> None:
    """`rdma-cni` moves devices into pods: they vanish from /sys/class/infiniband of the host."""
    other, bare, sub = (
        ("0000:00:01.0", "0000:02:00.0"),
        ("0000:00:01.0", "0000:03:00.0"),
        (*NIC, "mlx5_core.sf.4"),
    )
    for path in (NIC, ("pci0000:00", *other), ("pci0000:00", *bare)):
        add_function(tmp_path, path, 0x15B3, 0x1021, 0x020700)
    add_rdma_device(tmp_path, "mlx5_0", NIC)
    add_auxiliary(tmp_path, NIC, "mlx5_core.rdma.0")
    add_auxiliary(tmp_path, ("pci0000:00", *other), "mlx5_core.rdma.1")
    add_auxiliary(tmp_path, ("pci0000:00", *bare), "mlx5_core.rdma.2", driver="")
    add_auxiliary(tmp_path, ("pci0000:00", *bare), "mlx5_core.eth.2", driver="mlx5_core.eth")
    add_auxiliary(tmp_path, sub, "mlx5_core.rdma.3")
    found = facts(tmp_path)
    assert found.devices_elsewhere == ("0000:02:00.0",)
    assert isinstance(found.namespace_mode, Unknown)  # a tree has no commands


def test_the_namespace_mode_is_asked_where_a_device_is_elsewhere() -> None:
    moved = rdma.probe(SimulatedHost("pcie-l40s+rdma-devices-in-pods"))
    assert isinstance(moved, RdmaFacts)
    assert moved.namespace_mode == "exclusive"
    assert moved.devices_elsewhere
    assert set(moved.names_elsewhere) == set(moved.devices_elsewhere)  # their uverbs devices are listed here
    usual = rdma.probe(SimulatedHost("pcie-l40s"))
    assert isinstance(usual, RdmaFacts)
    assert usual.devices_elsewhere == ()
    assert isinstance(usual.namespace_mode, Unknown)


def test_a_thousand_empty_gids_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_rdma_device(tmp_path, "rxe0", gids=2, empty_gids=1022)
    host = LocalHost(str(tmp_path))
    asked: list[str] = []
    read = host.read

    def counting(path: str, limit: int = 65536) -> object:
        asked.append(path)
        return read(path, limit)

    monkeypatch.setattr(host, "read", counting)
    found = rdma.probe(host)
    assert isinstance(found, RdmaFacts)
    gids = found.devices[0].ports[0].gids
    assert not isinstance(gids, Unknown)
    assert len(gids) == 2
    assert len([path for path in asked if "/gids/" in path]) < 20


def test_a_port_that_is_down_and_one_that_cannot_be_read(tmp_path: Path) -> None:
    add_rdma_device(tmp_path, "mlx5_0", state="1: DOWN", rate="garbage")
    (port,) = facts(tmp_path).devices[0].ports
    assert port.state == "DOWN"
    assert isinstance(port.rate_gbps, Unknown)
    assert port.rate_gbps.reason is Reason.MALFORMED


def test_virtual_functions_are_seen(tmp_path: Path) -> None:
    add_function(tmp_path, NIC, 0x15B3, 0x101E, 0x020000)
    add_rdma_device(tmp_path, "mlx5_0", NIC)
    link(tmp_path, "/sys/devices/" + "/".join(NIC) + "/physfn", "../0000:01:01.0")
    assert facts(tmp_path).devices[0].is_virtual_function


def test_names_with_escape_sequences_are_made_harmless(tmp_path: Path) -> None:
    add_rdma_device(tmp_path, "mlx5\x1b[2J")
    (device,) = facts(tmp_path).devices
    assert "\x1b" not in device.name
    assert device.ports[0].state == "ACTIVE"


def test_no_ib_core_is_not_there(tmp_path: Path) -> None:
    found = rdma.probe(LocalHost(str(tmp_path)))
    assert isinstance(found, Unknown)
    assert found.reason is Reason.NOT_THERE


def base(root: Path, path: tuple[str, ...] = NIC, name: str = "mlx5_0") -> Path:
    return root / "sys/devices" / "/".join(path) / "infiniband" / name


def test_the_netdev_of_a_roce_port_is_that_of_its_gid(tmp_path: Path) -> None:
    add_function(tmp_path, NIC)
    add_rdma_device(tmp_path, "mlx5_0", NIC, ports=2, link_layer="Ethernet")
    for number, netdev in ((1, "eth7"), (2, "eth3")):
        write(base(tmp_path), f"ports/{number}/gid_attrs/ndevs/0", f"{netdev}\n")
        write(tmp_path, f"/sys/devices/{'/'.join(NIC)}/net/{netdev}/dev_port", "0\n")
    assert [port.netdev for port in facts(tmp_path).devices[0].ports] == ["eth7", "eth3"]


def test_the_netdev_of_an_infiniband_port_is_the_one_with_its_dev_port(tmp_path: Path) -> None:
    add_function(tmp_path, NIC)
    add_rdma_device(tmp_path, "mlx5_0", NIC, ports=3)
    for netdev, dev_port in (("ib0", 1), ("ib1", 0)):
        write(tmp_path, f"/sys/devices/{'/'.join(NIC)}/net/{netdev}/dev_port", f"{dev_port}\n")
    first, second, third = facts(tmp_path).devices[0].ports
    assert (first.netdev, second.netdev) == ("ib1", "ib0")
    assert isinstance(third.netdev, Unknown)


def test_gids_behind_a_few_empty_entries_are_found(tmp_path: Path) -> None:
    add_rdma_device(tmp_path, "rxe0", gids=8, empty_gids=248)
    port = base(tmp_path, ("virtual",), "rxe0") / "ports/1"
    for index in (0, 1, 3, 4, 5, 6):
        write(port, f"gids/{index}", "0000:" * 7 + "0000\n")
    gids = facts(tmp_path).devices[0].ports[0].gids
    assert not isinstance(gids, Unknown)
    assert [gid.index for gid in gids] == [2, 7]


def test_a_table_of_empty_gids_is_empty_and_one_that_is_not_there_is_unknown(tmp_path: Path) -> None:
    add_rdma_device(tmp_path, "rxe0", gids=0)
    add_rdma_device(tmp_path, "rxe1", gids=0, empty_gids=0)
    empty, absent = facts(tmp_path).devices
    assert empty.ports[0].gids == ()
    assert isinstance(absent.ports[0].gids, Unknown)


def test_gids_that_make_no_sense_are_not_an_empty_table(tmp_path: Path) -> None:
    add_rdma_device(tmp_path, "rxe0", gids=0, empty_gids=1)
    write(base(tmp_path, ("virtual",), "rxe0"), "ports/1/gids/0", "10.0.0.1\n")
    gids = facts(tmp_path).devices[0].ports[0].gids
    assert isinstance(gids, Unknown)
    assert gids.reason is Reason.MALFORMED


def test_a_subfunction_belongs_to_the_pci_function_above_it(tmp_path: Path) -> None:
    add_function(tmp_path, NIC, 0x15B3, 0x1021, 0x020000, numa_node=1)
    link(tmp_path, f"/sys/devices/{'/'.join(NIC)}/driver", "../../../../bus/pci/drivers/mlx5_core")
    above = (*NIC, "mlx5_core.sf.4")
    add_rdma_device(tmp_path, "mlx5_2", above, gids=0)
    write(tmp_path, f"/sys/devices/{'/'.join(above)}/net/eth9/dev_port", "0\n")
    (device,) = facts(tmp_path).devices
    assert (device.bdf, device.numa_node, device.driver) == ("0000:01:00.0", 1, "mlx5_core")
    assert device.ports[0].netdev == "eth9"


def test_hw_counters_below_the_device_and_none_at_all(tmp_path: Path) -> None:
    add_rdma_device(tmp_path, "rxe0")
    add_rdma_device(tmp_path, "rxe1")
    write(base(tmp_path, ("virtual",), "rxe0"), "hw_counters/sent_pkts", "1\n")
    first, second = facts(tmp_path).devices
    assert first.ports[0].hw_counters == ("sent_pkts",)
    assert isinstance(second.ports[0].hw_counters, Unknown)


def test_no_numa_node_is_not_node_zero(tmp_path: Path) -> None:
    add_function(tmp_path, NIC, numa_node=-1)
    add_rdma_device(tmp_path, "mlx5_0", NIC)
    numa_node = facts(tmp_path).devices[0].numa_node
    assert isinstance(numa_node, Unknown)
    assert "-1" in str(numa_node)


def test_an_infiniband_class_without_devices(tmp_path: Path) -> None:
    (tmp_path / "sys/class/infiniband").mkdir(parents=True)
    assert facts(tmp_path).devices == ()


def test_entries_that_are_no_devices_spoil_nothing(tmp_path: Path) -> None:
    add_rdma_device(tmp_path, "mlx5_0")
    write(tmp_path, "/sys/class/infiniband/file", "x")
    link(tmp_path, "/sys/class/infiniband/nowhere", "../../devices/gone")
    by_name = {device.name: device for device in facts(tmp_path).devices}
    assert by_name["mlx5_0"].ports[0].state == "ACTIVE"
    assert by_name["file"].ports == by_name["nowhere"].ports == ()


def test_a_recorded_h100_node(tmp_path: Path) -> None:
    with tarfile.open(machine_file("ib_sysfs/gpud-h100-sys-class-infiniband.tar.gz")) as archive:
        archive.extractall(tmp_path / "x")
    (tmp_path / "node/sys/class").mkdir(parents=True)
    (tmp_path / "x/sys-class-infiniband-h100.0").rename(tmp_path / "node/sys/class/infiniband")
    devices = facts(tmp_path / "node").devices
    names = [device.name for device in devices]
    assert names[0] == "mlx5_0"
    assert any(name.startswith("mlx5_bond") for name in names)
    assert all(port.rate_gbps == 400.0 for port in devices[0].ports)
    assert all(port.state == "ACTIVE" for device in devices for port in device.ports)
    assert all(isinstance(device.bdf, Unknown) for device in devices)


def unpack_ttar(text: str, root: Path) -> None:
    """Unpacks a text archive of prometheus' procfs: Directory, or Path with SymlinkTo or Lines."""
    lines = iter(text.splitlines())
    path = Path()
    for line in lines:
        word, _, rest = line.partition(": ")
        if word == "Directory":
            (root / rest).mkdir(parents=True, exist_ok=True)
        elif word == "Path":
            path = root / rest
            path.parent.mkdir(parents=True, exist_ok=True)
        elif word == "SymlinkTo":
            path.symlink_to(rest)
        elif word == "Lines":
            content = "".join(f"{next(lines)}\n" for _ in range(int(rest)))
            path.write_text(content.replace("NULLBYTE", "\0").removesuffix("EOF\n"))


def check_fixtures(root: Path) -> None:
    hfi, mlx4, mlx5 = facts(root).devices
    assert (hfi.name, mlx4.name, mlx5.name) == ("hfi1_0", "mlx4_0", "mlx5_0")
    assert [(port.rate_gbps, port.rate_text) for port in hfi.ports] == [(100.0, "4X EDR")]
    assert [(port.number, port.rate_gbps, port.state) for port in mlx4.ports] == [
        (1, 40.0, "ACTIVE"),
        (2, 40.0, "ACTIVE"),
    ]
    assert all(port.link_layer == "InfiniBand" for port in mlx4.ports)
    (port,) = mlx5.ports
    assert not isinstance(port.counters, Unknown)
    assert not isinstance(port.hw_counters, Unknown)
    assert "port_xmit_data" in port.counters
    assert "packet_seq_err" in port.hw_counters
    assert isinstance(hfi.ports[0].hw_counters, Unknown)


@pytest.mark.slow
def test_omni_path_and_two_ports_from_the_text_archive(tmp_path: Path) -> None:
    text = machine_file("fixtures/procfs-fixtures.ttar").read_text(errors="replace")
    unpack_ttar(text, tmp_path)
    check_fixtures(tmp_path / "fixtures")


@pytest.mark.slow
def test_omni_path_and_two_ports_from_the_tree(tmp_path: Path) -> None:
    with tarfile.open(machine_file("ib_sysfs/procfs-sys-subset.tar.gz")) as archive:
        archive.extractall(tmp_path)
    check_fixtures(tmp_path)


@pytest.mark.parametrize("model", ["h100", "gb200"])
def test_rendered_models(tmp_path: Path, model: str) -> None:
    with tarfile.open(machine_file(f"synth_sysfs/nvml-mock-{model}-rendered-sysfs.tar.gz")) as archive:
        archive.extractall(tmp_path)
    devices = facts(tmp_path / model).devices
    assert len(devices) == 8
    for device in devices:
        (port,) = device.ports
        assert (port.state, port.physical_state, port.rate_gbps) == ("ACTIVE", "LinkUp", 400.0)
        assert not isinstance(port.gids, Unknown)
        assert not isinstance(device.uverbs, Unknown)


@given(st.text())
def test_parsers_take_any_text(text: str) -> None:
    rdma.parse_rate(text)
    rdma.parse_numbered(text)
    rdma.natural(text)
    rdma.pci_function(text)


@given(st.text(), st.text(), st.text())
def test_any_text_in_any_file_gives_facts(state: str, rate: str, gid: str) -> None:
    host = Telling({"state": state, "rate": rate, "gids/0": gid, "numa_node": rate, "lid": state})
    found = rdma.probe(host)
    assert isinstance(found, RdmaFacts)
    port = found.devices[0].ports[0]
    assert all(str(fact).isprintable() for fact in (port.state, port.rate_text, port.gids, port.rate_gbps))


class Telling(LocalHost):
    """A host with one device and given file contents."""

    def __init__(self, texts: dict[str, str]) -> None:
        super().__init__("/nowhere")
        self.texts = texts

    def names(self, path: str) -> Maybe[tuple[str, ...]]:
        known = {"/sys/class/infiniband": ("mlx5_0",), "/sys/class/infiniband/mlx5_0/ports": ("1",)}
        return known.get(path, Unknown(Reason.NOT_THERE, path))

    def read_bytes(self, path: str, limit: int = 65536) -> Maybe[bytes]:
        text = next((text for end, text in self.texts.items() if path.endswith(f"/{end}")), None)
        return Unknown(Reason.NOT_THERE, path) if text is None else text.encode(errors="replace")


def test_a_device_of_a_pod_is_read_by_the_pods_own_sysfs(tmp_path: Path) -> None:
    """Only root on the host may read it; a tree has it where it would be."""
    other = ("pci0000:00", "0000:00:02.0", "0000:02:00.0")
    add_function(tmp_path, other, 0x15B3, 0x1021, 0x020700)
    add_auxiliary(tmp_path, other, "mlx5_core.rdma.1")
    write(tmp_path, "/sys/class/infiniband/x", "")
    (tmp_path / "sys/class/infiniband/x").unlink()
    write(tmp_path, "/sys/class/infiniband_verbs/uverbs7/ibdev", "mlx5_5\n")
    link(tmp_path, "/sys/class/infiniband_verbs/uverbs7/device", f"../../../devices/{'/'.join(other)}")
    link(tmp_path, "/proc/self", "10")
    for pid, namespace in ((10, "net:[1]"), (11, "net:[1]"), (12, "net:[2]")):
        link(tmp_path, f"/proc/{pid}/ns/net", namespace)
    port = "/proc/12/root/sys/class/infiniband/mlx5_5/ports/1"
    write(tmp_path, f"{port}/state", "4: ACTIVE\n")
    write(tmp_path, f"{port}/counters/port_xmit_data", "25\n")
    write(tmp_path, f"{port}/counters/port_rcv_data", "50\n")
    found = facts(tmp_path)
    assert found.devices == ()
    (device,) = found.in_pods
    assert (device.name, device.bdf, device.uverbs) == ("mlx5_5", "0000:02:00.0", "/dev/infiniband/uverbs7")
    assert device.ports[0].state == "ACTIVE"
    assert isinstance(device.ports[0].netdev, Unknown)  # its name is another interface's here
    counters = read_port(LocalHost(str(tmp_path)), device.sysfs_path, device.ports[0])
    assert (counters.sent_bytes, counters.received_bytes) == (100, 200)
    # A process of a third namespace pretends to have it: then nobody is believed.
    link(tmp_path, "/proc/13/ns/net", "net:[3]")
    write(tmp_path, "/proc/13/root/sys/class/infiniband/mlx5_5/ports/1/counters/port_xmit_data", "1\n")
    assert facts(tmp_path).in_pods == ()
