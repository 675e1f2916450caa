"""DKMS builds, driver updates and the initramfs."""

from __future__ import annotations

from dataclasses import replace

from probes.base.unknown import Unknown
from probes.facts.kernel.module_files import ModuleFileFacts
from probes.facts.kernel.modules import KernelModule
from probes.queries.finding import Status
from tests.support.doctor import examination_of, findings_on, found_on
from tests.support.module_nodes import HGX, NOT_THERE, says


def test_old_dkms_leftovers_are_no_fault() -> None:
    """Ready-made modules for this kernel, and DKMS's record of an older one."""
    node = examination_of(HGX)
    assert not isinstance(node.dkms, Unknown)
    old = tuple(
        replace(package, built=("5.15.0-1",), installed=("5.15.0-1",)) for package in node.dkms.modules
    )
    ready = replace(node, dkms=replace(node.dkms, modules=old))
    assert says(ready, "dkms-not-built-for-kernel").status is Status.PASSED


def test_a_node_without_dkms_passes() -> None:
    node = replace(examination_of(HGX), dkms=NOT_THERE)
    assert says(node, "dkms-not-built-for-kernel").status is Status.PASSED
    assert says(node, "dkms-build-failed").status is Status.PASSED


def test_a_driver_in_use_is_no_fault_without_a_pending_update() -> None:
    nvidia = examination_of(HGX).node.modules.modules["nvidia"]  # type: ignore[union-attr]
    assert isinstance(nvidia, KernelModule)
    assert nvidia.refcnt
    assert findings_on(HGX)["driver-upgrade-blocked"].status is Status.PASSED


def test_a_driver_from_a_container_has_no_file_to_compare() -> None:
    node = examination_of(HGX)
    assert isinstance(node.module_files, ModuleFileFacts)
    empty = replace(node, module_files=replace(node.module_files, files={}))
    assert says(empty, "driver-half-updated").status is Status.PASSED


def test_a_missing_modinfo_makes_builds_unknown() -> None:
    node = examination_of(HGX)
    assert isinstance(node.module_files, ModuleFileFacts)
    blind = replace(node, module_files=replace(node.module_files, files=NOT_THERE))
    for name in ("driver-half-updated", "driver-upgrade-blocked", "initramfs-stale"):
        assert says(blind, name).status is Status.UNKNOWN


def test_a_replaced_driver_is_not_a_stale_initramfs() -> None:
    found = found_on("hgx-h100+driver-half-updated")
    assert "driver-half-updated" in found
    assert "initramfs-stale" not in found


def test_a_driver_built_for_another_kernel_names_one_of_the_same_distribution() -> None:
    finding = findings_on("pcie-l40s+dkms-not-built-for-kernel")["dkms-not-built-for-kernel"]
    shown = " ".join(line.value for line in finding.evidence)
    assert ".el9_4" in shown
    assert "generic" not in shown
