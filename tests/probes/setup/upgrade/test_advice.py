"""The forecast of a node with the packages of an upgrade, and the warnings about them."""

from __future__ import annotations

import pytest

from probes.base.evidence import Severity
from probes.facts.gpudirect import GdrPath
from probes.queries.finding import Finding, Status
from probes.setup.forecast import KernelForecast
from probes.setup.upgrade.advice import advise
from probes.setup.upgrade.upgrade import ChangeKind, PackageChange, Upgrade, parse, release_of, subject_of
from probes.simulation.host import SimulatedHost
from probes.snapshot.examination import examine
from probes.snapshot.verdict import State
from tests.support.pilot import SteppedClock

KERNEL = "6.8.0-90-generic"
IMAGE = f"Inst linux-image-{KERNEL} (6.8.0-90.91 Ubuntu:24.04/noble-updates [amd64])\n"
HEADERS = f"Inst linux-headers-{KERNEL} (6.8.0-90.91 Ubuntu:24.04/noble-updates [amd64])\n"
OFED = "Inst mlnx-ofed-kernel-dkms [24.10-1] (25.07.OFED.25.07.0.9.7.1-1 DOCA:3.1 [all])\n"
LIBRARIES = "Inst libnvidia-compute [570.124.06-1] (580.95.05-1ubuntu1 NVIDIA [amd64])\n"
MODULES = "Inst nvidia-dkms-open [570.124.06-1] (580.95.05-1ubuntu1 NVIDIA [amd64])\n"
MANAGER = "Inst nvidia-fabricmanager [570.124.06-1] (580.95.05-1 NVIDIA [amd64])\n"


def after(text: str, node: str = "hgx-h100") -> KernelForecast:
    host = SimulatedHost(node, clock=SteppedClock())
    kernel = advise(host, examine(host), Upgrade("apt-get dist-upgrade", parse(text))).forecast.chosen()
    assert kernel is not None
    return kernel


def found(kernel: KernelForecast) -> dict[str, Finding]:
    return {finding.id: finding for finding in kernel.findings if finding.status is Status.FOUND}


def test_a_kernel_with_its_headers_keeps_the_path() -> None:
    kernel = after(IMAGE + HEADERS)
    assert (kernel.release, kernel.is_next) == (KERNEL, True)
    assert (kernel.verdict.state, kernel.verdict.path) == (State.READY, GdrPath.DMABUF)
    assert "boot entry" in kernel.missing  # the command line of a kernel that is not installed yet


def test_a_kernel_without_headers_loses_the_driver_and_the_command_is_named() -> None:
    kernel = after(IMAGE)
    assert kernel.verdict.state is State.BROKEN
    assert kernel.verdict.reason.startswith("The new kernel comes without headers")
    warning = found(kernel)["upgrade-kernel-without-headers"]
    assert warning.severity is Severity.CRITICAL
    assert warning.fix is not None
    assert warning.fix.steps[0].argv == ("apt-get", "-y", "install", f"linux-headers-{KERNEL}")
    assert found(kernel)["dkms-not-built-for-kernel"].part_of == warning.id


def test_boot_settings_that_wait_for_update_grub_come_with_the_new_kernel() -> None:
    host = SimulatedHost("hgx-h100", clock=SteppedClock())
    settings = 'GRUB_CMDLINE_LINUX="iommu=pt module_blacklist=mlx5_ib"\n'
    host.tree.add("/etc/default/grub.d/x.cfg", settings)
    kernel = advise(host, examine(host), Upgrade("", parse(IMAGE + HEADERS))).forecast.chosen()
    assert kernel is not None
    assert kernel.verdict.state is State.BROKEN
    assert "mlx5-ib-not-loaded" in found(kernel)


RED_HAT = """\
Installing:
 kernel-core  x86_64  5.14.0-570.12.1.el9_6  baseos  20 M
{}
"""


@pytest.mark.parametrize(
    ("more", "state"),
    [("", State.BROKEN), (" kernel-devel  x86_64  5.14.0-570.12.1.el9_6  appstream  20 M", State.DEGRADED)],
    ids=["without headers", "with headers"],
)
def test_a_new_kernel_of_red_hat_becomes_the_default(more: str, state: State) -> None:
    kernel = after(RED_HAT.format(more), "pcie-l40s")
    assert (kernel.release, kernel.is_next) == ("5.14.0-570.12.1.el9_6.x86_64", True)
    assert kernel.verdict.state is state  # two of its GPUs are on another socket in any case


def test_ofed_replaced_under_peermem_matters_where_there_is_no_other_path() -> None:
    beside_dmabuf, only_path = after(OFED), after(OFED, "dgx-a100")
    assert found(beside_dmabuf)["upgrade-ofed-under-peermem"].severity is Severity.NOTE
    assert beside_dmabuf.verdict.state is State.READY
    assert found(only_path)["upgrade-ofed-under-peermem"].severity is Severity.WARNING
    assert only_path.verdict.state is State.DEGRADED


