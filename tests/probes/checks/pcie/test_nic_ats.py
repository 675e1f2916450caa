"""ATS of NICs on bare metal: found where nothing needs it."""

from probes.checks.registry import findings
from probes.queries.finding import Finding, Severity, Status
from probes.simulation.host import SimulatedHost
from probes.simulation.node.devices import config_space
from probes.snapshot.examination import examine
from tests.probes.checks.doctor import findings_on

CHECK = "nic-ats-on-bare-metal"


def with_ats(node: str) -> Finding:
    host = SimulatedHost(node, clock=lambda: 1000.0)
    for nic in host.tree.nics:
        config_space.set_bits(host.tree, nic.bdf, config_space.ATS_CONTROL, 0x8000, 0x8000)
    (finding,) = findings(examine(host), only={CHECK})
    return finding


def test_ats_on_bare_metal_is_a_note_about_each_nic() -> None:
    finding = with_ats("hgx-h100")
    assert (finding.status, finding.severity) == (Status.FOUND, Severity.NOTE)
    assert len(finding.devices) == 10
    assert finding.fix is not None
    assert "mlxconfig -d 0000:1a:00.0 q ATS_ENABLED" in finding.fix.steps[0].why


def test_a_guest_needs_ats() -> None:
    assert findings_on("cloud-vm")[CHECK].status is Status.PASSED
    assert with_ats("pcie-l40s+vm-without-p2p").status is Status.PASSED


def test_grace_needs_ats() -> None:
    assert with_ats("gb200").status is Status.PASSED


def test_ports_that_pass_translated_requests_need_ats() -> None:
    finding = with_ats("hgx-h100+acs-direct-translated-without-ats")
    assert "mlx5_2" not in " ".join(evidence.value for evidence in finding.evidence)
    assert "mlx5_0" in " ".join(evidence.value for evidence in finding.evidence)
