"""All PCIe checks: what passes, what is unknown, and what they report."""

from __future__ import annotations

from dataclasses import replace

import pytest

from probes.checks.registry import CHECKS
from probes.facts.pci.config_space import ConfigSpaceFacts
from probes.queries.finding import Status
from probes.simulation.host import SimulatedHost
from probes.simulation.node.devices.pci import LINK_CONTROL, real_path, set_bits
from probes.snapshot.examination import examine
from tests.probes.checks.pcie.nodes import ABSENT, DENIED, SLOW, finding, healthy, spaces, with_node
from tests.support.doctor import findings_on

PCIE_CHECKS = [check for check in CHECKS if check.area == "pcie"]
IDS = [check.id for check in PCIE_CHECKS]
NEED_CONFIG = {
    "acs-redirect-enabled",
    "acs-direct-translated-without-ats",
    "nic-ats-on-bare-metal",
    "pcie-devctl-relaxed-ordering",
    "pcie-devctl-read-request",
    "pcie-devctl-read-request-differs",
    "pcie-devctl-ten-bit-tags-differ",
    "pcie-devctl-payload-differs",
    "pcie-devctl-extended-tags",
    "pcie-aspm-on",
    "pcie-error-unreported",
    "pcie-config-unreachable",
}


@pytest.mark.parametrize("name", ["hgx-h100", "dgx-a100", "pcie-l40s", "gb200", "cloud-vm"])
def test_a_node_that_could_be_read_leaves_nothing_unknown(name: str) -> None:
    found = findings_on(name)
    assert [name for name in IDS if found[name].status is Status.UNKNOWN] == []


def test_facts_that_need_root_are_unknown() -> None:
    denied = dict.fromkeys(spaces(healthy()), DENIED)
    examination = replace(healthy(), config_space=ConfigSpaceFacts(denied))
    for name in IDS:
        result = finding(examination, name)
        assert (result.status is Status.UNKNOWN) == (name in NEED_CONFIG), name
        if name in NEED_CONFIG:
            assert result.cause == "needs root: PCI config beyond 64 bytes"


def test_aspm_is_judged_without_root_where_the_kernel_shows_it() -> None:
    denied = dict.fromkeys(spaces(healthy()), DENIED)
    shown = ConfigSpaceFacts(denied, dict.fromkeys(denied, "off"))
    assert finding(replace(healthy(), config_space=shown), "pcie-aspm-on").status is Status.PASSED
    bdf = healthy().topology.gpus[0].id
    on = replace(shown, aspm={**shown.aspm, bdf: "L1"})
    result = finding(replace(healthy(), config_space=on), "pcie-aspm-on")
    assert result.evidence[0].source == f"/sys/bus/pci/devices/{bdf}/link"
    assert result.evidence[0].value == "GPU0: LnkCtl: ASPM L1 Enabled"


def test_only_the_lower_end_of_a_link_is_asked_for_aspm() -> None:
    """Both ends must enable it, and the downstream port above GPU3 has it enabled alone."""
    found = findings_on("hgx-h100+aspm-on-path")["pcie-aspm-on"]
    assert [line.value for line in found.evidence] == ["GPU3: LnkCtl: ASPM L1 Enabled"]
    host = SimulatedHost("hgx-h100", clock=lambda: 1000.0)
    port = real_path(host.tree, host.tree.gpus[3].bdf).split("/")[-2]
    set_bits(host.tree, port, LINK_CONTROL, 2, 3)
    assert finding(examine(host), "pcie-aspm-on").status is Status.PASSED


def test_a_probe_that_timed_out_never_passes() -> None:
    silent = replace(healthy(), config_space=SLOW, pcie_errors=SLOW)
    for name in NEED_CONFIG | {"pcie-function-gone", "pcie-aer-correctable", "pcie-aer-uncorrectable"}:
        result = finding(silent, name)
        assert result.status is Status.UNKNOWN
        assert "no answer for 10 s" in result.cause


def test_unread_devices_are_unknown_not_absent() -> None:
    lost = with_node(healthy(), pci=SLOW)
    for name in IDS:
        if name != "acs-option-ignored":
            assert finding(lost, name).status is Status.UNKNOWN
    topology = replace(healthy().topology, nics=())
    without = replace(with_node(healthy(), rdma=SLOW), topology=topology)
    assert finding(without, "vm-without-p2p").status is Status.UNKNOWN


def test_a_node_without_gpus_and_nics_has_none_of_these() -> None:
    topology = replace(healthy().topology, gpus=(), nics=())
    bare = with_node(replace(healthy(), topology=topology), rdma=ABSENT)
    for name in IDS:
        assert finding(bare, name).status is Status.PASSED, name


@pytest.mark.parametrize("name", IDS)
def test_each_names_a_document_and_an_area(name: str) -> None:
    finding = findings_on("hgx-h100")[name]
    assert finding.reference
    assert finding.area == "pcie"


def test_commands_are_argv_without_a_shell() -> None:
    for name in ("hgx-h100+acs-on,pcie-devctl-relaxed-ordering,pcie-devctl-read-request,pcie-aspm-on",):
        for result in findings_on(name).values():
            for step in result.fix.steps if result.fix else ():
                assert not any(set(word) & set("|&;$<>`") for word in step.argv)


def test_every_check_has_an_impact_and_a_positive_title() -> None:
    assert [check.id for check in CHECKS if not (check.texts().ok and check.texts().impact)] == []


def test_only_findings_that_cost_bandwidth_degrade_the_verdict() -> None:
    costly = {check.id for check in CHECKS if check.area in ("pcie", "nic") and check.data_path}
    assert {
        "acs-redirect-enabled",
        "iommu-translated",
        "ib-port-not-active",
        "single-rail-or-half-rate",
        "pcie-link-degraded-width",
        "pcie-link-degraded-speed",
        "mtu-mismatch-small",
    } <= costly
    assert not costly & {"gpu-nic-cross-socket", "gpu-nic-through-cpu", "numa-node-unknown"}
