"""Kernel modules as the doctor judges them, and what guides get wrong about them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from probes.base.plan import Plan
from probes.base.unknown import Reason, Unknown
from probes.checks.registry import CHECKS, findings
from probes.facts.kernel.dkms import DkmsModule
from probes.facts.kernel.log import parse_log
from probes.facts.kernel.module_files import ModuleFileFacts
from probes.facts.kernel.modules import KernelModule, ModuleFacts, ModuleState
from probes.facts.system.services import ServiceFacts, ServiceState
from probes.plans.load_modules import load_modules
from probes.queries.finding import Finding, Severity, Status
from probes.simulation.faults.catalogue import FAULTS, NoSuchFault
from probes.simulation.node.names import SIMULATED_NAMES
from probes.snapshot.examination import Examination
from tests.probes.checks.changed import with_file, with_kernel, with_module, with_service, without
from tests.probes.checks.doctor import examination_of, findings_on, found_on

NEEDS_ROOT = Unknown(Reason.NEEDS_ROOT, "somewhere")
NOT_THERE = Unknown(Reason.NOT_THERE, "somewhere")
OURS = [check.id for check in CHECKS if check.area in ("modules", "path")]
FAULTED = {found: fault for fault in FAULTS.values() for found in fault.finds}


def says(examination: Examination, name: str) -> Finding:
    """One finding on an examination."""
    return findings(examination, only=(name,))[0]


def log(text: str) -> Any:
    return parse_log("<6>[    0.000000] Linux version\n" + text, "dmesg --raw --kernel")


def without_dmabuf(examination: Examination) -> Examination:
    """The node, were its driver the closed one."""
    direct = examination.node.gpudirect
    assert not isinstance(direct, Unknown)
    closed = replace(direct, dmabuf=replace(direct.dmabuf, usable=False))
    return replace(examination, node=replace(examination.node, gpudirect=closed))


HGX = "hgx-h100"


# Every check of these areas


@pytest.mark.parametrize("name", OURS)
def test_a_blind_doctor_finds_nothing(name: str) -> None:
    whole = examination_of(HGX)
    parts = ("gpudirect", "modules", "gpus", "rdma", "pci", "kernel")
    others = ("kernel_log", "processes", "services", "dkms", "tools", "libraries", "module_files")
    blind = replace(
        whole,
        node=replace(whole.node, **dict.fromkeys(parts, NEEDS_ROOT)),
        **dict.fromkeys(others, NEEDS_ROOT),
    )
    finding = says(blind, name)
    assert finding.status is Status.UNKNOWN
    assert "needs root" in finding.cause or "could not be read" in finding.cause


@pytest.mark.parametrize("name", OURS)
def test_each_passes_on_a_healthy_node_and_says_where_it_looked(name: str) -> None:
    finding = findings_on(HGX)[name]
    if name == "peermem-reference-leak":  # only root can pass it while jobs run
        assert finding.status in (Status.PASSED, Status.UNKNOWN)
        return
    assert finding.status is Status.PASSED
    assert all(one.source and one.value for one in finding.evidence)
    assert finding.evidence


@pytest.mark.parametrize("name", OURS)
def test_each_finding_can_be_looked_up_and_marks_at_most_a_few_devices(name: str) -> None:
    fault = FAULTED[name]
    finding = findings_on(f"{fault.on}+{fault.name}")[name]
    assert finding.reference
    assert len(finding.evidence) <= 10
    assert all(len(one.value) <= 400 for one in finding.evidence)


@pytest.mark.parametrize("name", OURS)
def test_the_steps_of_a_fix_are_commands_or_words_never_shell(name: str) -> None:
    fault = FAULTED[name]
    fix = findings_on(f"{fault.on}+{fault.name}")[name].fix
    if fix is None:
        return
    assert fix.steps
    for step in fix.steps:
        assert step.why
        assert not {"&&", "|", ";", ">", "sh", "bash", "sudo"} & {*step.argv, *step.undo}
        assert "systemctl reboot" not in " ".join(step.argv) or (fix.needs_reboot and fix.disturbs)


def test_a_node_without_gpu_or_nic_misses_no_module() -> None:
    """Such as a small virtual machine whose kernel has no modules at all."""
    node = examination_of(HGX)
    pci = node.node.pci
    assert not isinstance(pci, Unknown)
    bare = replace(node.node, pci=replace(pci, functions={}), modules=NOT_THERE, gpudirect=NOT_THERE)
    empty = replace(node, node=bare, topology=replace(node.topology, gpus=(), nics=()))
    found = findings(empty, only=OURS)
    assert [one.id for one in found if one.status is not Status.PASSED] == []


@given(st.lists(st.sampled_from(sorted(FAULTS)), max_size=8, unique=True), st.sampled_from(SIMULATED_NAMES))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_no_mixture_of_faults_makes_a_check_fail(faults: list[str], node: str) -> None:
    try:
        found = findings_on(f"{node}+{','.join(faults)}")
    except NoSuchFault:  # one of them needs what this node has not
        reject()
    for one in found.values():
        assert "a bug in gdrtop" not in one.cause, (one.id, one.evidence)


# The ladder


def test_a_module_that_nothing_here_needs_is_not_missed() -> None:
    node = examination_of(HGX)
    bare = replace(node, node=replace(node.node, pci=replace(node.node.pci, functions={})))  # type: ignore[type-var]
    absent = without(bare, "ib_core", "mlx5_core", "mlx5_ib", "ib_uverbs", "nvidia", "nvidia_uvm")
    for name in ("ib-core", "mlx5-core", "mlx5-ib", "ib-uverbs", "nvidia", "nvidia-uvm"):
        assert says(absent, f"{name}-not-loaded").status is Status.PASSED


def test_a_module_that_is_part_of_the_kernel_is_there() -> None:
    assert (
        says(
            with_module(examination_of(HGX), "ib_core", state=ModuleState.BUILTIN), "ib-core-not-loaded"
        ).status
        is Status.PASSED
    )


def test_a_module_on_its_way_is_unknown() -> None:
    loading = with_module(examination_of(HGX), "nvidia", state=ModuleState.LOADING)
    assert says(loading, "nvidia-not-loaded").status is Status.UNKNOWN


def test_gpus_given_to_a_virtual_machine_need_no_driver() -> None:
    node = without(examination_of(HGX), "nvidia")
    assert says(node, "nvidia-not-loaded").status is Status.FOUND
    pci = node.node.pci
    assert not isinstance(pci, Unknown)
    passed_on = {bdf: replace(one, driver="vfio-pci") for bdf, one in pci.functions.items()}
    away = replace(node, node=replace(node.node, pci=replace(pci, functions=passed_on)))
    assert says(away, "nvidia-not-loaded").status is Status.PASSED


def test_a_missing_module_is_loaded_by_the_fix() -> None:
    fix = says(without(examination_of(HGX), "nvidia_uvm"), "nvidia-uvm-not-loaded").fix
    assert fix is not None
    assert [step.argv for step in fix.steps] == [("modprobe", "nvidia_uvm")]


def test_companions_may_be_absent() -> None:
    """rdma_cm, gdrdrv and nvidia_fs are not on the way from NIC to GPU memory."""
    node = without(examination_of(HGX), "rdma_cm", "gdrdrv", "nvidia_fs")
    assert not [
        one.id for one in findings(node) if one.status is Status.FOUND and one.area in ("modules", "path")
    ]


# What keeps a module out


def test_an_install_line_that_loads_the_module_in_its_own_way_is_no_fault() -> None:
    line = "/etc/modprobe.d/nvidia.conf:1: install nvidia /sbin/modprobe --ignore-install nvidia"
    node = with_module(examination_of(HGX), "nvidia", install_line=line)
    assert says(node, "module-blacklisted-install").status is Status.PASSED


def test_files_of_modprobe_that_cannot_be_read_leave_it_open() -> None:
    node = examination_of(HGX)
    modules = node.node.modules
    assert isinstance(modules, ModuleFacts)
    hidden = replace(modules, rules_unread=("/etc/modprobe.d/secret.conf",))
    finding = says(replace(node, node=replace(node.node, modules=hidden)), "module-blacklisted")
    assert finding.status is Status.UNKNOWN
    assert "needs root: /etc/modprobe.d/secret.conf" in finding.cause


def test_what_is_kept_out_and_needed_is_critical() -> None:
    line = "/etc/modprobe.d/x.conf:1: install nvidia /bin/false"
    node = with_module(examination_of(HGX), "nvidia", install_line=line, state=ModuleState.NOT_LOADED)
    assert says(node, "module-blacklisted-install").severity is Severity.CRITICAL


def test_disabled_modules_are_a_note_while_nothing_is_missing() -> None:
    node = with_kernel(examination_of(HGX), modules_disabled=True)
    assert says(node, "kernel-forbids-modules-disabled").severity is Severity.NOTE
    gone = without(node, "nvidia")
    assert says(gone, "kernel-forbids-modules-disabled").severity is Severity.CRITICAL


def test_lockdown_is_no_fault_while_everything_is_loaded() -> None:
    node = with_kernel(examination_of(HGX), lockdown="integrity", signatures_enforced=True)
    assert says(node, "kernel-forbids-modules-lockdown").status is Status.PASSED
    assert says(node, "secure-boot-unsigned").status is Status.PASSED


def test_a_signed_module_is_not_refused_for_being_unsigned() -> None:
    node = without(with_kernel(examination_of(HGX), signatures_enforced=True), "nvidia_peermem")
    assert says(node, "secure-boot-unsigned").status is Status.FOUND
    signed = with_file(node, "nvidia_peermem", signer="DKMS module signing key")
    assert says(signed, "secure-boot-unsigned").status is Status.PASSED


def test_a_rejected_signature_needs_the_log() -> None:
    node = replace(without(examination_of(HGX), "nvidia_peermem"), kernel_log=NEEDS_ROOT)
    assert says(node, "secure-boot-key-rejected").status is Status.UNKNOWN
    assert "needs root" in says(node, "secure-boot-key-rejected").cause


def test_weak_updates_are_made_for_another_kernel_and_fit() -> None:
    node = without(examination_of(HGX), "nvidia_peermem")
    weak = with_file(
        node, "nvidia_peermem", kernel="5.14.0-427.el9.x86_64", path="/lib/modules/x/weak-updates/a.ko"
    )
    assert says(weak, "module-wrong-vermagic").status is Status.PASSED


# Builds


def test_dkms_of_former_times_is_no_fault() -> None:
    """Ready-made modules for this kernel, and DKMS's record of an older one."""
    node = examination_of(HGX)
    assert not isinstance(node.dkms, Unknown)
    old = tuple(replace(one, built=("5.15.0-1",), installed=("5.15.0-1",)) for one in node.dkms.modules)
    ready = replace(node, dkms=replace(node.dkms, modules=old))
    assert says(ready, "dkms-not-built-for-kernel").status is Status.PASSED


