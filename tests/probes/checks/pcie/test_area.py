"""Checks of area pcie: what passes, what is found, what is said to be unknown, and what guides get wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from probes.base.unknown import Reason, Unknown
from probes.checks.registry import CHECKS, findings
from probes.facts.gpu.gpus import GpuFacts
from probes.facts.gpudirect import GdrPath
from probes.facts.pci.aer import ErrorCounts, PcieErrorFacts
from probes.facts.pci.capabilities import Acs, ConfigSpace, acs_flags
from probes.facts.pci.config_space import ConfigSpaceFacts
from probes.facts.pci.functions import PciFacts, PciFunction, PciKind
from probes.facts.pci.rdma_topo import RdmaTopoFacts
from probes.facts.system.numa import NumaFacts
from probes.facts.system.platform import Environment, PlatformFacts
from probes.plans.acs import redirects_off
from probes.queries.acs_redirects import detours
from probes.queries.finding import Finding, Severity, Status
from probes.snapshot.examination import Examination
from probes.topology.nccl_words import Nccl
from tests.probes.checks.changed import with_log
from tests.probes.checks.doctor import examination_of, findings_on

PCIE_CHECKS = [check for check in CHECKS if check.area == "pcie"]
IDS = [check.id for check in PCIE_CHECKS]
NEED_CONFIG = {
    "acs-redirect-enabled",
    "acs-direct-translated-without-ats",
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
DENIED = Unknown(Reason.NEEDS_ROOT, "/sys/bus/pci/devices/0000:15:01.0/config", "PCI config beyond 64 bytes")
ABSENT = Unknown(Reason.NOT_THERE, "a file")
SLOW = Unknown(Reason.TIMED_OUT, "a probe", "no answer for 10 s")


def healthy(name: str = "hgx-h100") -> Examination:
    return examination_of(name)


def finding(examination: Examination, name: str) -> Finding:
    (one,) = findings(examination, only=[name])
    return one


def said(one: Finding) -> str:
    return " ".join((one.cause, *(f"{part.source} {part.value}" for part in one.evidence)))


def spaces(examination: Examination) -> dict[str, Any]:
    assert isinstance(examination.config_space, ConfigSpaceFacts)
    return dict(examination.config_space.functions)


def with_spaces(examination: Examination, changed: dict[str, Any]) -> Examination:
    return replace(examination, config_space=ConfigSpaceFacts({**spaces(examination), **changed}))


def with_acs(examination: Examination, control: int) -> Examination:
    """The node with that ACS control register in every port that has one."""
    changed = {}
    for bdf, space in spaces(examination).items():
        if isinstance(space, ConfigSpace) and isinstance(space.acs, Acs):
            changed[bdf] = replace(space, acs=replace(space.acs, on=acs_flags(control), control=control))
    return with_spaces(examination, changed)


def with_functions(examination: Examination, **facts: Any) -> Examination:
    """The node with those facts in every GPU and NIC."""
    pci = examination.node.pci
    assert isinstance(pci, PciFacts)
    functions = {
        bdf: replace(one, **facts) if one.kind in (PciKind.GPU, PciKind.NIC) else one
        for bdf, one in pci.functions.items()
    }
    return with_node(examination, pci=replace(pci, functions=functions))


def with_function(examination: Examination, bdf: str, **facts: Any) -> Examination:
    pci = examination.node.pci
    assert isinstance(pci, PciFacts)
    functions = {**pci.functions, bdf: replace(pci.functions[bdf], **facts)}
    return with_node(examination, pci=replace(pci, functions=functions))


def with_node(examination: Examination, **facts: Any) -> Examination:
    return replace(examination, node=replace(examination.node, **facts))


def as_guest(examination: Examination) -> Examination:
    platform = examination.node.platform
    assert isinstance(platform, PlatformFacts)
    guest = replace(platform, environment=Environment.VIRTUAL_MACHINE, hypervisor="KVM")
    return with_node(examination, platform=guest)


def first(examination: Examination, kind: PciKind) -> PciFunction:
    pci = examination.node.pci
    assert isinstance(pci, PciFacts)
    return next(one for one in pci.functions.values() if one.kind is kind)


# All of them


@pytest.mark.parametrize("name", ["hgx-h100", "dgx-a100", "pcie-l40s", "gb200", "cloud-vm"])
def test_a_node_that_could_be_read_leaves_nothing_unknown(name: str) -> None:
    found = findings_on(name)
    assert [one for one in IDS if found[one].status is Status.UNKNOWN] == []


def test_what_only_root_can_read_is_unknown_and_says_so() -> None:
    denied = dict.fromkeys(spaces(healthy()), DENIED)
    examination = replace(healthy(), config_space=ConfigSpaceFacts(denied))
    for name in IDS:
        one = finding(examination, name)
        assert (one.status is Status.UNKNOWN) == (name in NEED_CONFIG), name
        if name in NEED_CONFIG:
            assert one.cause == "needs root: PCI config beyond 64 bytes"


def test_what_gave_no_answer_at_all_is_never_fine() -> None:
    silent = replace(healthy(), config_space=SLOW, pcie_errors=SLOW)
    for name in NEED_CONFIG | {"pcie-function-gone", "pcie-aer-correctable", "pcie-aer-uncorrectable"}:
        one = finding(silent, name)
        assert one.status is Status.UNKNOWN
        assert "no answer for 10 s" in one.cause


def test_devices_that_could_not_be_listed_are_not_absent() -> None:
    lost = with_node(healthy(), pci=SLOW)
    for name in IDS:
        if name != "acs-option-ignored":
            assert finding(lost, name).status is Status.UNKNOWN
    topology = replace(healthy().topology, nics=())
    without = replace(with_node(healthy(), rdma=SLOW), topology=topology)
    assert finding(without, "vm-without-p2p").status is Status.UNKNOWN


def test_a_node_without_gpus_and_nics_has_none_of_these() -> None:
    topology = replace(healthy().topology, gpus=(), nics=(), paths={}, best_nics={})
    bare = with_node(replace(healthy(), topology=topology), rdma=ABSENT)
    for name in IDS:
        assert finding(bare, name).status is Status.PASSED, name


@pytest.mark.parametrize("name", IDS)
def test_each_names_a_document_and_an_area(name: str) -> None:
    one = findings_on("hgx-h100")[name]
    assert one.reference
    assert one.area == "pcie"


def test_commands_are_argv_without_a_shell() -> None:
    for name in ("hgx-h100+acs-on,pcie-devctl-relaxed-ordering,pcie-devctl-read-request,pcie-aspm-on",):
        for one in findings_on(name).values():
            for step in one.fix.steps if one.fix else ():
                assert not any(set(word) & set("|&;$<>`") for word in step.argv)


# ACS


@pytest.mark.parametrize("control", [0x00, 0x01, 0x02, 0x10, 0x20, 0x40, 0x73])
def test_bits_of_acs_that_redirect_nothing_are_no_fault(control: int) -> None:
    """SrcValid, TransBlk, EgressCtrl, DirectTrans are not redirects; UpstreamFwd alone redirects nothing."""
    assert finding(with_acs(healthy(), control), "acs-redirect-enabled").status is Status.PASSED


@pytest.mark.parametrize("control", [0x04, 0x08, 0x0C, 0x1D])
def test_each_redirecting_bit_of_acs_is_found(control: int) -> None:
    one = finding(with_acs(healthy(), control), "acs-redirect-enabled")
    assert (one.status, one.severity) == (Status.FOUND, Severity.WARNING)
    assert "setpci -s " in said(one)


def test_redirects_that_meet_a_translating_iommu_are_critical() -> None:
    translated = with_functions(healthy(), iommu_type="DMA-FQ")
    one = finding(with_acs(translated, 0x1D), "acs-redirect-enabled")
    assert one.severity is Severity.CRITICAL


def test_a_translating_iommu_is_fixed_before_acs() -> None:
    """Translated addresses go up whatever ACS says: clearing it alone changes nothing."""
    translated = with_acs(with_functions(healthy(), iommu_type="DMA-FQ"), 0x1D)
    found = {one.id: one for one in findings(translated, only=["acs-redirect-enabled", "iommu-translated"])}
    redirect, iommu = found["acs-redirect-enabled"], found["iommu-translated"]
    assert redirect.part_of == "iommu-translated"
    assert redirect.fix is not None
    assert all(step.is_instruction for step in redirect.fix.steps)
    assert redirect.fix == iommu.fix
    # The finding that is counted weighs as much as the one that is part of it.
    assert iommu.severity is Severity.CRITICAL
    assert "boot with iommu=pt first" in str(redirects_off(translated))


def test_the_fix_clears_the_redirects_alone_and_can_be_taken_back() -> None:
    plan = finding(with_acs(healthy(), 0x1D), "acs-redirect-enabled").fix
    assert plan is not None
    step = plan.steps[0]
    assert step.argv[3] == "ECAP_ACS+6.w=0000:000c"
    assert step.undo[3] == "ECAP_ACS+6.w=000c:000c"
    assert "pci=disable_acs_redir=" in plan.steps[-2].why
    assert plan.disturbs


@pytest.mark.parametrize(("depth", "status"), [(0, Status.PASSED), (2, Status.FOUND), (4, Status.PASSED)])
def test_only_the_ports_where_the_path_turns_are_judged(depth: int, status: Status) -> None:
    """Below two levels of switches: root ports and the inner switches' ports send up what goes up anyway."""
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
    one = finding(as_guest(with_acs(healthy(), 0x1D)), "acs-redirect-enabled")
    assert one.status is Status.PASSED
    assert "virtual machine" in said(one)


