"""Traces of Kubernetes on a node: its pods, and the driver containers of the GPU and the Network Operator.

The GPU driver's container mounts its file system at /run/nvidia/driver. The MOFED container creates
/run/mellanox/drivers/.driver-ready when its modules are loaded.
"""

from __future__ import annotations

from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Maybe, Unknown, is_there, map_known
from probes.host.protocol import Host

DRIVER = "/run/nvidia/driver"
DRIVER_MODULES = f"{DRIVER}/lib/modules"
MOFED = "/run/mellanox/drivers"
MOFED_READY = f"{MOFED}/.driver-ready"
# Modules for storage over RDMA. They keep the IB core in use, so the MOFED container cannot replace it.
STORAGE = ("rpcrdma", "ib_isert", "ib_iser", "nvme_rdma", "nvmet_rdma", "ib_srp")
_MODULES_LIMIT_BYTES = 1 << 20
# The control group of all pods: with the systemd driver and cgroupfs, v2 and v1.
_PODS = tuple(
    f"/sys/fs/cgroup{controller}/{name}"
    for controller in ("", "/systemd", "/memory")
    for name in ("kubepods.slice", "kubepods")
)


@frozen
class DriverContainerFacts:
    """Traces of pods and driver containers."""

    driver: Maybe[bool]  # a driver container is running, or has run since boot
    releases: Maybe[tuple[str, ...]]  # kernels for which it has modules
    mofed: Maybe[bool]  # a MOFED container was started
    mofed_ready: Maybe[bool]
    storage_modules: Maybe[tuple[str, ...]]  # of STORAGE, loaded
    kubelet: bool = False  # a kubelet is running: pods have a control group


def probe(host: Host) -> DriverContainerFacts:
    """List the directories and read /proc/modules."""
    loaded = host.read("/proc/modules", _MODULES_LIMIT_BYTES)
    releases = host.names(DRIVER_MODULES)
    storage = map_known(loaded, lambda text: tuple(name for name in STORAGE if f"\n{name} " in f"\n{text}"))
    return DriverContainerFacts(
        driver=_filled(host.names(DRIVER)),
        releases=map_known(releases, lambda names: tuple(printable(name, 80) for name in names[:16])),
        mofed=is_there(host.names(MOFED)),
        mofed_ready=is_there(host.size(MOFED_READY)),
        storage_modules=storage,
        # Not listed, because the names in these directories are pod IDs.
        kubelet=any(not isinstance(host.access(path), Unknown) for path in _PODS),
    )


def _filled(names: Maybe[tuple[str, ...]]) -> Maybe[bool]:
    # The operator also creates the directory if the host has its own driver, but then it stays empty.
    return bool(names) if not isinstance(names, Unknown) else is_there(names)
