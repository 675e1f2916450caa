"""The IOMMU and ATS of NICs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from probes.base.evidence import Severity
from probes.base.unknown import Unknown
from probes.checks.registry import findings
from probes.facts.gpudirect import GdrPath
from probes.facts.pci.config_space import ConfigSpace
from probes.facts.pci.functions import PciKind
from probes.facts.system.platform import PlatformFacts
from probes.queries.finding import Finding, Status
from probes.simulation.host import SimulatedHost
from probes.simulation.node.devices import pci
from probes.snapshot.examination import examine
from tests.probes.checks.pcie.nodes import (
    ABSENT,
    SLOW,
    as_guest,
    finding,
    first,
    healthy,
    said,
    spaces,
    with_functions,
    with_node,
    with_spaces,
)
from tests.support.changed_facts import with_log
from tests.support.doctor import findings_on


def test_an_iommu_that_passes_through_is_fine() -> None:
    """intel_iommu=on is no fault beside iommu=pt: the groups' type decides."""
    kernel = healthy().node.kernel
    assert not isinstance(kernel, Unknown)
    on = with_node(healthy(), kernel=replace(kernel, cmdline="intel_iommu=on iommu=pt"))
    result = finding(on, "iommu-translated")
    assert result.status is Status.PASSED
    assert "identity" in said(result)


@pytest.mark.parametrize("kind", ["DMA", "DMA-FQ"])
def test_an_iommu_that_translates_is_found(kind: str) -> None:
    function = finding(with_functions(healthy(), iommu_type=kind), "iommu-translated")
    assert function.status is Status.FOUND
    assert function.fix is not None
    assert function.fix.needs_reboot


@pytest.mark.parametrize("path", [GdrPath.DMABUF, GdrPath.PEERMEM])
@pytest.mark.parametrize(
    ("kernel", "severity"),
    [((5, 15), Severity.WARNING), ((6, 11), Severity.WARNING), ((6, 12), Severity.CRITICAL)],
)
def test_translation_is_critical_from_linux_6_12_on_whichever_path(
    kernel: tuple[int, int], severity: Severity, path: GdrPath
) -> None:
    """OGK issue 1324 and nv-dma.c: raw BAR addresses are handed out, and writes are lost without an error."""
    translated = with_functions(healthy(), iommu_type="DMA-FQ")
    facts = translated.node.kernel
    assert not isinstance(facts, Unknown)
    translated = with_node(translated, kernel=replace(facts, version=kernel))
    usability = replace(translated.usability, path=path)
    result = finding(replace(translated, usability=usability), "iommu-translated")
    assert result.severity is severity
    assert result.data_path
    assert ("lost without an error" in result.impact) == (severity is Severity.CRITICAL)


def test_iommu_faults_of_the_path_are_quoted_and_those_of_others_not() -> None:
    translated = with_functions(healthy(), iommu_type="DMA")
    gpu = first(translated, PciKind.GPU)
    other = "DMAR: [DMA Write NO_PASID] Request device [fe:1f.0] fault addr 0x1"
    for bdf in (gpu.bdf, gpu.chain[1]):
        line = f"DMAR: [DMA Write NO_PASID] Request device [{bdf[5:]}] fault addr 0x2"
        result = finding(with_log(translated, other, line), "iommu-translated")
        assert result.severity is Severity.CRITICAL
        assert result.evidence[0].value == line
        assert other not in said(result)
    assert finding(with_log(translated, other), "iommu-translated").severity is Severity.WARNING


def test_an_iommu_fault_names_its_device_on_every_node() -> None:
    """Grace, virtual machines and nodes with iommu=pt refuse DMA too."""
    for name in ("hgx-h100", "gb200", "cloud-vm"):
        node = healthy(name)
        nic = first(node, PciKind.NIC)
        line = f"mlx5_core {nic.bdf}: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0021 flags=0x0]"
        result = finding(with_log(node, line), "iommu-fault")
        assert result.status is Status.FOUND
        assert result.devices == (nic.bdf,)
        assert line in said(result)
    other = "DMAR: [DMA Write NO_PASID] Request device [fe:1f.0] fault addr 0x1"
    assert finding(with_log(healthy(), other), "iommu-fault").status is Status.PASSED
    hidden = replace(healthy(), kernel_log=SLOW)
    assert finding(hidden, "iommu-fault").status is Status.UNKNOWN


def test_an_iommu_fault_behind_acs_is_evidence_of_acs() -> None:
    both = findings_on("hgx-h100+acs-on,iommu-fault")
    assert "Request device [1b:00.0]" in said(both["acs-redirect-enabled"])
    assert both["iommu-fault"].part_of == "acs-redirect-enabled"