def test_acs_is_left_alone_where_the_place_is_not_known() -> None:
    lost = with_node(with_acs(healthy(), 0x1D), platform=SLOW)
    assert finding(lost, "acs-redirect-enabled").status is Status.UNKNOWN
    assert finding(with_node(healthy(), platform=SLOW), "acs-redirect-enabled").status is Status.PASSED


def test_a_host_that_hands_devices_to_guests_is_not_told_to_clear_acs() -> None:
    examination = with_acs(healthy(), 0x1D)
    handed = with_function(examination, first(examination, PciKind.GPU).bdf, driver="vfio-pci")
    one = finding(handed, "acs-redirect-enabled")
    assert (one.status, one.severity, one.fix) == (Status.FOUND, Severity.NOTE, None)


def test_what_the_nic_translates_itself_passes_redirects_by() -> None:
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
    one = finding(with_spaces(examination, changed), "acs-direct-translated-without-ats")
    assert one.status is Status.FOUND
    assert "no ATS capability" in said(one)


def test_the_kernels_redirects_are_right_on_grace() -> None:
    examination = healthy("gb200")
    ports = [one for one in spaces(examination).values() if isinstance(one, ConfigSpace)]
    assert any(isinstance(one.acs, Acs) and one.acs.on.redirects for one in ports)
    assert finding(examination, "acs-redirect-enabled").status is Status.PASSED