def test_a_node_without_dkms_passes() -> None:
    node = replace(examination_of(HGX), dkms=NOT_THERE)
    assert says(node, "dkms-not-built-for-kernel").status is Status.PASSED
    assert says(node, "dkms-build-failed").status is Status.PASSED


def test_a_held_driver_is_no_fault_while_no_other_waits() -> None:
    nvidia = examination_of(HGX).node.modules.modules["nvidia"]  # type: ignore[union-attr]
    assert isinstance(nvidia, KernelModule)
    assert nvidia.refcnt
    assert findings_on(HGX)["driver-upgrade-blocked"].status is Status.PASSED


def test_a_driver_that_a_container_brought_has_no_file_to_compare() -> None:
    node = examination_of(HGX)
    assert isinstance(node.module_files, ModuleFileFacts)
    empty = replace(node, module_files=replace(node.module_files, files={}))
    assert says(empty, "driver-half-updated").status is Status.PASSED


def test_modinfo_that_is_missing_leaves_builds_open() -> None:
    node = examination_of(HGX)
    assert isinstance(node.module_files, ModuleFileFacts)
    blind = replace(node, module_files=replace(node.module_files, files=NOT_THERE))
    for name in ("driver-half-updated", "driver-upgrade-blocked", "initramfs-stale"):
        assert says(blind, name).status is Status.UNKNOWN


