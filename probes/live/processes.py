"""Processes with RDMA resources or a GPU, each with what it has on which NIC and the path of its data."""

from __future__ import annotations

from dataclasses import dataclass

from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.node import Node
from probes.host.protocol import Host
from probes.live.sample import LiveProcess
from probes.snapshot.rates import Reading


@dataclass(frozen=True)
class ProcessSnapshot:
    """The processes at one moment, and what could not be seen."""

    processes: Maybe[tuple[LiveProcess, ...]]
    limits: tuple[str, ...] = ()


class ProcessReader:
    """Read the processes; facts that do not change are read once per process."""

    def read(self, host: Host, node: Node, reading: Reading) -> ProcessSnapshot:
        """Return the processes now."""
        return ProcessSnapshot(Unknown(Reason.NOT_THERE, "RDMA netlink"))