def test_rdma_topo_is_the_judge_on_direct_nic_platforms() -> None:
    good = replace(healthy("gb200"), rdma_topo=RdmaTopoFacts(("ACS for cx_switch is right",), ()))
    assert finding(good, "acs-direct-nic").status is Status.PASSED
    one = findings_on("gb200+acs-direct-nic")["acs-direct-nic"]
    assert one.evidence[0].source == "rdma_topo check"
    assert one.devices
    assert "ACS for grace_rp" in one.cause
    assert "DMA function" in one.cause


def test_what_rdma_topo_fails_on_is_explained_by_how_gpu_and_nic_are_attached() -> None:
    failed = RdmaTopoFacts((), ("ACS for cx_switch 0000:17:00.0 has incorrect values 0011101 != xx000x0",))
    numa = finding(replace(healthy("gb200"), rdma_topo=failed), "acs-direct-nic")
    assert "each attached to the CPU" in numa.cause
    examination = replace(healthy(), rdma_topo=failed)
    ports = {one for gpu in examination.topology.gpus for one in first(examination, PciKind.GPU).chain[:-1]}
    for port in ports:
        examination = with_function(examination, port, vendor_id=0x15B3)
    inline = finding(examination, "acs-direct-nic")
    assert "share the ConnectX's own switch" in inline.cause
    assert failed.failed[0] in inline.cause


def test_the_boot_loader_is_left_to_the_admin() -> None:
    fix = findings_on("gb200+acs-direct-nic")["acs-direct-nic"].fix
    assert fix is not None
    assert all(step.is_instruction for step in fix.steps)
    assert any("rdma_topo write-grub-acs" in step.why for step in fix.steps)