def test_ofed_and_the_driver_together_are_no_problem() -> None:
    assert "upgrade-ofed-under-peermem" not in found(after(OFED + MODULES + LIBRARIES + MANAGER, "dgx-a100"))


@pytest.mark.parametrize("fault", ["peermem-symbol-version-mismatch", "ofed-replaced-under-peermem"])
def test_an_upgrade_that_builds_the_modules_ends_a_mismatch_and_another_does_not(fault: str) -> None:
    node = f"dgx-a100+{fault}"
    both = after(OFED + MODULES.replace("-open", "") + LIBRARIES + MANAGER, node)
    assert "peermem-symbol-version-mismatch" not in found(both)
    assert both.verdict.state is State.READY
    assert after("Inst curl [8.5.0-2] (8.5.0-3 Ubuntu:22.04 [amd64])\n", node).verdict.state is State.BROKEN


def test_removing_ofed_takes_peermem_away() -> None:
    kernel = after("Remv mlnx-ofed-kernel-dkms [24.10-1]\n", "dgx-a100")
    assert kernel.verdict.state is State.BROKEN


def test_a_driver_upgrade_as_a_whole_needs_only_the_reboot() -> None:
    kernel = after(MODULES + LIBRARIES + MANAGER)
    assert (kernel.verdict.state, kernel.verdict.path) == (State.READY, GdrPath.DMABUF)
    assert "upgrade-needs-reboot" in found(kernel)
    assert kernel.verdict.critical == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "finding"),
    [
        (LIBRARIES, "driver-library-mismatch"),
        (MODULES + LIBRARIES, "fabric-manager-down-version"),
        ("Remv nvidia-dkms-570-open [570.124.06-1]\n", "nvidia-not-loaded"),
    ],
)
def test_a_driver_upgrade_in_part_is_broken(text: str, finding: str) -> None:
    kernel = after(text)
    assert finding in found(kernel)
    assert kernel.verdict.critical


def test_proprietary_modules_that_replace_open_ones_end_dmabuf() -> None:
    text = "Inst nvidia-dkms-570 (570.124.06-1 NVIDIA [amd64])\nRemv nvidia-dkms-570-open [570.124.06-1]\n"
    assert after(text).verdict.path is not GdrPath.DMABUF


def test_other_packages_change_nothing() -> None:
    kernel = after("Inst curl [8.5.0-2] (8.5.0-3 Ubuntu:24.04 [amd64])\n")
    assert kernel.verdict.state is State.READY
    assert kernel.verdict.warnings == 0


@pytest.mark.parametrize(
    ("name", "version", "architecture", "release"),
    [
        ("linux-image-6.1.0-56-amd64", "6.1.192-2", "amd64", "6.1.0-56-amd64"),
        ("linux-image-unsigned-6.8.0-90-generic", "6.8.0-90.91", "amd64", "6.8.0-90-generic"),
        ("linux-headers-6.1.0-56-common", "6.1.192-2", "all", ""),
        ("kernel-core", "5.14.0-570.12.1.el9_6", "x86_64", "5.14.0-570.12.1.el9_6.x86_64"),
        ("kernel-64k-core", "5.14.0-570.12.1.el9_6", "aarch64", "5.14.0-570.12.1.el9_6.aarch64+64k"),
        ("kernel-devel", "5.14.0-570.12.1.el9_6", "x86_64", "5.14.0-570.12.1.el9_6.x86_64"),
        ("kernel-default", "6.4.0-150600.23.38.1", "x86_64", "6.4.0-150600.23.38-default"),
        ("kernel-default-devel", "6.4.0-150600.23.38.1", "x86_64", "6.4.0-150600.23.38-default"),
    ],
)
def test_the_release_that_uname_will_print(name: str, version: str, architecture: str, release: str) -> None:
    assert release_of(PackageChange(name, ChangeKind.NEW, "", version, architecture)) == release


@pytest.mark.parametrize(
    ("name", "subject"),
    [
        ("linux-image-generic", ""),
        ("kernel-headers", ""),
        ("nvidia-dkms-580-open", "GPU driver"),
        ("kmod-nvidia-open-dkms", "GPU driver"),
        ("linux-modules-nvidia-580-open-6.8.0-90-generic", "GPU driver"),
        ("nvidia-open-kernel-dkms", "GPU driver"),
        ("nvidia-tesla-535-kernel-dkms", "GPU driver"),
        ("libnvidia-compute-580-server", "GPU driver libraries"),
        ("libcuda1", "GPU driver libraries"),
        ("libnvidia-tesla-535-cuda1", "GPU driver libraries"),
        ("nvidia-fabric-manager", "Fabric Manager"),
        ("nvidia-fabricmanager-580", "Fabric Manager"),
        ("mlnx-ofed-kernel-dkms", "NIC driver"),
        ("kmod-mlnx-ofa_kernel", "NIC driver"),
        ("doca-ofed", "NIC driver"),
        ("ibverbs-providers", "RDMA libraries"),
        ("nvidia-settings", ""),
    ],
)
def test_what_a_package_belongs_to(name: str, subject: str) -> None:
    assert subject_of(name) == subject
