"""The commands that install drivers and tools on each distribution.

Sources: NVIDIA Driver Installation Guide 620 (kernel modules, table 5), DOCA-Host installation guide, and
Azure/azhpc-images for Ubuntu. Where neither names the command, there is none, and the guide is named instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from probes.base.plan import Plan, Step, instruction
from probes.base.unknown import Maybe, Unknown
from probes.facts.gpudirect import GdrPath
from probes.facts.system.distribution import Distribution, Family
from probes.setup.step import SetupStep, StepState
from probes.setup.steps.definition import SetupFacts

DRIVER_GUIDE = "https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/"
DOCA_GUIDE = "https://docs.nvidia.com/doca/sdk/doca-host-installation-and-upgrade/"
_RED_HAT_STREAMS = ("8", "9")
_PERFTEST = {
    Family.DEBIAN: ("perftest", "rdma-core", "ibverbs-utils", "infiniband-diags"),
    Family.RED_HAT: ("perftest", "rdma-core", "libibverbs-utils", "infiniband-diags"),
}
_REFRESH = {
    Family.DEBIAN: Step("Update the package list", ("apt-get", "update")),
    Family.RED_HAT: Step("Clear the cached package list", ("dnf", "clean", "all")),
}
_NO_VERBS = "perftest needs verbs, which Slingshot NICs do not have"
_KEYRING = "cuda-keyring_1.1-1_all.deb"


def package_command(family: Family, packages: Sequence[str]) -> tuple[str, ...]:
    """Return the command that installs packages of the distribution; () where it is unknown."""
    tool = {
        Family.DEBIAN: ("apt-get", "install"),
        Family.RED_HAT: ("dnf", "install"),
        Family.SUSE: ("zypper", "install"),
        Family.AZURE_LINUX: ("tdnf", "install"),
    }.get(family, ())
    return (*tool, *packages) if tool else ()


def gpu_driver_steps(distribution: Maybe[Distribution], headers: Step) -> tuple[Step, ...]:
    """Return the steps that install the newest driver with open kernel modules."""
    if isinstance(distribution, Unknown):
        return (instruction(f"Install the driver with open kernel modules as described at {DRIVER_GUIDE}."),)
    major = distribution.version.partition(".")[0]
    install = "Install the driver with open kernel modules"
    if distribution.family is Family.DEBIAN:
        repository = instruction(
            f"Add NVIDIA's package repository: install {_KEYRING} for this release"
            " from https://developer.download.nvidia.com/compute/cuda/repos/"
        )
        command = package_command(Family.DEBIAN, ("nvidia-open",))
        return (headers, repository, _REFRESH[Family.DEBIAN], Step(install, command))
    if distribution.family is Family.RED_HAT and distribution.id != "fedora":
        repository = instruction(f"Add NVIDIA's package repository for this release: {DRIVER_GUIDE}.")
        argv = ("dnf", "module", "enable", "nvidia-driver:open-dkms")
        stream = Step("Choose the open kernel modules", argv)
        choice = (stream,) if major in _RED_HAT_STREAMS or distribution.id == "amzn" else ()
        return (headers, repository, *choice, Step(install, ("dnf", "install", "nvidia-open")))
    return (headers, instruction(f"{install} as described at {DRIVER_GUIDE} for {distribution.name}."))


def ofed_steps(distribution: Maybe[Distribution], headers: Step) -> tuple[Step, ...]:
    """Return the steps that install DOCA-OFED, which nvidia_peermem needs."""
    family = Family.OTHER if isinstance(distribution, Unknown) else distribution.family
    download = instruction(f"Download and install the doca-host package for this release: {DOCA_GUIDE}")
    if family not in _REFRESH:
        return (headers, instruction(f"Install DOCA-OFED as described at {DOCA_GUIDE}."))
    install = Step("Install DOCA-OFED", package_command(family, ("doca-ofed",)))
    return (headers, download, _REFRESH[family], install)


def header_step(distribution: Maybe[Distribution], release: Maybe[str]) -> Step:
    """Return the step that installs the headers of the running kernel, which DKMS needs."""
    why = "Install the running kernel's headers, which DKMS needs"
    if not isinstance(distribution, Unknown) and not isinstance(release, Unknown):
        name = {Family.DEBIAN: "linux-headers", Family.RED_HAT: "kernel-devel"}.get(distribution.family)
        if name is not None:
            return Step(why, package_command(distribution.family, (f"{name}-{release}",)))
    return instruction(f"{why}.")


def with_perftest_package(facts: SetupFacts, step: SetupStep) -> SetupStep:
    """Add the distribution's package where the checks miss perftest; Slingshot NICs need none."""
    if facts.path is GdrPath.CXI:
        return replace(step, state=StepState.SKIPPED, reason=_NO_VERBS, plan=None)
    distribution = facts.situation.distribution
    if isinstance(distribution, Unknown) or distribution.family not in _PERFTEST:
        return step
    if step.state is not StepState.TO_DO or "perftest-missing" not in step.findings:
        return step
    packages = _PERFTEST[distribution.family]
    steps = (
        Step("Install perftest and the RDMA tools", package_command(distribution.family, packages)),
        instruction("The distribution's perftest may be built without CUDA; check with gdrtop bench --list."),
    )
    return replace(step, plan=Plan(step.title, steps, reversible=False))