def test_vera_root_ports_are_like_graces() -> None:
    examination = with_acs(healthy(), 0x1D)
    port = first(examination, PciKind.GPU).chain[0]
    vera = with_function(examination, port, vendor_id=0x10DE, device_id=0x2F96)
    assert finding(vera, "acs-redirect-enabled").status is Status.PASSED


def direct_nic(port_to_nic: int, port_to_gpu: int, root_port: int) -> Examination:
    """A node with a ConnectX DMA function beside its first GPU: RP - SW - DMA, and - SW - GPU."""
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
    """An IOVA lies in no window of a switch."""
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
def test_nodes_as_they_are_meant_to_be_have_no_detours(name: str) -> None:
    assert detours(healthy(name)) == frozenset()


def test_a_redirect_marks_the_switch_and_its_gpus_and_nics() -> None:
    """The overview draws a switch by its upstream port."""
    one = findings_on("hgx-h100+acs-on")["acs-redirect-enabled"]
    examination = healthy()
    gpu = first(examination, PciKind.GPU)
    assert gpu.chain[-3] in one.devices
    assert gpu.bdf in one.devices
    assert set(near_nics(examination, gpu.bdf)) <= set(one.devices)


# IOMMU and virtual machines


def test_an_iommu_that_passes_through_is_fine() -> None:
    """intel_iommu=on is no fault beside iommu=pt: the groups' type decides."""
    kernel = healthy().node.kernel
    assert not isinstance(kernel, Unknown)
    on = with_node(healthy(), kernel=replace(kernel, cmdline="intel_iommu=on iommu=pt"))
    one = finding(on, "iommu-translated")
    assert one.status is Status.PASSED
    assert "identity" in said(one)


@pytest.mark.parametrize("kind", ["DMA", "DMA-FQ"])
def test_an_iommu_that_translates_is_found(kind: str) -> None:
    one = finding(with_functions(healthy(), iommu_type=kind), "iommu-translated")
    assert one.status is Status.FOUND
    assert one.fix is not None
    assert one.fix.needs_reboot


def test_translation_on_the_path_of_dmabuf_is_critical() -> None:
    """OGK issue 1324: raw BAR addresses are handed out, and writes are lost without an error."""
    translated = with_functions(healthy(), iommu_type="DMA-FQ")
    for path, severity in ((GdrPath.DMABUF, Severity.CRITICAL), (GdrPath.PEERMEM, Severity.WARNING)):
        one = finding(replace(translated, verdict=replace(translated.verdict, path=path)), "iommu-translated")
        assert one.severity is severity
        assert one.data_path
        assert ("lost without an error" in one.impact) == (path is GdrPath.DMABUF)


def test_iommu_faults_of_the_path_are_quoted_and_those_of_others_not() -> None:
    translated = with_functions(healthy(), iommu_type="DMA")
    gpu = first(translated, PciKind.GPU)
    other = "DMAR: [DMA Write NO_PASID] Request device [fe:1f.0] fault addr 0x1"
    for bdf in (gpu.bdf, gpu.chain[1]):
        line = f"DMAR: [DMA Write NO_PASID] Request device [{bdf[5:]}] fault addr 0x2"
        one = finding(with_log(translated, other, line), "iommu-translated")
        assert one.severity is Severity.CRITICAL
        assert one.evidence[0].value == line
        assert other not in said(one)
    assert finding(with_log(translated, other), "iommu-translated").severity is Severity.WARNING


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


def test_an_old_kernel_that_tells_no_type_is_asked_for_its_command_line() -> None:
    old = with_functions(healthy(), iommu_type=ABSENT)
    assert finding(old, "iommu-translated").status is Status.PASSED
    kernel = old.node.kernel
    assert not isinstance(kernel, Unknown)
    silent = with_node(old, kernel=replace(kernel, cmdline="ro quiet intel_iommu=on"))
    one = finding(silent, "iommu-translated")
    assert one.status is Status.UNKNOWN
    assert "Linux 5.11" in one.cause


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
    one = finding(with_spaces(examination, changed), "vm-without-p2p-ats")
    assert one.status is Status.UNKNOWN
    assert "check on the host" in one.cause


