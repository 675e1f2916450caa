"""Which ConnectX functions manage NVSwitches, and that they are no NICs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.node import probe_node
from probes.facts.pci import functions as pci
from probes.facts.pci.functions import PciFacts, PciKind, with_management
from probes.facts.rdma import devices as rdma
from probes.facts.rdma.devices import RdmaFacts, for_functions
from probes.host.protocol import READ_LIMIT_BYTES
from probes.simulation.host import SimulatedHost

BRIDGE = ["0000:05:00.0", "0000:05:00.1", "0000:05:00.2", "0000:05:00.3"]


class Host(SimulatedHost):
    """A simulated node whose VPD is something else; None: the node's own."""

    vpd: Maybe[bytes] | None = None
    read_vpd = 0

    def read_bytes(self, path: str, limit: int = READ_LIMIT_BYTES) -> Maybe[bytes]:
        if path.endswith("/vpd"):
            self.read_vpd += 1
            if self.vpd is not None:
                return self.vpd
        return super().read_bytes(path, limit)


def functions_of(host: Host) -> PciFacts:
    facts = pci.probe(host)
    assert isinstance(facts, PciFacts)
    return with_management(host, facts)


def test_the_vpd_tells_the_bridge_from_nics() -> None:
    facts = functions_of(Host("hgx-b200"))
    assert facts.management == dict.fromkeys(BRIDGE, "VPD has SMDL=SW_MNG")
    assert {facts.functions[bdf].kind for bdf in BRIDGE} == {PciKind.NVSWITCH_MANAGEMENT}
    assert len(facts.nics) == 8


@pytest.mark.parametrize(
    ("node", "evidence"),
    [("hgx-b200", "subsystem 15b3:0087"), ("hgx-b300", "a ConnectX-7 with 2 PCIe lanes")],
)
def test_without_root_it_is_assumed_and_said_so(node: str, evidence: str) -> None:
    host = Host(node)
    host.vpd = Unknown(Reason.NEEDS_ROOT, "vpd")
    facts = functions_of(host)
    assert list(facts.management) == BRIDGE
    assert set(facts.management.values()) == {
        f"assumed from {evidence}, because the VPD is unknown (needs root)"
    }


def test_a_vpd_without_the_mark_makes_it_a_nic() -> None:
    host = Host("hgx-b200")
    host.vpd = b"\x82\x04\x00card\x78"
    facts = functions_of(host)
    assert facts.management == {}
    assert len(facts.nics) == 12


@pytest.mark.parametrize("node", ["hgx-h100", "gb200", "pcie-l40s", "cloud-vm"])
def test_the_vpd_of_usual_nics_is_not_read(node: str) -> None:
    host = Host(node)
    assert functions_of(host).management == {}
    assert host.read_vpd == 0


def test_a_sleeping_function_is_not_woken_up() -> None:
    host = Host("hgx-b200")
    for bdf in BRIDGE:
        path = host.tree.links[f"/sys/bus/pci/devices/{bdf}"].removeprefix("../../../")
        host.tree.add(f"/sys/{path}/power/runtime_status", "suspended\n")
    assert list(functions_of(host).management) == BRIDGE
    assert host.read_vpd == 0


def test_a_node_without_gpus_is_left_as_it_is() -> None:
    host = Host("hgx-b200")
    facts = pci.probe(host)
    assert isinstance(facts, PciFacts)
    nics = {bdf: function for bdf, function in facts.functions.items() if function.kind is not PciKind.GPU}
    without = PciFacts(nics, facts.names)
    assert with_management(host, without) == without


def test_its_rdma_devices_are_apart() -> None:
    host = Host("hgx-b200")
    all_devices = rdma.probe(host)
    assert isinstance(all_devices, RdmaFacts)
    assert len(all_devices.devices) == 12
    node = probe_node(host)
    assert isinstance(node.rdma, RdmaFacts)
    assert [device.name for device in node.rdma.devices] == [f"mlx5_{number}" for number in range(4, 12)]
    assert [device.name for device in node.rdma.management] == ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"]


def test_unknown_functions_leave_all_devices() -> None:
    facts = rdma.probe(Host("hgx-b200"))
    assert for_functions(facts, Unknown(Reason.TIMED_OUT, "PCI")) == facts
    missing = Unknown(Reason.NOT_THERE, "/sys/class/infiniband")
    assert for_functions(missing, replace(functions_of(Host("hgx-b200")))) == missing
