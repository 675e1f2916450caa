"""A node over time: probed once, read every second, and probed again when it has changed."""

from __future__ import annotations

import time
from collections.abc import Hashable
from dataclasses import fields

from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.gpudirect import GpuDirectFacts
from probes.facts.kernel.modules import COMPANIONS, CORE_LADDER
from probes.facts.node import Node, probe_node
from probes.host.protocol import Host
from probes.snapshot.rates import Reading, read

# A probe that was too slow once, on a busy node, may be fast enough the next time.
RETRY_SECONDS = 10.0


class Watch:
    """The latest facts about a node; it asks its host only when it is called."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self._node: Node | None = None
        self._before: Hashable = None
        self._probed_at = 0.0

    def probe(self, force: bool = False) -> Node | None:
        """Return the node if it is new, has changed or misses an answer, or with `force`; else None."""
        now = fingerprint(self.host)
        if self._node is not None and not force and now == self._before and not self._retries(self._node):
            return None
        self._before = now
        self._probed_at = time.monotonic()
        self._node = probe_node(self.host)
        return self._node

    def read(self) -> Reading:
        """Read the devices that the node had when it was probed."""
        assert self._node is not None, "probe first"
        return read(self.host, self._node, with_interfaces=True)

    def _retries(self, node: Node) -> bool:
        return time.monotonic() - self._probed_at >= RETRY_SECONDS and has_timeouts(node)


def fingerprint(host: Host) -> Hashable:
    """Return a value that changes when a device or a module is added or removed."""
    directories = ("/sys/bus/pci/devices", "/sys/class/infiniband", "/sys/module")
    names: list[Maybe[tuple[str, ...]]] = [host.names(directory) for directory in directories]
    loaded = known(names[-1], ())
    modules = [module for module in (*CORE_LADDER, *COMPANIONS) if module in loaded]
    states = [host.read(f"/sys/module/{module}/initstate") for module in modules]
    return (*names, *states)


def has_timeouts(node: Node) -> bool:
    """Return whether a probe, or a NIC's DMA-BUF probe, did not answer in time."""
    answers: list[object] = [getattr(node, field.name) for field in fields(node)]
    if isinstance(node.gpudirect, GpuDirectFacts):
        answers.extend(node.gpudirect.nic_dmabuf.values())
    return any(isinstance(answer, Unknown) and answer.reason is Reason.TIMED_OUT for answer in answers)
