"""What ends jobs, in one wording: a reboot, which gdrtop only shows, and an exchange of the driver."""

from __future__ import annotations

from probes.plan import Step

REBOOT_ENDS_JOBS = "a reboot ends every job"
SWAP_ENDS_JOBS = "exchanging the driver ends every job on the GPUs"


def reboot_step(why: str = "reboots the node") -> Step:
    """A reboot; `why` is what it brings."""
    return Step(why, ("systemctl", "reboot"))
