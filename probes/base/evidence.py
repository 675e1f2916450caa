"""What shows a problem, and what the problem costs."""

from __future__ import annotations

from enum import Enum

from probes.base.frozen import frozen


class Severity(Enum):
    """What a finding costs, the most severe first."""

    CRITICAL = "critical"  # GPUDirect RDMA does not work, for the node or for some of its GPUs
    WARNING = "warning"  # it works, but slower than it could, or not after the next reboot
    NOTE = "note"  # worth knowing


@frozen
class Evidence:
    """A source and what it showed."""

    source: str  # a path, or a command as typed
    value: str
