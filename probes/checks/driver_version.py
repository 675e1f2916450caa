"""The version of the NVIDIA driver that is loaded, for checks of what came with which version."""

from __future__ import annotations

from probes.checks.finding import Evidence, Outcome, passed, unsure
from probes.checks.wording import needs
from probes.examination import Examination
from probes.gpudirect import parse_driver_version
from probes.unknown import Reason, Unknown

DRIVER_VERSION = "/proc/driver/nvidia/version"


def driver_version(examination: Examination) -> tuple[str, tuple[int, int, int]] | Outcome:
    """Return the version as written and its numbers; else what the check says."""
    gpus = examination.node.gpus
    version = gpus if isinstance(gpus, Unknown) else gpus.driver.version
    if isinstance(version, Unknown):
        if version.reason is Reason.NOT_THERE:
            return passed(Evidence(DRIVER_VERSION, "not there: see nvidia-not-loaded"))
        return unsure(needs("the driver's version", version))
    numbers = parse_driver_version(version)
    if numbers is None:
        return unsure(f"needs the driver's version (malformed: {version})")
    return version, numbers