def test_an_exchanged_driver_is_not_called_a_stale_boot_image() -> None:
    found = found_on("hgx-h100+driver-half-updated")
    assert "driver-half-updated" in found
    assert "initramfs-stale" not in found


# nvidia_peermem, and what guides get wrong about it


def test_peermem_that_is_absent_is_no_fault_where_dmabuf_works() -> None:
    node = without(with_module(examination_of(HGX), "nvidia_peermem", persistent=None), "nvidia_peermem")
    assert says(node, "peermem-not-loaded").status is Status.PASSED
    assert not {one for one in found_on("gb200") if one.startswith("peermem")}


def test_peermem_that_the_node_is_set_up_to_load_is_a_note_where_dmabuf_works() -> None:
    finding = says(without(examination_of(HGX), "nvidia_peermem"), "peermem-not-loaded")
    assert (finding.status, finding.severity) == (Status.FOUND, Severity.NOTE)


def test_peermem_that_is_absent_is_critical_where_dmabuf_does_not_work() -> None:
    finding = says(without_dmabuf(without(examination_of(HGX), "nvidia_peermem")), "peermem-not-loaded")
    assert (finding.status, finding.severity) == (Status.FOUND, Severity.CRITICAL)
    assert finding.fix is not None
    assert finding.fix.steps[0].argv == ("modprobe", "nvidia_peermem")


