"""Host bridges between GPU and NIC, the driver's mapping of peers, and looks at NIC firmware."""

from __future__ import annotations

import pytest

from probes.checks.registry import findings
from probes.queries.finding import Finding, Status
from probes.simulation.host import SimulatedHost
from probes.snapshot.examination import examine
from tests.support.doctor import findings_on


def with_bridge(device: str, vendor: str = "8086") -> Finding:
    host = SimulatedHost("dgx-a100+p2p-host-bridge-unlisted", clock=lambda: 1000.0)
    for path in [path for path in host.tree.files if path.count("/") == 5 and path.endswith(":00.0/uevent")]:
        host.tree.add(path, f"PCI_CLASS=60000\nPCI_ID={vendor}:{device}\n")
    (finding,) = findings(examine(host), only={"p2p-host-bridge-unlisted"})
    return finding


@pytest.mark.parametrize(
    ("vendor", "device", "status"),
    [
        ("8086", "A700", Status.FOUND),  # Raptor Lake
        ("8086", "09A2", Status.PASSED),  # Ice Lake and newer Xeons
        ("8086", "2F00", Status.FOUND),  # Xeon E5 v3 forwards only within one host bridge
        ("1022", "1480", Status.PASSED),  # Zen 2
    ],
)
def test_only_unlisted_host_bridges_of_intel_are_found(vendor: str, device: str, status: Status) -> None:
    assert with_bridge(device, vendor).status is status


def test_pairs_below_a_switch_need_no_host_bridge() -> None:
    finding = findings_on("hgx-h100")["p2p-host-bridge-unlisted"]
    assert finding.status is Status.PASSED
    assert finding.evidence[0].value == "no pair needs the CPU"


def test_the_option_alone_is_no_fault_without_translation() -> None:
    host = SimulatedHost("hgx-h100", clock=lambda: 1000.0)
    host.tree.add("/proc/driver/nvidia/params", "DmaRemapPeerMmio: 0\n")
    (finding,) = findings(examine(host), only={"peer-mmio-not-remapped"})
    assert finding.status is Status.PASSED


def test_without_the_driver_its_option_hides_nothing() -> None:
    host = SimulatedHost("hgx-h100", clock=lambda: 1000.0)
    host.tree.remove("/proc/driver/nvidia/params")
    (finding,) = findings(examine(host), only={"peer-mmio-not-remapped"})
    assert finding.status is Status.PASSED


@pytest.mark.parametrize(
    ("fault", "parameter"),
    [("pcie-devctl-relaxed-ordering", "PCI_WR_ORDERING"), ("pcie-devctl-read-request", "MAX_ACC_OUT_READ")],
)
def test_firmware_settings_are_looked_at_by_hand(fault: str, parameter: str) -> None:
    fix = findings_on(f"hgx-h100+{fault}")[fault].fix
    assert fix is not None
    (look,) = [step for step in fix.steps if "mlxconfig" in step.why]
    assert look.is_instruction
    assert f"mlxconfig -d 0000:1{'b' if parameter == 'PCI_WR_ORDERING' else 'a'}:00.0 q" in look.why
    assert parameter in look.why
