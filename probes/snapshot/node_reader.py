"""A node over time: probed once, read every second, and probed again when it has changed."""

from __future__ import annotations

import time
from collections.abc import Hashable
from dataclasses import fields

from probes.base.latest import Latest
from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.gpudirect import GpuDirectFacts
from probes.facts.kernel.modules import COMPANIONS, CORE_LADDER
from probes.facts.node import Node, probe_node
from probes.host.protocol import Host
from probes.host.values import RDMA_CLASS
from probes.snapshot.rates import Reading, Sources, read

# A probe that was too slow once, on a busy node, may be fast enough the next time.
RETRY_SECONDS = 10.0
# Between two looks at which devices and modules there are, unless a reading shows a change.
FINGERPRINT_SECONDS = 5.0
_TOLERANCE = 0.1  # seconds by which a reading may be early


class NodeReader:
    """The latest facts about a node; it asks its host only when it is called."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self._node: Node | None = None
        self._before: Hashable = None
        self._probed_at = 0.0
        self._looked_at = 0.0
        self._present: Hashable = None  # what answered the first reading since that look
        self._read_at: float | None = None  # when that was; None: no reading yet
        self._latest: Reading | None = None
        self._sources: Latest[Sources] = Latest()

    def probe(self, force: bool = False) -> Node | None:
        """Return the node if it is new, has changed or misses an answer, or with `force`; else None."""
        is_late = time.monotonic() - self._probed_at >= RETRY_SECONDS
        retries = self._node is not None and is_late and has_timeouts(self._node)
        if self._node is not None and not (force or retries or self._is_due()):
            return None
        now = fingerprint(self.host)
        self._looked_at, self._read_at = time.monotonic(), None
        if self._node is not None and not force and not retries and now == self._before:
            return None
        self._before = now
        self._probed_at = time.monotonic()
        self._node = probe_node(self.host)
        return self._node

    def read(self) -> Reading:
        """Read the devices that the node had when it was probed."""
        assert self._node is not None, "probe first"
        self._latest = read(self.host, self._node, with_interfaces=True, cache=self._sources)
        if self._read_at is None:
            self._present, self._read_at = _present(self._latest), self._latest.at
        return self._latest

    def _is_due(self) -> bool:
        """Return whether devices or modules may have changed: by both clocks, for a host's may be its own."""
        since, latest = self._read_at, self._latest
        if since is None or latest is None or self._present != _present(latest):
            return True
        passed = max(time.monotonic() - self._looked_at, latest.at - since)
        return passed >= FINGERPRINT_SECONDS - _TOLERANCE or latest.at < since


def _present(reading: Reading) -> Hashable:
    """Return what of the devices and modules answered."""
    answers = (reading.port_states, reading.module_refcnts)
    missing = [name for by_name in answers for name, answer in by_name.items() if isinstance(answer, Unknown)]
    gpus = None if isinstance(reading.gpus, Unknown) else tuple(reading.gpus)
    return tuple(missing), gpus, isinstance(reading.peermem.refcnt, Unknown)


def fingerprint(host: Host) -> Hashable:
    """Return a value that changes when a device or a module comes or goes, or an RDMA device is renamed."""
    directories = ("/sys/bus/pci/devices", RDMA_CLASS, "/sys/module")
    names: list[Maybe[tuple[str, ...]]] = [host.names(directory) for directory in directories]
    devices = [host.link(f"{RDMA_CLASS}/{name}") for name in known(names[1], ())]
    loaded = known(names[-1], ())
    modules = [module for module in (*CORE_LADDER, *COMPANIONS) if module in loaded]
    states = [host.read(f"/sys/module/{module}/initstate") for module in modules]
    return (*names, *devices, *states)


def has_timeouts(node: Node) -> bool:
    """Return whether a probe, or a NIC's DMA-BUF probe, did not answer in time."""
    answers: list[object] = [getattr(node, field.name) for field in fields(node)]
    if isinstance(node.gpudirect, GpuDirectFacts):
        answers.extend(node.gpudirect.nic_dmabuf.values())
    return any(isinstance(answer, Unknown) and answer.reason is Reason.TIMED_OUT for answer in answers)