def test_whether_peermem_is_needed_is_unknown_where_dmabuf_is() -> None:
    node = without(examination_of(HGX), "nvidia_peermem")
    direct = node.node.gpudirect
    assert not isinstance(direct, Unknown)
    open_question = replace(direct, dmabuf=replace(direct.dmabuf, usable=NEEDS_ROOT))
    finding = says(replace(node, node=replace(node.node, gpudirect=open_question)), "peermem-not-loaded")
    assert finding.status is Status.UNKNOWN
    assert "needs root" in finding.cause


def test_a_refcnt_of_0_is_no_fault() -> None:
    node = examination_of("dgx-a100")
    idle = replace(node, reading=replace(node.reading, peermem=replace(node.reading.peermem, refcnt=0)))
    assert says(idle, "peermem-reference-leak").status is Status.PASSED
    assert not {
        one.id for one in findings(idle) if one.status is Status.FOUND and one.severity is not Severity.NOTE
    }


def test_references_that_a_hidden_process_may_hold_are_no_leak() -> None:
    node = examination_of("dgx-a100+peermem-reference-leak")
    assert says(node, "peermem-reference-leak").status is Status.FOUND
    assert not isinstance(node.processes, Unknown)
    hidden = replace(node, processes=replace(node.processes, hidden=3))
    assert says(hidden, "peermem-reference-leak").status is Status.UNKNOWN
    assert "needs root" in says(hidden, "peermem-reference-leak").cause


def test_a_missing_memory_peers_directory_alone_is_no_fault() -> None:
    node = without_dmabuf(examination_of(HGX))
    assert isinstance(node.reading.peermem.peers, Unknown)
    visible = replace(node, processes=replace(node.processes, hidden=0))  # type: ignore[type-var]
    assert says(visible, "memory-peers-missing-old-nccl").status is Status.PASSED


