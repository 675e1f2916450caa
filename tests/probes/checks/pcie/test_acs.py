"""ACS redirects, ATS and Direct NIC platforms, and which pairs take a detour."""

from __future__ import annotations

from dataclasses import replace

import pytest

from probes.base.evidence import Severity
from probes.base.unknown import Unknown
from probes.checks.registry import findings
from probes.facts.pci.config_space import Acs, ConfigSpace, acs_flags
from probes.facts.pci.functions import PciFacts, PciKind
from probes.facts.pci.rdma_topo import RdmaTopoFacts
from probes.plans.pcie import redirects_off
from probes.queries.finding import Status
from probes.queries.pcie_paths import detours
from probes.snapshot.examination import Examination
from probes.topology.nccl_paths import Nccl
from tests.probes.checks.pcie.nodes import (
    ABSENT,
    DENIED,
    SLOW,
    as_guest,
    finding,
    first,
    healthy,
    said,
    spaces,
    with_acs,
    with_function,
    with_functions,
    with_node,
    with_spaces,
)
from tests.support.doctor import examination_of, findings_on


@pytest.mark.parametrize("control", [0x00, 0x01, 0x02, 0x10, 0x20, 0x40, 0x73])
def test_acs_bits_without_redirect_are_no_fault(control: int) -> None:
    """SrcValid, TransBlk, EgressCtrl, DirectTrans are not redirects; UpstreamFwd alone redirects nothing."""
    assert finding(with_acs(healthy(), control), "acs-redirect-enabled").status is Status.PASSED


@pytest.mark.parametrize("control", [0x04, 0x08, 0x0C, 0x1D])
def test_each_redirecting_bit_of_acs_is_found(control: int) -> None:
    result = finding(with_acs(healthy(), control), "acs-redirect-enabled")
    assert (result.status, result.severity) == (Status.FOUND, Severity.WARNING)
    assert "setpci -s " in said(result)


def test_redirects_that_meet_a_translating_iommu_are_critical() -> None:
    translated = with_functions(healthy(), iommu_type="DMA-FQ")
    result = finding(with_acs(translated, 0x1D), "acs-redirect-enabled")
    assert result.severity is Severity.CRITICAL


def test_a_translating_iommu_is_fixed_before_acs() -> None:
    """Addresses that need translation go up with or without ACS, so clearing ACS alone changes nothing."""
    translated = with_acs(with_functions(healthy(), iommu_type="DMA-FQ"), 0x1D)
    found = {
        finding.id: finding
        for finding in findings(translated, only=["acs-redirect-enabled", "iommu-translated"])
    }
    redirect, iommu = found["acs-redirect-enabled"], found["iommu-translated"]
    assert redirect.part_of == "iommu-translated"
    assert redirect.fix is not None
    assert not any(step.argv[:1] == ("setpci",) for step in redirect.fix.steps)
    assert redirect.fix == iommu.fix
    # The counted finding is as severe as its part.
    assert iommu.severity is Severity.CRITICAL
    assert "boot with iommu=pt first" in str(redirects_off(translated))


def test_the_fix_clears_only_the_redirects_and_can_be_undone() -> None:
    plan = finding(with_acs(healthy(), 0x1D), "acs-redirect-enabled").fix
    assert plan is not None
    step = plan.steps[0]
    assert step.argv[3] == "ECAP_ACS+6.w=0000:000c"
    assert step.undo[3] == "ECAP_ACS+6.w=000c:000c"
    assert "pci=disable_acs_redir=" in plan.steps[-3].why
    assert plan.disturbs


@pytest.mark.parametrize(("depth", "status"), [(0, Status.PASSED), (2, Status.FOUND), (4, Status.PASSED)])
def test_only_the_ports_where_the_path_turns_are_judged(depth: int, status: Status) -> None:
    """With two levels of switches, redirects of root ports and inner ports do not matter."""
    examination = healthy("dgx-a100")
    changed = {}
    for gpu in examination.topology.gpus:
        pci = examination.node.pci
        assert isinstance(pci, PciFacts)
        port = pci.functions[gpu.id].chain[depth]
        space = spaces(examination)[port]
        changed[port] = replace(space, acs=replace(space.acs, on=acs_flags(0x1D), control=0x1D))
    assert finding(with_spaces(examination, changed), "acs-redirect-enabled").status is status


def test_acs_has_to_be_on_in_virtual_machines() -> None:
    result = finding(as_guest(with_acs(healthy(), 0x1D)), "acs-redirect-enabled")
    assert result.status is Status.PASSED
    assert "virtual machine" in said(result)