def test_the_option_that_passes_dma_through_is_that_of_the_processor() -> None:
    def option(architecture: str) -> str:
        translated = with_functions(healthy(), iommu_type="DMA")
        platform = translated.node.platform
        assert isinstance(platform, PlatformFacts)
        here = with_node(translated, platform=replace(platform, cpu_architecture=architecture))
        fix = finding(here, "iommu-translated").fix
        assert fix is not None
        return fix.steps[0].why

    assert "iommu=pt" in option("x86_64")
    assert "iommu.passthrough=1" in option("aarch64")


@pytest.mark.parametrize(
    ("architecture", "cmdline", "status"),
    [
        ("x86_64", "iommu=pt", Status.PASSED),
        ("x86_64", "iommu.passthrough=1", Status.PASSED),
        ("aarch64", "iommu.passthrough=1", Status.PASSED),
        ("aarch64", "iommu=pt", Status.UNKNOWN),
        ("aarch64", "iommu.passthrough=0", Status.UNKNOWN),
    ],
)
def test_an_old_kernels_command_line_is_read_as_its_processor_reads_it(
    architecture: str, cmdline: str, status: Status
) -> None:
    old = with_functions(healthy(), iommu_type=ABSENT)
    kernel, platform = old.node.kernel, old.node.platform
    assert not isinstance(kernel, Unknown)
    assert isinstance(platform, PlatformFacts)
    here = with_node(
        old,
        kernel=replace(kernel, cmdline=cmdline),
        platform=replace(platform, cpu_architecture=architecture),
    )
    assert finding(here, "iommu-translated").status is status


def test_no_groups_is_no_iommu() -> None:
    off = with_functions(healthy(), iommu_group=ABSENT, iommu_type=ABSENT)
    assert finding(off, "iommu-translated").status is Status.PASSED


def test_an_old_kernel_without_group_types_is_judged_by_its_command_line() -> None:
    old = with_functions(healthy(), iommu_type=ABSENT)
    assert finding(old, "iommu-translated").status is Status.PASSED
    kernel = old.node.kernel
    assert not isinstance(kernel, Unknown)
    silent = with_node(old, kernel=replace(kernel, cmdline="ro quiet intel_iommu=on"))
    result = finding(silent, "iommu-translated")
    assert result.status is Status.UNKNOWN
    assert "Linux 5.11" in result.cause


def test_a_translating_smmu_on_grace_and_an_iommu_in_a_guest_are_no_faults() -> None:
    grace = with_functions(healthy("gb200"), iommu_type="DMA-FQ")
    assert finding(grace, "iommu-translated").status is Status.PASSED
    guest = as_guest(with_functions(healthy(), iommu_type="DMA"))
    assert finding(guest, "iommu-translated").status is Status.PASSED


def test_a_guest_that_hides_ats_leaves_it_unknown() -> None:
    examination = healthy("cloud-vm")
    changed = {
        bdf: replace(space, ats_enabled=ABSENT)
        for bdf, space in spaces(examination).items()
        if isinstance(space, ConfigSpace)
    }
    result = finding(with_spaces(examination, changed), "vm-without-p2p-ats")
    assert result.status is Status.UNKNOWN
    assert "check on the host" in result.cause


def test_a_guest_without_a_switch_gets_the_topology_file_as_fix() -> None:
    result = findings_on("cloud-vm")["vm-without-p2p"]
    assert (result.status, result.severity) == (Status.FOUND, Severity.NOTE)
    assert "NCCL_TOPO_FILE" in result.impact
    assert finding(as_guest(healthy()), "vm-without-p2p").status is Status.PASSED


def test_pci_noacs_is_no_kernel_option() -> None:
    kernel = healthy().node.kernel
    assert not isinstance(kernel, Unknown)
    for cmdline, status in (
        ("ro pci=noacs", Status.FOUND),
        ("ro pci=realloc,noacs", Status.FOUND),
        ("ro pci=disable_acs_redir=0000:17:00.0", Status.PASSED),
    ):
        here = with_node(healthy(), kernel=replace(kernel, cmdline=cmdline))
        assert finding(here, "acs-option-ignored").status is status
    fix = finding(with_node(healthy(), kernel=replace(kernel, cmdline="pci=noacs")), "acs-option-ignored").fix
    assert fix is not None
    assert any('pci=disable_acs_redir=\\"<BDF>;<BDF>\\"' in step.why for step in fix.steps)
    lost = with_node(healthy(), kernel=SLOW)
    assert finding(lost, "acs-option-ignored").status is Status.UNKNOWN


CHECK = "nic-ats-on-bare-metal"


def with_ats(node: str) -> Finding:
    host = SimulatedHost(node, clock=lambda: 1000.0)
    for nic in host.tree.nics:
        pci.set_bits(host.tree, nic.bdf, pci.ATS_CONTROL, 0x8000, 0x8000)
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
