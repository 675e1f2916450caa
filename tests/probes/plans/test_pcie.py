"""ACS redirects and MaxReadReq: which registers are written, and on which nodes none is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from probes.base.unknown import Reason, Unknown
from probes.facts.pci.functions import PciKind
from probes.snapshot.examination import Examination
from tests.support.changed_facts import said, with_module
from tests.support.doctor import examination_of, findings_on
from tests.support.plans import commands, plan, undone, why_not

HGX = "hgx-h100"
ACS_ON = f"{HGX}+acs-on"
NEEDS_ROOT = Unknown(Reason.NEEDS_ROOT, "/sys/bus/pci/devices/x/config", "PCI config beyond 64 bytes")


def with_driver(examination: Examination, bdf: str, driver: str) -> Examination:
    pci = examination.node.pci
    assert not isinstance(pci, Unknown)
    changed = {**pci.functions, bdf: replace(pci.functions[bdf], driver=driver)}
    return replace(examination, node=replace(examination.node, pci=replace(pci, functions=changed)))


def with_platform(examination: Examination, **facts: object) -> Examination:
    platform = examination.node.platform
    assert not isinstance(platform, Unknown)
    changed = replace(platform, **facts)  # type: ignore[arg-type]
    return replace(examination, node=replace(examination.node, platform=changed))


def without_config(examination: Examination) -> Examination:
    return replace(examination, config_space=NEEDS_ROOT)


def test_only_the_redirect_bits_are_cleared_and_restored() -> None:
    fix = plan("acs-redirect-off", examination_of(ACS_ON))
    assert commands(fix)[0] == "setpci -s 0000:17:00.0 ECAP_ACS+6.w=0000:000c"
    assert undone(fix)[0] == "setpci -s 0000:17:00.0 ECAP_ACS+6.w=000c:000c"
    assert commands(fix)[-1] == "…"
    # grub ends a command at a bare semicolon, and what follows it is lost.
    file = fix.steps[-3].file
    assert file is not None
    assert file.text is not None
    assert r"pci=disable_acs_redir=\"0000:17:00.0;" in file.text
    assert file.text.count(r"\"") == 2
    assert "/proc/cmdline" in fix.steps[-1].why
    assert fix.disturbs


def test_the_doctor_proposes_the_same_plan() -> None:
    assert findings_on(ACS_ON)["acs-redirect-enabled"].fix == plan("acs-redirect-off", examination_of(ACS_ON))


def test_redirects_stay_on_nodes_that_need_them() -> None:
    node = examination_of(ACS_ON)
    assert "ACS isolates such devices" in why_not(
        "acs-redirect-off", with_driver(node, "0000:5a:00.0", "vfio-pci")
    )
    assert "a virtual machine" in why_not("acs-redirect-off", with_platform(node, hypervisor="KVM"))
    unclear = with_platform(node, hypervisor=NEEDS_ROOT, environment=NEEDS_ROOT)
    assert "whether this is a virtual machine" in why_not("acs-redirect-off", unclear)
    assert "Direct NIC platform" in why_not("acs-redirect-off", examination_of("gb200+acs-direct-nic"))


def test_unreadable_registers_are_reported_as_unknown() -> None:
    for action in ("acs-redirect-off", "mrrs"):
        told = why_not(action, without_config(examination_of(HGX)))
        assert told == "needs root: PCI config beyond 64 bytes"


def test_nothing_to_do_is_reported_with_numbers() -> None:
    node = examination_of(HGX)
    no_redirect = "none of the 16 switch ports between GPUs and NICs has a redirect enabled"
    assert why_not("acs-redirect-off", node) == no_redirect
    assert why_not("mrrs", node) == "already 4096 bytes or more on all 10 NICs"


def test_read_requests_are_raised_on_nics_that_have_less() -> None:
    fix = plan("mrrs", examination_of(f"{HGX}+pcie-devctl-read-request"))
    assert commands(fix) == ["setpci -s 0000:1a:00.0 CAP_EXP+8.w=5000:7000", "…", "…"]
    assert undone(fix)[0] == "setpci -s 0000:1a:00.0 CAP_EXP+8.w=2000:7000"
    assert "A reboot or a NIC reset" in fix.steps[-2].why
    assert "mlxconfig -d 0000:1a:00.0 q" in fix.steps[-1].why
    assert findings_on(f"{HGX}+pcie-devctl-read-request")["pcie-devctl-read-request"].fix == fix


def translated(examination: Examination) -> Examination:
    """The node with an IOMMU that translates its GPUs and NICs."""
    pci = examination.node.pci
    assert not isinstance(pci, Unknown)
    functions = {bdf: replace(function, iommu_type="DMA-FQ") for bdf, function in pci.functions.items()}
    return replace(examination, node=replace(examination.node, pci=replace(pci, functions=functions)))


def locked_down(examination: Examination, mode: str = "integrity") -> Examination:
    kernel = examination.node.kernel
    assert not isinstance(kernel, Unknown)
    return replace(examination, node=replace(examination.node, kernel=replace(kernel, lockdown=mode)))


def test_a_translating_iommu_comes_first_and_no_register_is_written() -> None:
    node = translated(examination_of(ACS_ON))
    assert "boot with iommu=pt first" in why_not("acs-redirect-off", node)
    fix = said("acs-redirect-enabled", node).fix
    assert fix is not None
    assert not any(step.argv[:1] == ("setpci",) for step in fix.steps)
    assert "iommu=pt" in fix.steps[0].why
    on_arm = with_platform(node, cpu_architecture="aarch64")
    assert "boot with iommu.passthrough=1 first" in why_not("acs-redirect-off", on_arm)


@pytest.mark.parametrize("driver", ["vfio-pci", "mlx5_vfio_pci", "nvgrace_gpu_vfio_pci"])
def test_acs_stays_on_a_host_with_passed_through_devices(driver: str) -> None:
    node = with_driver(examination_of(ACS_ON), "0000:5a:00.0", driver)
    assert "ACS isolates such devices" in why_not("acs-redirect-off", node)
    assert said("acs-redirect-enabled", node).fix is None


def test_acs_stays_on_a_vgpu_host() -> None:
    node = examination_of(ACS_ON)
    shares = with_module(node, "nvidia", used_by=("nvidia_uvm", "nvidia_vgpu_vfio"))
    assert "ACS isolates such devices" in why_not("acs-redirect-off", shares)
    pci = node.node.pci
    assert not isinstance(pci, Unknown)
    gpu = next(function for function in pci.functions.values() if function.kind is PciKind.GPU)
    share = replace(gpu, bdf="0000:99:00.4", physical_function=gpu.bdf)
    functions = {**pci.functions, share.bdf: share}
    with_share = replace(node, node=replace(node.node, pci=replace(pci, functions=functions)))
    assert share.bdf in why_not("acs-redirect-off", with_share)


@pytest.mark.parametrize("mode", ["integrity", "confidentiality"])
def test_under_lockdown_no_register_write_is_offered(mode: str) -> None:
    acs, reads = examination_of(ACS_ON), examination_of(f"{HGX}+pcie-devctl-read-request")
    assert f"kernel lockdown is on ({mode})" in why_not("acs-redirect-off", locked_down(acs, mode))
    assert f"kernel lockdown is on ({mode})" in why_not("mrrs", locked_down(reads, mode))
    fix = said("acs-redirect-enabled", locked_down(acs, mode)).fix
    assert fix is not None
    assert not any(step.argv[:1] == ("setpci",) for step in fix.steps)
