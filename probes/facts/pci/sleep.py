"""Which PCI functions sleep, and so must not be read.

Reading `config` or `vpd` wakes a suspended function up, and in kernels since 2025 `current_link_speed`,
`current_link_width` and `max_link_width` do (drivers/pci/pci-sysfs.c, pci_config_pm_runtime_get).
"""

from __future__ import annotations

from probes.base.unknown import Reason, Unknown, known
from probes.host.protocol import Host

DEVICES = "/sys/bus/pci/devices"
_ASLEEP = (("power/runtime_status", ("suspended", "suspending")), ("power_state", ("D3cold",)))


def asleep(host: Host, bdf: str) -> Unknown | None:
    """Return why a function is not read; None: it is awake."""
    for name, words in _ASLEEP:
        path = f"{DEVICES}/{bdf}/{name}"
        state = known(host.read(path, 4096), "")
        if state in words:
            return Unknown(Reason.NOT_THERE, path, f"not read: {state}, and reading would wake it up")
    return None
