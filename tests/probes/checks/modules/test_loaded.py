"""Kernel modules that are not loaded, blocked or refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from probes.base.evidence import Severity
from probes.base.plan import Plan
from probes.base.unknown import Unknown
from probes.checks.registry import findings
from probes.facts.kernel.modprobe_config import InstallLine
from probes.facts.kernel.modules import ModuleFacts, ModuleState
from probes.facts.system.packages import parse_distribution
from probes.plans.load_modules import load_modules
from probes.queries.finding import Status
from tests.support.changed_facts import with_file, with_kernel, with_module, without
from tests.support.doctor import examination_of, findings_on
from tests.support.module_nodes import HGX, NEEDS_ROOT, says


def test_a_module_that_no_device_needs_is_not_reported() -> None:
    node = examination_of(HGX)
    bare = replace(node, node=replace(node.node, pci=replace(node.node.pci, functions={})))  # type: ignore[type-var]
    absent = without(bare, "ib_core", "mlx5_core", "mlx5_ib", "ib_uverbs", "nvidia", "nvidia_uvm")
    for name in ("ib-core", "mlx5-core", "mlx5-ib", "ib-uverbs", "nvidia", "nvidia-uvm"):
        assert says(absent, f"{name}-not-loaded").status is Status.PASSED


def test_a_module_built_into_the_kernel_is_present() -> None:
    assert (
        says(
            with_module(examination_of(HGX), "ib_core", state=ModuleState.BUILTIN), "ib-core-not-loaded"
        ).status
        is Status.PASSED
    )


def test_a_module_that_is_being_loaded_is_unknown() -> None:
    loading = with_module(examination_of(HGX), "nvidia", state=ModuleState.LOADING)
    assert says(loading, "nvidia-not-loaded").status is Status.UNKNOWN


def test_gpus_passed_to_a_virtual_machine_need_no_driver() -> None:
    node = without(examination_of(HGX), "nvidia")
    assert says(node, "nvidia-not-loaded").status is Status.FOUND
    pci = node.node.pci
    assert not isinstance(pci, Unknown)
    passed_on = {bdf: replace(function, driver="vfio-pci") for bdf, function in pci.functions.items()}
    away = replace(node, node=replace(node.node, pci=replace(pci, functions=passed_on)))
    assert says(away, "nvidia-not-loaded").status is Status.PASSED


def test_a_missing_module_is_loaded_by_the_fix() -> None:
    fix = says(without(examination_of(HGX), "nvidia_uvm"), "nvidia-uvm-not-loaded").fix
    assert fix is not None
    assert [step.argv for step in fix.steps] == [("modprobe", "nvidia_uvm")]


def test_optional_modules_may_be_absent() -> None:
    """rdma_cm, gdrdrv and nvidia_fs are not on the way from NIC to GPU memory."""
    node = without(examination_of(HGX), "rdma_cm", "gdrdrv", "nvidia_fs")
    assert not [
        finding.id
        for finding in findings(node)
        if finding.status is Status.FOUND and finding.area in ("modules", "path")
    ]


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


def test_an_install_line_that_loads_the_module_is_no_fault() -> None:
    command = "/sbin/modprobe --ignore-install nvidia"
    line = InstallLine("nvidia", command, "/etc/modprobe.d/nvidia.conf:1")
    node = with_module(examination_of(HGX), "nvidia", install_line=line)
    assert says(node, "module-blacklisted-install").status is Status.PASSED


def test_unreadable_modprobe_files_make_the_result_unknown() -> None:
    node = examination_of(HGX)
    modules = node.node.modules
    assert isinstance(modules, ModuleFacts)
    hidden = replace(modules, rules_unread=("/etc/modprobe.d/secret.conf",))
    finding = says(replace(node, node=replace(node.node, modules=hidden)), "module-blacklisted")
    assert finding.status is Status.UNKNOWN
    assert "needs root: /etc/modprobe.d/secret.conf" in finding.cause


def test_a_blocked_module_that_is_needed_is_critical() -> None:
    line = InstallLine("nvidia", "/bin/false", "/etc/modprobe.d/x.conf:1")
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


def test_weak_updates_of_an_older_kernel_are_accepted() -> None:
    node = without(examination_of(HGX), "nvidia_peermem")
    weak = with_file(
        node, "nvidia_peermem", kernel="5.14.0-427.el9.x86_64", path="/lib/modules/x/weak-updates/a.ko"
    )
    assert says(weak, "module-wrong-vermagic").status is Status.PASSED


@pytest.mark.parametrize(
    ("distribution", "key"),
    [
        (parse_distribution("ID=ubuntu"), "/var/lib/shim-signed/mok/MOK.der"),
        (parse_distribution("ID=debian"), "/var/lib/dkms/mok.pub"),
        (parse_distribution("ID=rocky"), "/var/lib/dkms/mok.pub"),
        (NEEDS_ROOT, "/var/lib/dkms/mok.pub"),
    ],
)
def test_the_key_to_enroll_is_the_one_that_dkms_signs_with(distribution: Any, key: str) -> None:
    node = examination_of(f"{HGX}+secure-boot-unsigned")
    here = replace(node, distribution=distribution, boot=NEEDS_ROOT)
    fix = says(here, "secure-boot-unsigned").fix
    assert fix is not None
    assert ("mokutil", "--import", key) in [step.argv for step in fix.steps]