def test_acs_is_not_judged_on_an_unknown_platform() -> None:
    lost = with_node(with_acs(healthy(), 0x1D), platform=SLOW)
    assert finding(lost, "acs-redirect-enabled").status is Status.UNKNOWN
    assert finding(with_node(healthy(), platform=SLOW), "acs-redirect-enabled").status is Status.PASSED


def test_no_fix_clears_acs_on_a_host_with_passthrough() -> None:
    examination = with_acs(healthy(), 0x1D)
    handed = with_function(examination, first(examination, PciKind.GPU).bdf, driver="vfio-pci")
    result = finding(handed, "acs-redirect-enabled")
    assert (result.status, result.severity, result.fix) == (Status.FOUND, Severity.NOTE, None)


def test_nics_with_ats_bypass_redirects() -> None:
    examination = with_acs(healthy(), 0x5D)
    assert finding(examination, "acs-redirect-enabled").status is Status.FOUND
    assert finding(examination, "acs-direct-translated-without-ats").status is Status.FOUND
    changed = {
        bdf: replace(space, ats_enabled=True)
        for bdf, space in spaces(examination).items()
        if isinstance(space, ConfigSpace)
    }
    translating = with_spaces(examination, changed)
    assert finding(translating, "acs-redirect-enabled").status is Status.PASSED
    assert finding(translating, "acs-direct-translated-without-ats").status is Status.PASSED


def test_a_nic_without_the_ats_capability_does_not_translate() -> None:
    examination = with_acs(healthy(), 0x5D)
    changed = {
        bdf: replace(space, ats_enabled=ABSENT)
        for bdf, space in spaces(examination).items()
        if isinstance(space, ConfigSpace)
    }
    result = finding(with_spaces(examination, changed), "acs-direct-translated-without-ats")
    assert result.status is Status.FOUND
    assert "no ATS capability" in said(result)


def test_redirects_of_the_kernel_are_ok_on_grace() -> None:
    examination = healthy("gb200")
    ports = [space for space in spaces(examination).values() if isinstance(space, ConfigSpace)]
    assert any(isinstance(space.acs, Acs) and space.acs.on.redirects for space in ports)
    assert finding(examination, "acs-redirect-enabled").status is Status.PASSED


def test_rdma_topo_is_the_judge_on_direct_nic_platforms() -> None:
    good = replace(healthy("gb200"), rdma_topo=RdmaTopoFacts(("ACS for cx_switch is right",), ()))
    assert finding(good, "acs-direct-nic").status is Status.PASSED
    result = findings_on("gb200+acs-direct-nic")["acs-direct-nic"]
    assert result.evidence[0].source == "rdma_topo check"
    assert result.devices
    assert "ACS for grace_rp" in result.cause
    assert "DMA function" in result.cause


def test_the_cause_of_an_rdma_topo_failure_names_the_topology() -> None:
    failed = RdmaTopoFacts((), ("ACS for cx_switch 0000:17:00.0 has incorrect values 0011101 != xx000x0",))
    numa = finding(replace(healthy("gb200"), rdma_topo=failed), "acs-direct-nic")
    assert "each attached to the CPU" in numa.cause
    examination = replace(healthy(), rdma_topo=failed)
    ports = set(first(examination, PciKind.GPU).chain[:-1])
    for port in ports:
        examination = with_function(examination, port, vendor_id=0x15B3)
    inline = finding(examination, "acs-direct-nic")
    assert "share the ConnectX's own switch" in inline.cause
    assert failed.failed[0] in inline.cause


def test_no_step_changes_the_boot_loader() -> None:
    fix = findings_on("gb200+acs-direct-nic")["acs-direct-nic"].fix
    assert fix is not None
    assert all(step.is_instruction for step in fix.steps)
    assert any("rdma_topo write-grub-acs" in step.why for step in fix.steps)


@pytest.mark.parametrize(("version", "is_older"), [((6, 14), True), ((6, 15), False), ((7, 0), False)])
def test_before_linux_6_15_a_list_of_ports_may_be_ignored(version: tuple[int, int], is_older: bool) -> None:
    """“PCI/ACS: Fix 'pci=config_acs=' parameter” is in 6.15; rdma_topo has setpci-acs for older kernels."""
    examination = examination_of("gb300+acs-direct-nic")
    kernel = examination.node.kernel
    assert not isinstance(kernel, Unknown)
    fix = finding(with_node(examination, kernel=replace(kernel, version=version)), "acs-direct-nic").fix
    assert fix is not None
    assert ("rdma_topo setpci-acs" in "".join(step.why for step in fix.steps)) == is_older


def test_vera_root_ports_are_like_graces() -> None:
    examination = with_acs(healthy(), 0x1D)
    port = first(examination, PciKind.GPU).chain[0]
    vera = with_function(examination, port, vendor_id=0x10DE, device_id=0x2F96)
    assert finding(vera, "acs-redirect-enabled").status is Status.PASSED


