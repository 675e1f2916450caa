"""The commands that install packages, for each distribution."""

from __future__ import annotations

from dataclasses import replace

import pytest

from probes.base.plan import Step
from probes.base.unknown import Unknown
from probes.checks.registry import findings
from probes.facts.node import Node
from probes.facts.system.packages import Distribution, Family
from probes.facts.system.platform import PlatformFacts
from probes.plans.packages import (
    fabric_manager_steps,
    header_step,
    nvlsm_steps,
    ofed_steps,
    open_driver_steps,
    verbs_steps,
)
from probes.setup.step import SetupRecord
from probes.setup.steps.guide import read_guide
from probes.simulation.host import SimulatedHost
from probes.snapshot.examination import Examination, examine

UBUNTU = Distribution("ubuntu", "24.04", "Ubuntu 24.04 LTS", Family.DEBIAN)
UBUNTU_26 = Distribution("ubuntu", "26.04", "Ubuntu 26.04 LTS", Family.DEBIAN)
DEBIAN = Distribution("debian", "13", "Debian 13", Family.DEBIAN)
RHEL = Distribution("rhel", "9.4", "RHEL 9.4", Family.RED_HAT)
RHEL_10 = Distribution("rhel", "10.0", "RHEL 10.0", Family.RED_HAT)
AMAZON = Distribution("amzn", "2023", "Amazon Linux 2023", Family.RED_HAT)
SLES = Distribution("sles", "15.6", "SLES 15 SP6", Family.SUSE)
AZURE = Distribution("azurelinux", "3.0", "Azure Linux 3.0", Family.AZURE_LINUX)
TALOS = Distribution("talos", "v1.13.0", "Talos", Family.TALOS)
GENTOO = Distribution("gentoo", "", "Gentoo", Family.OTHER)


@pytest.fixture(scope="module")
def node() -> Examination:
    return examine(SimulatedHost("hgx-h100"))


def on(node: Examination, distribution: Distribution, release: str = "", processor: str = "") -> Examination:
    facts: Node = node.node
    platform = facts.platform
    assert isinstance(platform, PlatformFacts)
    if processor:
        facts = replace(facts, platform=replace(platform, cpu_architecture=processor))
    if release:
        assert not isinstance(facts.kernel, Unknown)
        facts = replace(facts, kernel=replace(facts.kernel, release=release))
    return replace(node, node=facts, distribution=distribution)


def commands(steps: tuple[Step, ...]) -> list[str]:
    return [" ".join(step.argv) or step.why for step in steps]


