"""GPU and NIC that look adjacent in a virtual machine."""

from __future__ import annotations

import pytest

from probes.checks.registry import findings
from probes.queries.finding import Finding, Severity, Status
from probes.simulation.host import SimulatedHost
from probes.simulation.node.devices import config_space as config
from probes.snapshot.examination import examine
from tests.probes.checks.doctor import examination_of
from tests.tiers import USUAL_NODES


def finding_of(host: SimulatedHost) -> Finding:
    (finding,) = findings(examine(host), only={"vm-pair-unproven"})
    return finding


def test_a_short_path_in_a_guest_proves_nothing() -> None:
    """ai-dynamo/dynamo issue 12463: garbage tokens on passthrough VMs."""
    finding = finding_of(SimulatedHost("hgx-h100+vm-pair-unproven", clock=lambda: 1000.0))
    assert (finding.status, finding.severity) == (Status.FOUND, Severity.NOTE)
    assert "GPU0 and mlx5_0" in finding.evidence[0].value


def test_with_ats_the_guest_is_silent() -> None:
    host = SimulatedHost("hgx-h100+vm-pair-unproven", clock=lambda: 1000.0)
    for nic in host.tree.nics:
        config.set_bits(host.tree, nic.bdf, config.ATS_CONTROL, 0x8000, 0x8000)
    assert finding_of(host).status is Status.PASSED


@pytest.mark.parametrize("node", USUAL_NODES)
def test_usual_nodes_are_silent(node: str) -> None:
    (finding,) = findings(examination_of(node), only={"vm-pair-unproven"})
    assert finding.status is not Status.FOUND