def test_dma_buf_is_no_module() -> None:
    """It is part of the kernel: no check asks for it in /proc/modules, nor offers to load it."""
    modules = examination_of(HGX).node.modules
    assert isinstance(modules, ModuleFacts)
    assert "dma_buf" not in modules.modules
    for fault in FAULTS.values():
        for one in findings_on(f"{fault.on}+{fault.name}").values():
            steps = one.fix.steps if one.fix is not None else ()
            assert not any({"dma_buf", "dma-buf"} & set(step.argv) for step in steps)


def test_nothing_takes_loading_peermem_for_logged_success() -> None:
    """On success the module is silent: a log without a word of it is no sign of anything."""
    assert findings_on(HGX)["peermem-parameter-invalid"].status is Status.PASSED
    node = examination_of(HGX)
    assert not isinstance(node.kernel_log, Unknown)
    assert not any("peermem" in message.text for message in node.kernel_log.messages)


def test_either_spelling_of_the_name_keeps_it_after_a_reboot() -> None:
    assert findings_on("dgx-a100")["peermem-not-persistent"].status is Status.PASSED
    assert findings_on("dgx-a100+peermem-not-persistent")["peermem-not-persistent"].status is Status.FOUND


@pytest.mark.parametrize(
    "line",
    [
        "/etc/modprobe.d/gdr.conf:2: softdep nvidia post: nvidia_peermem",
        "/usr/lib/modprobe.d/nvidia.conf:9: softdep nvidia pre: ib_core post: nvidia-uvm nvidia-peermem",
    ],
)
def test_a_softdep_line_loads_peermem_as_well(line: str) -> None:
    node = examination_of("dgx-a100+peermem-not-persistent")
    finding = says(with_module(node, "nvidia_peermem", softdep=line), "peermem-not-persistent")
    assert finding.status is Status.PASSED
    assert finding.evidence[0].source == line.partition(": ")[0]


def test_a_unit_that_runs_modprobe_loads_peermem_as_well() -> None:
    node = examination_of("dgx-a100+peermem-not-persistent")
    assert isinstance(node.services, ServiceFacts)
    unit = "/etc/systemd/system/load-peermem.service: ExecStart=/sbin/modprobe nvidia-peermem"
    loaded = replace(node, services=replace(node.services, modprobe={"nvidia_peermem": unit}))
    assert says(loaded, "peermem-not-persistent").status is Status.PASSED


def test_what_was_not_looked_at_is_said() -> None:
    finding = findings_on("dgx-a100+peermem-not-persistent")["peermem-not-persistent"]
    assert finding.severity is Severity.WARNING
    assert "Other loaders" in finding.cause
    hidden = examination_of("dgx-a100+peermem-not-persistent")
    assert isinstance(hidden.services, ServiceFacts)
    unread = replace(hidden, services=replace(hidden.services, unread=("/etc/systemd/system/x.service",)))
    assert says(unread, "peermem-not-persistent").status is Status.UNKNOWN


def test_a_boot_that_loads_peermem_though_dmabuf_works_is_a_note_with_the_line_to_delete() -> None:
    name = "peermem-unneeded-at-boot"
    finding = findings_on(f"pcie-l40s+{name}")[name]
    assert (finding.status, finding.severity) == (Status.FOUND, Severity.NOTE)
    assert finding.fix is not None
    assert "/etc/systemd/system/load-peermem.service" in finding.fix.steps[-1].why
    assert findings_on("dgx-a100")[name].status is Status.PASSED  # the node needs it
    node = examination_of(f"pcie-l40s+{name}")
    in_use = replace(node, reading=replace(node.reading, peermem=replace(node.reading.peermem, refcnt=4)))
    assert says(in_use, name).status is Status.PASSED


PEERMEM_FAULTS = [
    name
    for name, fault in FAULTS.items()
    if fault.on == HGX
    and any(one.startswith(("peermem-", "nv-peer-mem", "inbox-core")) for one in fault.finds)
]


@pytest.mark.parametrize("name", PEERMEM_FAULTS)
def test_where_dmabuf_works_all_of_peermem_is_a_note(name: str) -> None:
    """NVIDIA deprecates it: DMA-BUF is what to care for."""
    for one in findings_on(f"{HGX}+{name}").values():
        if one.id in FAULTS[name].finds:
            assert one.severity is Severity.NOTE