@pytest.mark.parametrize(
    ("distribution", "release", "package"),
    [
        (UBUNTU, "6.8.0-45-generic", "apt-get -y install linux-headers-6.8.0-45-generic"),
        (RHEL, "5.14.0-427.el9.x86_64", "dnf -y install kernel-devel-5.14.0-427.el9.x86_64"),
        (RHEL, "5.14.0-427.el9.aarch64+64k", "dnf -y install kernel-64k-devel-5.14.0-427.el9.aarch64"),
        (RHEL, "6.12.0-1.el9uek.x86_64", "dnf -y install kernel-uek-devel-6.12.0-1.el9uek.x86_64"),
        (
            AMAZON,
            "6.12.40-64.114.amzn2023.x86_64",
            "dnf -y install kernel6.12-devel-6.12.40-64.114.amzn2023.x86_64",
        ),
        (
            AMAZON,
            "6.1.147-172.266.amzn2023.x86_64",
            "dnf -y install kernel-devel-6.1.147-172.266.amzn2023.x86_64",
        ),
        (AZURE, "6.6.64.2-9.azl3", "tdnf -y install kernel-devel-6.6.64.2-9.azl3"),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_headers_are_those_of_the_kernel(
    node: Examination, distribution: Distribution, release: str, package: str
) -> None:
    assert commands((header_step(on(node, distribution, release)),)) == [package]


def test_a_newer_branch_of_amazon_linux_gets_no_guessed_package(node: Examination) -> None:
    step = header_step(on(node, AMAZON, "6.24.3-10.amzn2023.x86_64"))
    assert step.is_instruction
    assert "6.24.3-10.amzn2023.x86_64" in step.why


def test_other_distributions_are_told_which_kernel(node: Examination) -> None:
    step = header_step(on(node, GENTOO, "6.6.1"))
    assert step.is_instruction
    assert "6.6.1" in step.why


CUDA = "https://developer.download.nvidia.com/compute/cuda/repos"


@pytest.mark.parametrize(
    ("distribution", "processor", "wanted"),
    [
        (UBUNTU, "x86_64", (f"{CUDA}/ubuntu2404/x86_64/cuda-keyring_1.1-1_all.deb", "install nvidia-open")),
        (UBUNTU, "aarch64", (f"{CUDA}/ubuntu2404/sbsa/", "install nvidia-open")),
        (
            UBUNTU_26,
            "x86_64",
            (f"{CUDA}/ubuntu2604/x86_64/cuda-keyring_1.1-1_all.deb", "install nvidia-open"),
        ),
        (DEBIAN, "x86_64", (f"{CUDA}/debian13/x86_64/", "install nvidia-open")),
        (RHEL, "x86_64", (f"{CUDA}/rhel9/x86_64/cuda-rhel9.repo", "module enable nvidia-driver:open-dkms")),
        (AMAZON, "x86_64", (f"{CUDA}/amzn2023/x86_64/cuda-amzn2023.repo", "nvidia-driver:open-dkms")),
        (
            SLES,
            "x86_64",
            (f"{CUDA}/sles15/x86_64/cuda-sles15.repo", "nvidia-open-driver-G06-signed-cuda-kmp"),
        ),
        (AZURE, "x86_64", ("azurelinux/3.0/prod/nvidia/x86_64/config.repo", "tdnf -y install cuda-open")),
        (AZURE, "aarch64", ("azurelinux/3.0/prod/nvidia/aarch64/", "tdnf -y install cuda-open-hwe")),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_the_driver_comes_from_the_repository_of_the_release(
    node: Examination, distribution: Distribution, processor: str, wanted: tuple[str, ...]
) -> None:
    made = open_driver_steps(on(node, distribution, processor=processor))
    assert all(step.argv for step in made)
    assert all(any(text in command for command in commands(made)) for text in wanted), commands(made)


def test_red_hat_10_has_no_module_streams_and_amazon_no_epel(node: Examination) -> None:
    assert not any("module enable" in text for text in commands(open_driver_steps(on(node, RHEL_10))))
    assert not any("epel" in text for text in commands(open_driver_steps(on(node, AMAZON))))
    assert any("epel-release-latest-10" in text for text in commands(open_driver_steps(on(node, RHEL_10))))


@pytest.mark.parametrize(
    "distribution",
    [GENTOO, replace(SLES, version="16.0"), replace(UBUNTU, version=""), replace(AMAZON, version="2")],
)
def test_without_a_source_the_guide_is_named(node: Examination, distribution: Distribution) -> None:
    assert "driver-installation-guide" in commands(open_driver_steps(on(node, distribution)))[-1]


@pytest.mark.parametrize(
    ("distribution", "newest"),
    [
        (replace(UBUNTU, version="26.10"), "ubuntu2604"),
        (replace(UBUNTU, version="28.04"), "ubuntu2604"),
        (replace(DEBIAN, version="14"), "debian13"),
        (replace(RHEL, version="11.0"), "rhel10"),
        (replace(SLES, version="16.0"), "sles15"),
        (replace(AMAZON, version="2027"), "amzn2023"),
        (replace(AZURE, version="4.0"), "azl3"),
        (Distribution("fedora", "44", "Fedora Linux 44", Family.RED_HAT), ""),
    ],
    ids=lambda value: " ".join((value.id, value.version)) if isinstance(value, Distribution) else None,
)
def test_a_release_after_the_newest_that_is_known_gets_no_guessed_command(
    node: Examination, distribution: Distribution, newest: str
) -> None:
    made = open_driver_steps(on(node, distribution))
    assert not any("developer.download.nvidia.com" in command for command in commands(made))
    assert "driver-installation-guide" in commands(made)[-1]
    assert distribution.name in commands(made)[-1]
    assert not newest or commands(made)[-1].endswith(f"{newest}.")
    assert not any("mellanox.com" in command for command in commands(ofed_steps(on(node, distribution))))


def test_azure_linux_4_is_not_told_to_use_tdnf(node: Examination) -> None:
    newer = on(node, replace(AZURE, version="4.0"), "6.18.1-1.azl4")
    for made in (open_driver_steps(newer), ofed_steps(newer), (header_step(newer),), verbs_steps(newer)):
        assert not any(step.argv[:1] == ("tdnf",) for step in made)


def test_talos_gets_an_extension_and_no_package(node: Examination) -> None:
    made = open_driver_steps(on(node, TALOS))
    assert not any(step.argv for step in made)
    assert "nvidia-open-gpu-kernel-modules" in commands(made)[0]


def test_doca_has_the_pinned_package_of_the_release(node: Examination) -> None:
    assert "doca-host_3.2.3-019000-25.10-ubuntu2404_amd64.deb" in commands(ofed_steps(on(node, UBUNTU)))[1]
    assert "rhel9.x86_64.rpm" in commands(ofed_steps(on(node, RHEL)))[1]
    assert commands(ofed_steps(on(node, RHEL)))[-1] == "dnf -y install doca-ofed"
    # The kernels of 9.8 need a patch: no command that would fail.
    assert not ofed_steps(on(node, replace(RHEL, version="9.8")))[1].argv
    assert not ofed_steps(on(node, DEBIAN))[1].argv


@pytest.mark.parametrize(
    ("distribution", "version", "package"),
    [
        (UBUNTU, "570.124.06", "nvidia-fabricmanager-570=570.124.06*"),
        (UBUNTU, "580.95.05", "nvidia-fabricmanager=580.95.05*"),
        (RHEL, "570.124.06", "nvidia-fabric-manager-570.124.06"),
        (RHEL, "580.95.05", "nvidia-fabricmanager-580.95.05"),
        (SLES, "580.95.05", "nvidia-fabricmanager=580.95.05"),
        (AZURE, "570.133.20", "nvidia-fabric-manager-570.133.20"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_fabric_manager_has_exactly_the_drivers_version(
    node: Examination, distribution: Distribution, version: str, package: str
) -> None:
    (step,) = fabric_manager_steps(on(node, distribution), version)
    assert step.argv[-1] == package


def test_debian_has_fabric_manager_only_in_nvidias_repository(node: Examination) -> None:
    (step,) = fabric_manager_steps(on(node, DEBIAN), "570.124.06")
    assert step.why.endswith("from NVIDIA's package repository (Debian has none)")


def test_nvlsm_is_installed_with_its_tools(node: Examination) -> None:
    assert commands(nvlsm_steps(on(node, UBUNTU))) == ["apt-get -y install nvlsm infiniband-diags"]
    assert nvlsm_steps(on(node, AZURE))[0].is_instruction


@pytest.mark.parametrize(
    ("demo", "finding", "step"),
    [
        ("pcie-l40s+no-gdr-path", "dmabuf-needs-open-module", "gpu-driver"),
        ("hgx-h100+dkms-build-failed", "dkms-build-failed", "build"),
        ("hgx-b200+nvlsm-missing", "nvlsm-missing", "fabric"),
    ],
)
def test_the_doctor_has_the_commands_of_setup(demo: str, finding: str, step: str) -> None:
    host = SimulatedHost(demo)
    examination = examine(host)
    found = findings(examination)
    fix = next(each.fix for each in found if each.id == finding)
    guided = read_guide(host, examination, found, (), SetupRecord()).step(step)
    assert fix is not None
    assert guided is not None
    assert guided.plan is not None
    installs = [command for command in commands(fix.steps) if " install " in command]
    assert installs
    assert set(installs) <= set(commands(guided.plan.steps))