def test_a_guest_without_a_switch_is_told_about_the_topology_file() -> None:
    one = findings_on("cloud-vm")["vm-without-p2p"]
    assert (one.status, one.severity) == (Status.FOUND, Severity.NOTE)
    assert "NCCL_TOPO_FILE" in one.impact
    assert finding(as_guest(healthy()), "vm-without-p2p").status is Status.PASSED


def test_noacs_is_no_option_of_the_kernel() -> None:
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


def test_every_check_says_what_is_lost_and_what_is_well() -> None:
    assert [check.id for check in CHECKS if not (check.ok and check.impact)] == []


def test_what_costs_bandwidth_degrades_the_verdict_and_what_is_built_so_does_not() -> None:
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


# Links


def slow_gpu(load: Any, generation: Any = 1) -> Examination:
    """The first GPU at 2.5 GT/s, under that load."""
    examination = healthy()
    gpu = first(examination, PciKind.GPU)
    gpus = examination.reading.gpus
    assert not isinstance(gpus, Unknown)
    live = replace(gpus[gpu.bdf], utilisation_percent=load, link_generation=generation)
    examination = replace(examination, reading=replace(examination.reading, gpus={**gpus, gpu.bdf: live}))
    return with_function(examination, gpu.bdf, link=replace(gpu.link, speed_gtps=2.5))


def test_an_idle_gpus_slow_link_is_no_fault() -> None:
    idle = slow_gpu(0)
    for name in ("pcie-link-degraded-gpu-speed", "pcie-link-degraded-speed", "pcie-link-degraded-width"):
        assert finding(idle, name).status is Status.PASSED
    assert "1 idle" in said(finding(idle, "pcie-link-degraded-gpu-speed"))


def test_a_gpus_slow_link_under_load_is_a_fault_and_without_a_load_is_not_known() -> None:
    assert finding(slow_gpu(95), "pcie-link-degraded-gpu-speed").status is Status.FOUND
    for examination in (
        slow_gpu(ABSENT),
        replace(slow_gpu(95), reading=replace(healthy().reading, gpus=SLOW)),
    ):
        one = finding(examination, "pcie-link-degraded-gpu-speed")
        assert one.status is Status.UNKNOWN
        assert "idle" in one.cause


def test_the_pcie_link_of_a_gpu_on_grace_does_not_matter() -> None:
    """Its data goes over C2C."""
    examination = healthy("gb200")
    gpu = first(examination, PciKind.GPU)
    slow = with_function(examination, gpu.bdf, link=replace(gpu.link, speed_gtps=2.5, width=1))
    for name in ("pcie-link-degraded-gpu-speed", "pcie-link-degraded-width"):
        assert finding(slow, name).status is Status.PASSED


def test_nvml_speaks_of_the_moment_of_the_load() -> None:
    """sysfs was read a moment earlier, when the GPU may have been idle."""
    assert finding(slow_gpu(95, generation=5), "pcie-link-degraded-gpu-speed").status is Status.PASSED


def test_a_link_is_judged_by_what_both_ends_can_do() -> None:
    nic = first(healthy(), PciKind.NIC)
    narrow = replace(nic.link, width=8, max_width=8)
    card = with_function(healthy(), nic.bdf, link=narrow)
    assert finding(card, "pcie-link-degraded-width").status is Status.PASSED
    lost = with_function(healthy(), nic.bdf, link=replace(nic.link, width=8))
    assert nic.bdf in finding(lost, "pcie-link-degraded-width").devices


def test_a_link_that_tells_nothing_is_unknown() -> None:
    nic = first(healthy(), PciKind.NIC)
    pci = healthy().node.pci
    assert isinstance(pci, PciFacts)
    above = pci.functions[nic.chain[-2]]
    silent = replace(nic.link, speed_gtps=ABSENT, width=ABSENT)
    examination = with_function(healthy(), nic.bdf, link=silent)
    examination = with_function(examination, above.bdf, link=silent)
    for name in ("pcie-link-degraded-width", "pcie-link-degraded-speed"):
        assert finding(examination, name).status is Status.UNKNOWN


# Placement


def test_without_numa_nodes_the_way_past_the_switches_is_not_guessed() -> None:
    examination = healthy("pcie-l40s")
    assert finding(examination, "gpu-nic-cross-socket").status is Status.FOUND
    topology = examination.topology
    gpus = tuple(replace(gpu, numa_node=ABSENT) for gpu in topology.gpus)
    lost = replace(examination, topology=replace(topology, gpus=gpus))
    assert finding(lost, "gpu-nic-cross-socket").status is Status.UNKNOWN


