"""What the container that gdrtop runs in gives its processes for RDMA, beside device files.

Sources: capabilities(7), CAP_IPC_LOCK; tmpfs(5), size=; k8snetworkplumbingwg/sriov-network-device-plugin,
README, PCIDEVICE_*; drivers/infiniband/core/sysfs.c, setup_port: only the namespace that owns a device has
the counters of its ports, and with shared devices that is the host's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from probes.base.frozen import frozen
from probes.base.text import BDF
from probes.base.unknown import Maybe, Reason, Unknown, map_known
from probes.facts.jobs.process_files import PLUGIN_FAMILY, parse_environment, parse_status
from probes.facts.rdma.cxi import has_verbs
from probes.facts.rdma.devices import RdmaFacts, is_software
from probes.facts.system.platform import PlatformFacts, in_container
from probes.host.protocol import Host

SHM = "/dev/shm"
RUNTIME_SHM_BYTES = 64 << 20  # that containerd and Docker give
_MOUNTS = "/proc/mounts"
_MOUNTS_BYTES = 1 << 20
_SIZE = re.compile(r"size=([0-9]{1,15})([kmg]?)")
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


@frozen
class OwnContainer:
    """The rights and limits of a process in this container."""

    ipc_lock: Maybe[bool]  # CAP_IPC_LOCK is effective, so no limit of locked memory applies
    shm_bytes: Maybe[float]  # of /dev/shm; math.inf: it has no limit of its own; NOT_THERE: no mount
    plugin_devices: Maybe[Mapping[str, tuple[str, ...]]]  # what the SR-IOV device plugin gave: BDFs
    namespace_mode: Maybe[str]  # of RDMA: "shared", "exclusive"
    has_counters: Maybe[bool]  # the ports have counters here; NOT_THERE: no device with a port


def probe(host: Host, platform: Maybe[PlatformFacts], rdma: Maybe[RdmaFacts]) -> Maybe[OwnContainer]:
    """Read /proc/self and /proc/mounts; NOT_THERE: gdrtop runs in no container."""
    if not in_container(platform):
        return Unknown(Reason.NOT_THERE, "", "not in a container")
    environment = map_known(host.read_bytes("/proc/self/environ"), parse_environment)
    has_counters = map_known(rdma, _has_counters)
    return OwnContainer(
        ipc_lock=map_known(host.read("/proc/self/status"), lambda text: parse_status(text).ipc_lock),
        shm_bytes=map_known(host.read(_MOUNTS, _MOUNTS_BYTES), parse_shm),
        plugin_devices=map_known(environment, plugin_devices),
        namespace_mode=_namespace_mode(host, rdma, has_counters),
        has_counters=has_counters,
    )


def _has_counters(rdma: RdmaFacts) -> Maybe[bool]:
    # Slingshot NICs have telemetry instead, in every namespace, and software devices may have none at all.
    cards = (device for device in rdma.devices if has_verbs(device) and not is_software(device))
    ports = [port for device in cards for port in device.ports]
    if any(port.is_hidden for port in ports):
        return False
    # Of EFA and others, the host has no counters/ either: hw_counters/ is hidden in the same way.
    facts = [fact for port in ports for fact in (port.counters, port.hw_counters)]
    if any(not isinstance(fact, Unknown) for fact in facts):
        return True
    unread = next((fact for fact in facts if isinstance(fact, Unknown)), None)
    if unread is None:
        return Unknown(Reason.NOT_THERE, "/sys/class/infiniband", "no RDMA port")
    return False if unread.reason is Reason.NOT_THERE else unread


def _namespace_mode(host: Host, rdma: Maybe[RdmaFacts], has_counters: Maybe[bool]) -> Maybe[str]:
    """Return how network namespaces have RDMA devices; without counters, the device is another one's."""
    if has_counters is False:
        return "shared"
    if not isinstance(rdma, Unknown) and rdma.devices_elsewhere:
        return "exclusive"
    source = "RDMA netlink"
    shares = map_known(host.rdma_resources(), lambda found: found.shares_namespaces)
    if shares is None:
        return Unknown(Reason.NOT_THERE, source, "the kernel does not report the mode")
    return map_known(shares, lambda is_shared: "shared" if is_shared else "exclusive")


def parse_shm(mounts: str) -> Maybe[float]:
    """Return the size of /dev/shm by its mount options, in bytes."""
    for line in reversed(mounts.split("\n")):  # the last mount hides the earlier ones
        words = line.split(" ")
        if len(words) < 4 or words[1] != SHM:
            continue
        size = next(filter(None, map(_SIZE.fullmatch, words[3].split(","))), None)
        return math.inf if size is None else float(size[1]) * _UNITS[size[2]]
    return Unknown(Reason.NOT_THERE, _MOUNTS, f"no {SHM}")


def plugin_devices(environment: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Return the PCI functions that a device plugin gave, by variable: whatever its resource is called."""
    found = {}
    for name, value in environment.items():
        bdfs = tuple(filter(BDF.fullmatch, value.split(",")))
        if name.startswith(PLUGIN_FAMILY) and bdfs:
            found[name] = bdfs
    return found