def direct_nic(port_to_nic: int, port_to_gpu: int, root_port: int) -> Examination:
    """Return a node with a ConnectX DMA function beside its first GPU: RP - SW - DMA, and - SW - GPU."""
    examination = healthy()
    pci = examination.node.pci
    assert isinstance(pci, PciFacts)
    gpu = first(examination, PciKind.GPU)
    beside = replace(gpu, bdf="0000:1d:00.0", kind=PciKind.OTHER, vendor_id=0x15B3, device_id=0x2100)
    root, upper = gpu.chain[0], gpu.chain[1]
    beside = replace(beside, chain=(root, upper, "0000:17:0f.0", beside.bdf))
    moved = replace(gpu, chain=(*gpu.chain[:3], "0000:1e:00.0", "0000:1f:00.0", gpu.bdf))
    functions = {**pci.functions, beside.bdf: beside, gpu.bdf: moved}
    like = spaces(examination)[gpu.chain[2]]
    assert isinstance(like, ConfigSpace)
    assert isinstance(like.acs, Acs)
    changed = {
        bdf: replace(like, acs=replace(like.acs, on=acs_flags(control), control=control))
        for bdf, control in (("0000:17:0f.0", port_to_nic), (gpu.chain[2], port_to_gpu), (root, root_port))
    }
    return with_spaces(with_node(examination, pci=replace(pci, functions=functions)), changed)


def test_without_rdma_topo_its_rules_are_read_from_the_ports() -> None:
    right = direct_nic(0b0011001, 0b0010101, 0b0011100)
    assert finding(right, "acs-direct-nic").status is Status.PASSED
    assert finding(right, "acs-redirect-enabled").status is Status.PASSED
    cleared = finding(direct_nic(0, 0, 0), "acs-direct-nic")
    assert cleared.status is Status.FOUND
    assert len(cleared.devices) == 3
    kernels = finding(direct_nic(0x1D, 0x1D, 0x1D), "acs-direct-nic")
    assert kernels.status is Status.FOUND
    unread = with_spaces(right, dict.fromkeys(spaces(right), DENIED))
    assert finding(unread, "acs-direct-nic").status is Status.UNKNOWN


def test_vera_root_ports_cannot_redirect_completions() -> None:
    """rdma_topo of 2026-08: "Advertises P2P Completion Redirect (bit-3) as read-only and disabled"."""
    grace = direct_nic(0b0011001, 0b0010101, 0b0010100)
    root = first(grace, PciKind.GPU).chain[0]
    assert finding(grace, "acs-direct-nic").devices == (root,)
    vera = with_function(grace, root, vendor_id=0x10DE, device_id=0x2F95)
    assert finding(vera, "acs-direct-nic").status is Status.PASSED


def test_redirects_send_every_near_pair_on_a_detour() -> None:
    examination = healthy()
    assert detours(examination) == frozenset()
    bent = detours(with_acs(examination, 0x1D))
    near = {(gpu.id, nic) for gpu in examination.topology.gpus for nic in near_nics(examination, gpu.id)}
    assert near
    assert bent == near


def near_nics(examination: Examination, gpu: str) -> list[str]:
    topology = examination.topology
    return [nic.id for nic in topology.nics if topology.paths[gpu, nic.id].nccl_pcie in (Nccl.PIX, Nccl.PXB)]


def test_a_translating_iommu_sends_pairs_on_a_detour_without_acs() -> None:
    """An IOVA is in no window of a switch."""
    assert detours(with_functions(healthy(), iommu_type="DMA-FQ"))


def test_nics_that_translate_by_ats_take_no_detour() -> None:
    examination = with_acs(healthy(), 0x5D)
    changed = {
        bdf: replace(space, ats_enabled=True)
        for bdf, space in spaces(examination).items()
        if isinstance(space, ConfigSpace)
    }
    assert detours(with_spaces(examination, changed)) == frozenset()


@pytest.mark.parametrize("name", ["gb200", "cloud-vm", "hgx-h100", "dgx-a100", "pcie-l40s"])
def test_healthy_nodes_have_no_detours(name: str) -> None:
    assert detours(healthy(name)) == frozenset()


def test_a_redirect_marks_the_switch_and_its_gpus_and_nics() -> None:
    """The overview draws a switch by its upstream port."""
    result = findings_on("hgx-h100+acs-on")["acs-redirect-enabled"]
    examination = healthy()
    gpu = first(examination, PciKind.GPU)
    assert gpu.chain[-3] in result.devices
    assert gpu.bdf in result.devices
    assert set(near_nics(examination, gpu.bdf)) <= set(result.devices)
