"""Traces of Kubernetes on a node: its pods, and the driver containers of the GPU and the Network Operator.

The GPU driver's container shows its file system as /run/nvidia/driver; that of MOFED says by
/run/mellanox/drivers/.driver-ready that its modules are loaded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown
from probes.host.protocol import Host

DRIVER = "/run/nvidia/driver"
DRIVER_MODULES = f"{DRIVER}/lib/modules"
MOFED = "/run/mellanox/drivers"
MOFED_READY = f"{MOFED}/.driver-ready"
# Modules of storage over RDMA that keep the IB core in use, so that the MOFED container cannot replace it.
STORAGE = ("rpcrdma", "ib_isert", "ib_iser", "nvme_rdma", "nvmet_rdma", "ib_srp")
_MODULES_LIMIT_BYTES = 1 << 20
# The control group of all pods: with the systemd driver and cgroupfs, v2 and v1.
_PODS = tuple(
    f"/sys/fs/cgroup{controller}/{name}"
    for controller in ("", "/systemd", "/memory")
    for name in ("kubepods.slice", "kubepods")
)


@dataclass(frozen=True)
class DriverContainerFacts:
    """Traces of pods and driver containers."""

    driver: Maybe[bool]  # a driver container runs, or has run since the boot
    releases: Maybe[tuple[str, ...]]  # kernels that it has modules for
    mofed: Maybe[bool]  # a MOFED container was started
    mofed_ready: Maybe[bool]
    storage_modules: Maybe[tuple[str, ...]]  # of STORAGE, loaded
    kubelet: bool = False  # a kubelet runs here: pods have a control group


def probe(host: Host) -> DriverContainerFacts:
    """List the directories and read /proc/modules."""
    loaded = host.read("/proc/modules", _MODULES_LIMIT_BYTES)
    releases = host.names(DRIVER_MODULES)
    ready = host.size(MOFED_READY)
    return DriverContainerFacts(
        driver=_filled(host.names(DRIVER)),
        releases=releases
        if isinstance(releases, Unknown)
        else tuple(printable(name, 80) for name in releases[:16]),
        mofed=_there(host.names(MOFED)),
        mofed_ready=_there(ready),
        storage_modules=loaded
        if isinstance(loaded, Unknown)
        else tuple(name for name in STORAGE if re.search(rf"^{name} ", loaded, re.M)),
        # Not listed: the names below are the pods' ids.
        kubelet=any(not isinstance(host.access(path), Unknown) for path in _PODS),
    )


def _there(answer: Maybe[object]) -> Maybe[bool]:
    if isinstance(answer, Unknown):
        return False if answer.reason is Reason.NOT_THERE else answer
    return True


def _filled(names: Maybe[tuple[str, ...]]) -> Maybe[bool]:
    # The operator makes the directory also where the host has its own driver; it stays empty then.
    return bool(names) if not isinstance(names, Unknown) else _there(names)
