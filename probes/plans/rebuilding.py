"""Rebuilding kernel modules with DKMS; a person runs the builds."""

from __future__ import annotations

from probes.base.plan import Plan, Step, instruction
from probes.base.unknown import Unknown
from probes.facts.kernel.dkms import DRIVER_PACKAGES
from probes.plans.load_modules import load_step
from probes.queries.modules import PEERMEM
from probes.snapshot.examination import Examination

_DEPMOD = "Update the list of modules"


def rebuild_steps(examination: Examination) -> tuple[Step, ...]:
    """Rebuild the loaded driver's modules with DKMS, and load nvidia_peermem."""
    dkms, release = examination.dkms, examination.node.kernel_release
    of_kernel = () if isinstance(release, Unknown) else ("-k", release)
    packages = () if isinstance(dkms, Unknown) else dkms.modules
    # By name, not by prefix: nvidia-fs is a package of its own.
    driver = next((one for one in packages if one.name in DRIVER_PACKAGES and one.installed), None)
    depmod = Step(_DEPMOD, ("depmod", "-a"))
    load = load_step(examination, PEERMEM)
    if driver is None:
        first = instruction("Rebuild the NVIDIA driver's modules, or install the driver's DKMS package.")
        return (first, depmod, load)
    name = f"{driver.name}/{driver.version}"
    return (
        Step("Rebuild the driver's modules", ("dkms", "build", name, *of_kernel, "--force")),
        Step("Install the built modules", ("dkms", "install", name, *of_kernel, "--force")),
        depmod,
        load,
    )


def rebuild_plan(release: str) -> Plan:
    """Build every DKMS package for the kernel `release`."""
    steps = (
        instruction("Install the headers of the running kernel (linux-headers-…, kernel-devel-…)."),
        Step("Build every DKMS module for this kernel", ("dkms", "autoinstall", "-k", release)),
        Step(_DEPMOD, ("depmod", "-a", release)),
    )
    return Plan(
        "Build the modules for this kernel",
        steps,
        reversible=False,
        note="Load the modules afterwards. A driver that is already loaded stays until a reboot.",
    )
