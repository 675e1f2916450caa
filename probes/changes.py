"""Has the node changed since it was probed? A few cheap questions, asked with every reading."""

from __future__ import annotations

from collections.abc import Hashable

from probes.host import Host
from probes.modules import COMPANIONS, CORE_LADDER
from probes.unknown import Maybe


def fingerprint(host: Host) -> Hashable:
    """Equal for two moments between which no device and no module came or went."""
    directories = ("/sys/bus/pci/devices", "/sys/class/infiniband", "/sys/module")
    names: list[Maybe[tuple[str, ...]]] = [host.names(directory) for directory in directories]
    states = [host.read(f"/sys/module/{module}/initstate") for module in (*CORE_LADDER, *COMPANIONS)]
    return (*names, *states)
