"""What the NCCL logs of jobs showed while a node was recorded, without a line of the logs."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from probes.base.evidence import Severity
from probes.base.frozen import frozen


@frozen
class LogFinding:
    """A finding that a recording cannot show again, because it has no logs of jobs."""

    id: str  # of the check
    severity: Severity
    devices: tuple[str, ...] = ()  # BDFs and RDMA device names
    takes: tuple[str, ...] = ()  # GPUs (BDF) and NICs
    ranks: tuple[str, ...] = ()  # "rank 5", "pid 4716"
    part_of: str = ""  # the id of the finding with the same cause
    data_path: bool = False


@runtime_checkable
class LogFindingsRecorder(Protocol):
    """A host that records findings; a class of its own, so that nothing of recordings is imported."""

    def note_log_findings(self, findings: tuple[LogFinding, ...]) -> None:
        """Record what only the logs of jobs show, from now on."""