def test_libraries_of_ofed_on_the_distributions_modules_are_deliberate() -> None:
    name = "inbox-core-beside-ofed"
    assert findings_on(f"{HGX}+{name}")[name].severity is Severity.NOTE
    assert says(without_dmabuf(examination_of(f"{HGX}+{name}")), name).severity is Severity.WARNING


def test_storage_modules_for_another_kernel_are_not_the_drivers() -> None:
    """nvidia-fs begins with nvidia, and has no nvidia_peermem."""
    node = examination_of(f"{HGX}+peermem-not-on-disk")
    assert not isinstance(node.dkms, Unknown)
    storage = DkmsModule("nvidia-fs", "2.25.7", ("6.8.0-58-generic",), ("6.8.0-58-generic",), None)
    beside = replace(node, dkms=replace(node.dkms, modules=(*node.dkms.modules, storage)))
    assert says(beside, "peermem-not-on-disk").status is Status.FOUND
    assert says(beside, "peermem-not-on-disk-other-kernel").status is Status.PASSED


@pytest.mark.parametrize(
    ("distribution", "key"),
    [
        ("Ubuntu 24.04.1 LTS", "/var/lib/shim-signed/mok/MOK.der"),
        ("Debian GNU/Linux 12 (bookworm)", "/var/lib/dkms/mok.pub"),
        ("Rocky Linux 9.4 (Blue Onyx)", "/var/lib/dkms/mok.pub"),
        (NEEDS_ROOT, "/var/lib/dkms/mok.pub"),
    ],
)
def test_the_key_to_enroll_is_the_one_that_dkms_signs_with(distribution: Any, key: str) -> None:
    node = examination_of(f"{HGX}+secure-boot-unsigned")
    assert not isinstance(node.node.platform, Unknown)
    platform = replace(node.node.platform, distribution=distribution)
    fix = says(replace(node, node=replace(node.node, platform=platform)), "secure-boot-unsigned").fix
    assert fix is not None
    assert ("mokutil", "--import", key) in [step.argv for step in fix.steps]


@pytest.mark.parametrize(("release", "legacy"), [("5.0-2.1.8.0", True), ("5.1-0.6.6.0", False)])
def test_mlnx_ofed_5_0_still_needs_the_legacy_setting(release: str, legacy: bool) -> None:
    node = examination_of("dgx-a100")
    assert not isinstance(node.tools, Unknown)
    old = replace(node, tools=replace(node.tools, ofed=f"MLNX_OFED_LINUX-{release}"))
    told = with_module(old, "nvidia_peermem", parameters={"peerdirect_support": "1"})
    expected = (Status.FOUND, Status.PASSED) if legacy else (Status.PASSED, Status.FOUND)
    assert says(old, "peermem-parameter-legacy-ofed").status is expected[0]
    assert says(told, "peermem-parameter-wrong").status is expected[1]


# ConnectX-3


def test_modules_of_connectx_3_are_required_where_there_is_such_a_card() -> None:
    for name in ("mlx4-core-not-loaded", "mlx4-ib-not-loaded"):
        assert findings_on("dgx-a100")[name].status is Status.PASSED
        assert findings_on("dgx-a100+nic-connectx-3")[name].status is Status.PASSED
    assert findings_on("dgx-a100+nic-connectx-3")["mlx5-core-not-loaded"].status is Status.PASSED
    fix = findings_on("dgx-a100+mlx4-ib-not-loaded")["mlx4-ib-not-loaded"].fix
    assert fix is not None
    assert [step.argv for step in fix.steps] == [("modprobe", "mlx4_ib")]


def test_the_load_plan_of_a_connectx_3_node_loads_mlx4() -> None:
    plan = load_modules(examination_of("dgx-a100+mlx4-core-not-loaded"))
    assert isinstance(plan, Plan)
    commands = [step.argv for step in plan.steps]
    assert ("modprobe", "mlx4_core") in commands
    assert not [argv for argv in commands if "mlx5_core" in argv]


