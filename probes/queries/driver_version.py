"""The version of the NVIDIA driver that is loaded, for checks of what came with which version."""

from __future__ import annotations

from probes.base.unknown import Reason, Unknown
from probes.facts.gpudirect import parse_driver_version
from probes.queries.finding import Evidence, Outcome, passed, unsure, unsure_without
from probes.snapshot.examination import Examination

DRIVER_VERSION = "/proc/driver/nvidia/version"


def driver_version(examination: Examination) -> tuple[str, tuple[int, int, int]] | Outcome:
    """Return the version as written and its numbers; else what the check says."""
    gpus = examination.node.gpus
    version = gpus if isinstance(gpus, Unknown) else gpus.driver.version
    if isinstance(version, Unknown):
        if version.reason is Reason.NOT_THERE:
            return passed(Evidence(DRIVER_VERSION, "not there: the driver is not loaded"))
        return unsure_without("the driver's version", version)
    numbers = parse_driver_version(version)
    if numbers is None:
        return unsure(f"needs the driver's version (malformed: {version})")
    return version, numbers
