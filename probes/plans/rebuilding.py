"""Building kernel modules anew with DKMS; the builds themselves are run by a person."""

from __future__ import annotations

from probes.checks.module_facts import PEERMEM
from probes.examination import Examination
from probes.plan import Plan, Step, instruction
from probes.plans.loading import load_step
from probes.unknown import Unknown


def rebuild_steps(examination: Examination) -> tuple[Step, ...]:
    """Builds the loaded driver's modules anew with DKMS, and loads nvidia_peermem."""
    dkms, release = examination.dkms, examination.node.kernel_release
    of_kernel = () if isinstance(release, Unknown) else ("-k", release)
    known_packages = () if isinstance(dkms, Unknown) else dkms.modules
    package = next((one for one in known_packages if one.name.startswith("nvidia") and one.installed), None)
    depmod = Step("writes down what there is", ("depmod", "-a"))
    load = load_step(examination, PEERMEM)
    if package is None:
        first = (instruction("build the NVIDIA driver's modules anew, or install its DKMS package"),)
        return (*first, depmod, load)
    name = f"{package.name}/{package.version}"
    return (
        Step("builds the driver's modules anew", ("dkms", "build", name, *of_kernel, "--force")),
        Step("installs what was built", ("dkms", "install", name, *of_kernel, "--force")),
        depmod,
        load,
    )


def rebuild_plan(release: str) -> Plan:
    """Builds what DKMS has for the kernel `release`."""
    steps = (
        instruction("install the headers of the running kernel (linux-headers-…, kernel-devel-…)"),
        Step("builds every DKMS module for this kernel", ("dkms", "autoinstall", "-k", release)),
        Step("writes down what there is", ("depmod", "-a", release)),
    )
    return Plan(
        "Build the modules for this kernel",
        steps,
        reversible=False,
        note="load the modules afterwards; a driver that is loaded already stays until a reboot",
    )
