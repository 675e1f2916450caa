"""What the container that gdrtop runs in has for GPUDirect RDMA, and what to ask an admin for.

All of it is readable without root. Sources: probes/facts/jobs/own_container.py; Kubernetes documentation,
Topology Manager and Dynamic Resource Allocation; container.toml.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from probes.base.frozen import frozen
from probes.base.grouping import grouped
from probes.base.text import join_limited
from probes.base.unknown import Maybe, Unknown, known, map_known
from probes.facts.jobs.own_container import SHM, OwnContainer
from probes.facts.node import host_name
from probes.facts.pci.nic_families import EFA
from probes.facts.system.platform import Environment
from probes.queries.usable_here import ELSEWHERE, has_little_shm, lock_limit, nearer_nic, usable_here
from probes.setup.env.container import Syntax, device_name
from probes.setup.env.container_needs import fixes_of
from probes.snapshot.examination import Examination


@frozen
class ContainerRow:
    """One thing that a container has or misses."""

    name: str  # "RDMA devices"
    shown: str  # "mlx5_0; mlx5_1: refused …"
    ask: str = ""  # what to ask an admin for; "": nothing


def container_rows(examination: Examination) -> tuple[ContainerRow, ...]:
    """Return what the container has; () where gdrtop runs in none."""
    container = examination.own_container
    return () if isinstance(container, Unknown) else tuple(_rows(examination, container))


def request_of(examination: Examination, rows: tuple[ContainerRow, ...]) -> tuple[str, ...]:
    """Return the request to the admin as lines that can be pasted; () where nothing is missing."""
    missing = [row for row in rows if row.ask]
    name, kind = known(host_name(examination.node), ""), _syntax(examination)
    lines = [f"Please change the {_KINDS[kind]} {name} so that it can use GPUDirect RDMA:"] * bool(missing)
    for number, row in enumerate(missing, 1):
        lines += [f"{number}. {row.ask}.", f"   {row.name} now: {row.shown}."]
    return tuple(lines)


_KINDS = {Syntax.KUBERNETES: "pod", Syntax.DOCKER: "container"}


def _syntax(examination: Examination) -> Syntax:
    where = map_known(examination.node.platform, lambda platform: platform.environment)
    return Syntax.KUBERNETES if where is Environment.KUBERNETES_POD else Syntax.DOCKER


def _rows(examination: Examination, container: OwnContainer) -> Iterator[ContainerRow]:
    fixes, topology = fixes_of(_syntax(examination)), examination.topology
    usable = usable_here(examination).devices
    nics = {
        nic.id: usable[nic.id]
        for nic in topology.nics
        if nic.id in topology.devices or usable[nic.id] == ELSEWHERE
    }
    is_efa = any(device.driver in EFA.pci_drivers for device in topology.devices.values())
    is_closed = bool(nics) and all(isinstance(why, str) and why for why in nics.values())
    device = fixes["device"].replace("%s", device_name(is_efa))
    yield ContainerRow("RDMA devices", _by_reason(nics), device if is_closed else "")
    yield ContainerRow("Device plugin", _text(map_known(container.plugin_devices, _plugin)))
    hidden = "; only the host's network namespace has the port counters, so some rates are unknown here"
    mode = _text(container.namespace_mode)
    yield ContainerRow("RDMA mode", mode + hidden * (container.has_counters is False))
    limit = lock_limit(examination)
    is_limited = not isinstance(limit, Unknown) and not math.isinf(limit)
    locked = _locked(limit, container.ipc_lock is True)
    yield ContainerRow("Locked memory", locked, fixes["lock"] if is_limited else "")
    labels = {gpu.bdf: f"GPU{gpu.index}" for gpu in examination.node.known_gpus}
    gpus = {labels.get(gpu.id, gpu.id): usable[gpu.id] for gpu in topology.gpus}
    yield ContainerRow("GPUs", _by_reason(gpus))
    here = [nic for nic, why in nics.items() if why == ""]
    own = [gpu.id for gpu in topology.gpus if usable[gpu.id] == ""]
    nearer = {gpu: nearer_nic(topology, gpu, here, nics) for gpu in own}
    far = [f"{nic} is nearer to {labels.get(gpu, gpu)}" for gpu, nic in nearer.items() if nic]
    if here and own and not any(isinstance(why, Unknown) for why in nics.values()):
        shown = "; ".join(far) or "each GPU has its nearest NIC"
        yield ContainerRow("Pairs", shown, fixes["near"] if far else "")
    files = map_known(examination.device_nodes, lambda nodes: nodes.gpu)
    gdrdrv = map_known(files, lambda found: any(file.path == "/dev/gdrdrv" for file in found))
    yield ContainerRow("GDRCopy", _text(map_known(gdrdrv, lambda has: "/dev/gdrdrv" if has else "no device")))
    size = container.shm_bytes
    is_small = not isinstance(size, Unknown) and has_little_shm(examination, size)
    yield ContainerRow(SHM, _text(map_known(size, _mib)), fixes["shm"] if is_small else "")


def _by_reason(devices: Mapping[str, Maybe[str]]) -> str:
    """Return the devices that can be used, and the others by what keeps them from it."""
    by = grouped((why if isinstance(why, str) else f"unknown ({why})", name) for name, why in devices.items())
    parts = (f"{join_limited(names)}{f': {why}' if why else ''}" for why, names in sorted(by.items()))
    return "; ".join(parts) or "none"


def _text(fact: Maybe[str]) -> str:
    return f"unknown ({fact})" if isinstance(fact, Unknown) else fact


def _mib(size_bytes: float) -> str:
    return "no limit" if math.isinf(size_bytes) else f"{size_bytes / (1 << 20):.0f} MiB"


def _plugin(devices: Mapping[str, tuple[str, ...]]) -> str:
    texts = (f"{name}={join_limited(bdfs)}" for name, bdfs in devices.items())
    return "; ".join(texts) or "no PCIDEVICE_* variable, which only the SR-IOV device plugin sets"


def _locked(limit: Maybe[float], is_lifted: bool) -> str:
    if isinstance(limit, Unknown) or math.isinf(limit):
        return _text(map_known(limit, _mib)) + " (CAP_IPC_LOCK)" * is_lifted
    return f"at most {_mib(limit)}, without CAP_IPC_LOCK"
