"""What LLDP says of switch ports: whose port it is, and how large frames may be."""

from __future__ import annotations

from typing import Any

import pytest

from probes.base.evidence import Severity
from probes.checks.registry import findings
from probes.queries.finding import Finding, Status
from probes.simulation.host import SimulatedHost
from probes.simulation.node.model.names import SIMULATED_NAMES
from probes.snapshot.examination import examine
from tests.support.doctor import findings_on

DESCRIPTION, FRAME_SIZE = "cable-port-description", "cable-frame-size"


def found_with(node: str = "pcie-l40s", **port: str) -> dict[str, Finding]:
    """Return the findings of a node whose first NIC is at such a switch port."""
    host = SimulatedHost(node)
    netdev, neighbor = next(iter(host.tree.neighbors.items()))
    changed: dict[str, Any] = {**neighbor, "port": {**neighbor["port"], **port}}
    host.tree.neighbors[netdev] = changed
    return {finding.id: finding for finding in findings(examine(host))}


@pytest.mark.parametrize(
    ("description", "severity"),
    [
        ("To-pcie-l40s-ens0np0", None),
        ("pcie-l40s:mlx5_0", None),
        ("pcie-l040s", None),  # leading zeros
        ("Ethernet1", None),  # the port's own name
        ("ens1np0", None),  # without a host, it may be the switch's
        ("rack 3, unit 12", None),
        ("pcie-l40s and pcie-l41s", None),  # a cable that splits
        ("pcie-l40s:mlx5_1", Severity.NOTE),
        ("To-pcie-l41s-eth0", Severity.WARNING),
    ],
)
def test_whose_port_a_switch_port_is(description: str, severity: Severity | None) -> None:
    finding = found_with(descr=description)[DESCRIPTION]
    assert finding.status is (Status.PASSED if severity is None else Status.FOUND)
    if severity is not None:
        assert finding.severity is severity
        assert finding.devices == ("mlx5_0",)
        assert description in finding.evidence[0].value


@pytest.mark.parametrize(
    ("frames", "status"),
    [
        ("9216", Status.PASSED),
        ("9000", Status.PASSED),  # some switches send the MTU
        ("8999", Status.FOUND),
        ("1522", Status.FOUND),
        ("0", Status.PASSED),  # no size
        ("jumbo", Status.PASSED),
    ],
)
def test_frames_smaller_than_the_mtu_are_found(frames: str, status: Status) -> None:
    assert found_with(mfs=frames)[FRAME_SIZE].status is status


def test_a_small_frame_size_names_switch_port_and_mtu() -> None:
    finding = findings_on("bare-roce+frame-size-small")[FRAME_SIZE]
    assert finding.cause == (
        "leaf2a Ethernet1 takes at most 1522 bytes, but mlx5_bond_2 (ens2f0np0) has an MTU of 9000."
    )
    assert finding.data_path
    assert finding.fix is not None
    assert finding.fix.steps[0].why == "On switch leaf2a, set the MTU of port Ethernet1 to at least 9000"


def test_both_ends_of_a_swap_are_named() -> None:
    finding = findings_on("bare-roce+cable-swapped")[DESCRIPTION]
    assert finding.devices == ("mlx5_bond_0", "mlx5_bond_1")
    assert "port of mlx5_bond_0 (ens0f0np0) is described as that of ens1f0np0" in finding.cause


def test_without_the_right_to_ask_lldpd_both_are_unknown() -> None:
    for name in (DESCRIPTION, FRAME_SIZE):
        finding = findings_on("bare-roce+lldp-not-readable")[name]
        assert finding.status is Status.UNKNOWN
        assert "join the group adm" in finding.cause


def test_nothing_heard_is_unknown() -> None:
    host = SimulatedHost("pcie-l40s")
    host.tree.neighbors.clear()
    found = {finding.id: finding for finding in findings(examine(host))}
    assert found[DESCRIPTION].status is Status.UNKNOWN
    assert "has heard no switch" in found[DESCRIPTION].cause


@pytest.mark.parametrize("name", SIMULATED_NAMES)
def test_a_healthy_node_passes_with_and_without_lldpd(name: str) -> None:
    for id_ in (DESCRIPTION, FRAME_SIZE):
        assert findings_on(name)[id_].status is Status.PASSED