def test_peermem_that_is_loaded_has_registered() -> None:
    """There is no state "loaded, but not registered": missing memory_peers says nothing."""
    assert isinstance(examination_of(HGX).reading.peermem.peers, Unknown)
    ours = [one for one in findings_on(HGX).values() if one.id.startswith("peermem")]
    assert not [one.id for one in ours if one.status is Status.FOUND]


def test_an_old_message_means_nothing_once_the_module_is_loaded() -> None:
    said = "<4>[   15.1] nvidia_peermem: disagrees about version of symbol ib_register_peer_memory_client\n"
    node = replace(examination_of(HGX), kernel_log=log(said))
    assert says(node, "peermem-symbol-version-mismatch").status is Status.PASSED


def test_a_symbol_of_another_version_is_not_an_unknown_symbol() -> None:
    found = found_on("hgx-h100+peermem-symbol-version-mismatch")
    assert "peermem-unknown-symbol-inbox-core" not in found
    assert "peermem-symbol-version-mismatch" not in found_on("hgx-h100+peermem-unknown-symbol-inbox-core")


def test_a_build_that_ofed_now_allows_is_told_from_one_that_nothing_allows() -> None:
    name = "peermem-built-without-symbols"
    with_ofed = findings_on(f"dgx-a100+{name}")[name]
    assert "before OFED" in with_ofed.cause
    node = examination_of(f"dgx-a100+{name}")
    assert isinstance(node.module_files, ModuleFileFacts)
    bare = replace(node, module_files=replace(node.module_files, peer_memory=()))
    assert "no peer-memory interface" in says(bare, name).cause


def test_inbox_mlx5_with_peermem_does_not_work() -> None:
    """Without OFED there are no symbols to build against; with DMA-BUF nobody needs them."""
    name = "peermem-built-without-symbols"
    assert findings_on("pcie-l40s")[name].status is Status.PASSED
    closed = without_dmabuf(examination_of("pcie-l40s"))
    assert says(closed, name).severity is Severity.CRITICAL


def test_the_kernels_own_core_is_right_where_there_is_no_ofed() -> None:
    assert findings_on("pcie-l40s")["inbox-core-beside-ofed"].status is Status.PASSED


def test_legacy_peerdirect_is_right_for_the_old_ofed_only() -> None:
    node = examination_of("dgx-a100+peermem-parameter-legacy-ofed")
    told = with_module(node, "nvidia_peermem", parameters={"peerdirect_support": "1"})
    assert says(told, "peermem-parameter-legacy-ofed").status is Status.PASSED
    assert says(told, "peermem-parameter-wrong").status is Status.PASSED


def test_a_kernel_that_shows_the_old_module_to_nccl_is_less_bad() -> None:
    name = "nv-peer-mem-conflict"
    assert findings_on(f"dgx-a100+{name}")[name].severity is Severity.WARNING
    node = examination_of(f"dgx-a100+{name}")
    peermem = replace(node.reading.peermem, peers=NOT_THERE)
    unseen = replace(node, reading=replace(node.reading, peermem=peermem))
    assert says(unseen, name).severity is Severity.CRITICAL


def test_a_boot_that_has_not_been_asked_about_leaves_the_race_open() -> None:
    node = with_service(
        without(examination_of(HGX), "nvidia_peermem"), "systemd-modules-load", state=NEEDS_ROOT
    )
    assert says(node, "boot-load-race").status is Status.UNKNOWN
    assert says(node, "peermem-lost-after-driver-update").status is Status.UNKNOWN


def test_a_boot_that_succeeded_is_no_race() -> None:
    node = without(examination_of(HGX), "nvidia_peermem")
    assert says(node, "boot-load-race").status is Status.PASSED
    failed = with_service(node, "systemd-modules-load", state=ServiceState.FAILED)
    assert says(failed, "peermem-lost-after-driver-update").status is Status.PASSED