@pytest.mark.parametrize(
    ("node", "name", "level"),
    [
        ("pcie-l40s", "gpu-nic-cross-socket", "SYS"),
        ("dgx-a100+gpu-nic-through-cpu", "gpu-nic-through-cpu", "PHB"),
    ],
)
def test_the_level_that_turns_gpudirect_on_is_a_word(node: str, name: str, level: str) -> None:
    """Numbers in NCCL's log are not the numbers that NCCL_NET_GDR_LEVEL takes."""
    plan = findings_on(node)[name].fix
    assert plan is not None
    assert any(f"NCCL_NET_GDR_LEVEL={level} " in step.why for step in plan.steps)


def test_grace_and_guests_are_not_measured_by_their_pci_tree() -> None:
    for name in ("gpu-nic-cross-socket", "gpu-nic-through-cpu", "gpu-nic-shared"):
        assert findings_on("gb200")[name].status is Status.PASSED
        assert findings_on("cloud-vm")[name].status is Status.PASSED


def test_a_node_without_any_near_pair_gets_a_note() -> None:
    examination = healthy("pcie-l40s")
    topology = examination.topology
    far = replace(examination, topology=replace(topology, gpus=topology.gpus[2:]))
    one = finding(far, "gpu-nic-cross-socket")
    assert (one.status, one.severity) == (Status.FOUND, Severity.NOTE)


def test_one_numa_node_needs_no_names() -> None:
    numa = healthy().node.numa
    assert isinstance(numa, NumaFacts)
    single = with_node(with_functions(healthy(), numa_node=ABSENT), numa=NumaFacts(numa.nodes[:1]))
    assert finding(single, "numa-node-unknown").status is Status.PASSED
    both = with_functions(healthy(), numa_node=ABSENT)
    assert finding(both, "numa-node-unknown").severity is Severity.WARNING
    assert finding(with_node(both, numa=SLOW), "numa-node-unknown").status is Status.UNKNOWN


@pytest.mark.parametrize(
    ("bar", "memory", "status"),
    [
        (256 << 20, 15 << 30, Status.FOUND),
        (256 << 20, ABSENT, Status.FOUND),
        (128 << 30, 80 << 30, Status.PASSED),
        (32 << 30, 32 << 30, Status.PASSED),
        (128 << 30, ABSENT, Status.UNKNOWN),
        (ABSENT, 80 << 30, Status.UNKNOWN),
    ],
)
def test_bar1_against_memory(bar: Any, memory: Any, status: Status) -> None:
    gpus = healthy().node.gpus
    assert isinstance(gpus, GpuFacts)
    changed = tuple(replace(gpu, bar1_total_bytes=bar, memory_total_bytes=memory) for gpu in gpus.gpus)
    assert finding(with_node(healthy(), gpus=replace(gpus, gpus=changed)), "bar1-too-small").status is status


# Errors


def with_counts(examination: Examination, correctable: int) -> PcieErrorFacts:
    facts = examination.pcie_errors
    assert isinstance(facts, PcieErrorFacts)
    bdf = first(examination, PciKind.GPU).bdf
    counts = ErrorCounts(correctable, {"BadTLP": correctable})
    return PcieErrorFacts({**facts.functions, bdf: replace(facts.functions[bdf], correctable=counts)})


def test_corrected_errors_weigh_more_where_they_rise() -> None:
    once = replace(healthy(), pcie_errors=with_counts(healthy(), 12))
    assert finding(once, "pcie-aer-correctable").severity is Severity.NOTE
    still = replace(once, earlier_pcie_errors=with_counts(healthy(), 12))
    assert finding(still, "pcie-aer-correctable").severity is Severity.NOTE
    rising = replace(once, earlier_pcie_errors=with_counts(healthy(), 5))
    one = finding(rising, "pcie-aer-correctable")
    assert one.severity is Severity.WARNING
    assert "+7" in said(one)


def test_errors_that_nobody_counts_are_not_zero() -> None:
    facts = healthy().pcie_errors
    assert isinstance(facts, PcieErrorFacts)
    uncounted = PcieErrorFacts(
        {
            bdf: replace(one, correctable=ABSENT, nonfatal=ABSENT, fatal=ABSENT)
            for bdf, one in facts.functions.items()
        }
    )
    for name in ("pcie-aer-correctable", "pcie-aer-uncorrectable"):
        one = finding(replace(healthy(), pcie_errors=uncounted), name)
        assert one.status is Status.UNKNOWN
        assert "AER" in one.cause


def test_a_counted_fatal_error_is_told_once() -> None:
    found = findings_on("hgx-h100+pcie-aer-uncorrectable")
    assert found["pcie-aer-uncorrectable"].status is Status.FOUND
    assert found["pcie-error-unreported"].status is Status.PASSED


def test_a_function_that_does_not_answer_is_seen_without_root() -> None:
    gone = Unknown(Reason.DRIVER_ERROR, "config", "all ones")
    denied: dict[str, Any] = dict.fromkeys(spaces(healthy()), DENIED)
    nic = first(healthy(), PciKind.NIC).bdf
    examination = replace(healthy(), config_space=ConfigSpaceFacts({**denied, nic: gone}))
    assert finding(examination, "pcie-function-gone").devices == (nic,)


def test_a_function_that_is_gone_is_critical_where_a_gpu_is_cut_off_by_it() -> None:
    gone = Unknown(Reason.DRIVER_ERROR, "config", "all ones")
    examination = healthy()
    gpu = first(examination, PciKind.GPU)
    near = [bdf for bdf in spaces(examination) if bdf.startswith(("0000:1a", "0000:1b"))]
    assert len(near) == 2
    for lost, severity in (
        ([gpu.bdf], Severity.CRITICAL),
        ([gpu.chain[0]], Severity.CRITICAL),
        (near, Severity.CRITICAL),
        (near[:1], Severity.WARNING),
    ):
        here = with_spaces(examination, dict.fromkeys(lost, gone))
        assert finding(here, "pcie-function-gone").severity is severity
    assert findings_on("hgx-h100+pcie-function-gone")["pcie-function-gone"].severity is Severity.WARNING


# Settings


def test_a_setting_is_changed_in_its_own_bits_and_can_be_taken_back() -> None:
    found = findings_on("hgx-h100+pcie-devctl-relaxed-ordering,pcie-devctl-read-request")
    ordering, reads = found["pcie-devctl-relaxed-ordering"].fix, found["pcie-devctl-read-request"].fix
    assert ordering is not None
    assert reads is not None
    assert ordering.steps[0].argv[3] == "CAP_EXP+8.w=0010:0010"
    assert ordering.steps[0].undo[3] == "CAP_EXP+8.w=0000:0010"
    assert reads.steps[0].argv[3] == "CAP_EXP+8.w=5000:7000"
    assert reads.steps[0].undo[3] == "CAP_EXP+8.w=2000:7000"


def test_only_nics_of_one_board_are_compared() -> None:
    """Storage NICs may be set otherwise than those for the job."""
    examination = healthy()
    rdma = examination.node.rdma
    assert not isinstance(rdma, Unknown)
    storage = next(one for one in rdma.devices if one.name == "mlx5_4")
    twin = next(one for one in rdma.devices if one.name == "mlx5_9")
    changed: dict[str, Any] = {}
    for device in (storage, twin):
        assert isinstance(device.bdf, str)
        space = spaces(examination)[device.bdf]
        changed[device.bdf] = replace(space, express=replace(space.express, max_read_request_bytes=1024))
    other = with_spaces(examination, changed)
    assert finding(other, "pcie-devctl-read-request-differs").status is Status.PASSED


def test_a_port_that_takes_more_than_its_peers_send_is_no_fault() -> None:
    examination = healthy()
    gpu = first(examination, PciKind.GPU)
    port = gpu.chain[-2]
    space = spaces(examination)[port]
    wide = replace(space, express=replace(space.express, max_payload_bytes=512))
    assert (
        finding(with_spaces(examination, {port: wide}), "pcie-devctl-payload-differs").status is Status.PASSED
    )
    narrow = replace(space, express=replace(space.express, max_payload_bytes=128))
    one = finding(with_spaces(examination, {port: narrow}), "pcie-devctl-payload-differs")
    assert one.devices == (port,)
