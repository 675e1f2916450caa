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
from probes.facts.jobs.own_container import RUNTIME_SHM_BYTES, SHM, OwnContainer
from probes.facts.node import host_name
from probes.facts.pci.nic_families import EFA
from probes.facts.system.platform import Environment
from probes.queries.usable_here import ELSEWHERE, usable_here
from probes.setup.env.container import Syntax, device_name
from probes.setup.env.container_needs import fixes_of
from probes.snapshot.examination import Examination
from probes.topology.nccl_paths import ORDER

_GDRCOPY = "/dev/gdrdrv"


@frozen
class ContainerRow:
    """One thing that a container has or misses."""

    name: str  # "RDMA devices"
    shown: str  # "mlx5_0; mlx5_1 refused …"
    missing: str = ""  # why something has to change; "": nothing
    ask: str = ""  # what to ask an admin for; "": nothing


def container_rows(examination: Examination) -> tuple[ContainerRow, ...]:
    """Return what the container has; () where gdrtop runs in none."""
    container = examination.own_container
    return () if isinstance(container, Unknown) else tuple(_rows(examination, container))


def request_of(examination: Examination) -> tuple[str, ...]:
    """Return the request to the admin as lines that can be pasted; () where nothing is missing."""
    missing = [row for row in container_rows(examination) if row.ask]
    if not missing:
        return ()
    name = known(host_name(examination.node), "")
    kind = "pod" if _syntax(examination) is Syntax.KUBERNETES else "container"
    lines = [f"Please change the {kind} {name} so that it can use GPUDirect RDMA:"]
    for number, row in enumerate(missing, 1):
        lines += [f"{number}. {row.ask}.", f"   Now: {row.missing}."]
    return tuple(lines)


def _syntax(examination: Examination) -> Syntax:
    where = map_known(examination.node.platform, lambda platform: platform.environment)
    return Syntax.KUBERNETES if where is Environment.KUBERNETES_POD else Syntax.DOCKER


def _rows(examination: Examination, container: OwnContainer) -> Iterator[ContainerRow]:
    fixes = fixes_of(_syntax(examination))
    topology, usable = examination.topology, usable_here(examination)
    gpus = {gpu.id: usable.devices.get(gpu.id, "") for gpu in topology.gpus}
    whys = {nic.id: usable.devices.get(nic.id, "") for nic in topology.nics}
    nics = {nic: why for nic, why in whys.items() if nic in topology.devices or why == ELSEWHERE}
    is_efa = any(device.driver in EFA.pci_drivers for device in topology.devices.values())
    device = fixes["device"].replace("%s", device_name(is_efa))
    can_open = any(not isinstance(why, Unknown) and not why for why in nics.values())
    is_closed = bool(nics) and not can_open and not any(isinstance(why, Unknown) for why in nics.values())
    shown = _by_reason(nics) or "none"
    yield ContainerRow("RDMA devices", shown, shown if is_closed else "", device if is_closed else "")
    yield ContainerRow("Device plugin", _plugin(container))
    yield ContainerRow("RDMA mode", _mode(container))
    yield _locked(examination, container, "" if is_efa else fixes["lock"])
    labels = {gpu.bdf: f"GPU{gpu.index}" for gpu in examination.node.known_gpus}
    yield ContainerRow("GPUs", _by_reason({labels.get(gpu, gpu): why for gpu, why in gpus.items()}) or "none")
    yield from _near_pairs(examination, gpus, nics, fixes["near"])
    files = map_known(examination.device_nodes, lambda nodes: nodes.gpu)
    has_gdrcopy = map_known(files, lambda found: any(file.path == _GDRCOPY for file in found))
    words = {True: f"{_GDRCOPY} is here", False: f"no {_GDRCOPY}"}
    yield ContainerRow("GDRCopy", _text(map_known(has_gdrcopy, words.__getitem__)))
    size = container.shm_bytes
    is_small = (
        not isinstance(size, Unknown)
        and size <= RUNTIME_SHM_BYTES
        and len(gpus.keys() - usable.not_usable) > 1
    )
    text = _text(map_known(size, lambda found: "no limit" if math.isinf(found) else _mib(found)))
    yield ContainerRow(SHM, text, f"{SHM} has {text}" if is_small else "", fixes["shm"] if is_small else "")


def _by_reason(devices: Mapping[str, Maybe[str]]) -> str:
    """Return the devices that can be used, and the others by what keeps them from it."""
    by = grouped((why if isinstance(why, str) else f"unknown ({why})", name) for name, why in devices.items())
    parts = [f"{join_limited(names)}{f': {why}' if why else ''}" for why, names in sorted(by.items())]
    return "; ".join(parts)


def _text(fact: Maybe[str]) -> str:
    return f"unknown ({fact})" if isinstance(fact, Unknown) else fact


def _mib(size_bytes: float) -> str:
    return f"{size_bytes / (1 << 20):.0f} MiB"


def _plugin(container: OwnContainer) -> str:
    def shown(devices: Mapping[str, tuple[str, ...]]) -> str:
        texts = [f"{name}={join_limited(bdfs)}" for name, bdfs in devices.items()]
        return "; ".join(texts) or "no PCIDEVICE_* variable, which only the SR-IOV device plugin sets"

    return _text(map_known(container.plugin_devices, shown))


def _mode(container: OwnContainer) -> str:
    mode = _text(container.namespace_mode)
    if container.has_counters is False:
        return f"{mode}, and only the host's network namespace has the port counters: rates are unknown here"
    return mode


def _locked(examination: Examination, container: OwnContainer, fix: str) -> ContainerRow:
    name = "Locked memory"
    if container.ipc_lock is True:
        return ContainerRow(name, "no limit (CAP_IPC_LOCK)")
    limit = map_known(examination.memlock, lambda memlock: memlock.own)
    if isinstance(limit, Unknown) or isinstance(container.ipc_lock, Unknown):
        return ContainerRow(name, f"unknown ({limit if isinstance(limit, Unknown) else container.ipc_lock})")
    if math.isinf(limit.soft_bytes):
        return ContainerRow(name, "no limit")
    shown = f"at most {_mib(limit.soft_bytes)}, without CAP_IPC_LOCK"
    return ContainerRow(name, shown, f"it can lock {shown}", fix)


def _near_pairs(
    examination: Examination, gpus: Mapping[str, Maybe[str]], nics: Mapping[str, Maybe[str]], fix: str
) -> Iterator[ContainerRow]:
    """Compare the nearest NIC that the container can use with the nearest of the node, for each GPU."""
    topology = examination.topology
    labels = {gpu.bdf: f"GPU{gpu.index}" for gpu in examination.node.known_gpus}
    near, far = [], []
    for gpu in (gpu for gpu, why in gpus.items() if not isinstance(why, Unknown) and not why):
        words = {nic: topology.paths[gpu, nic].nccl_pcie for nic in topology.best_nics.get(gpu, ())}
        ranks = {nic: ORDER[word] for nic, word in words.items() if not isinstance(word, Unknown)}
        here = [nic for nic in ranks if nics.get(nic) == ""]
        if not here:
            continue
        best, nearest = min(here, key=ranks.__getitem__), min(ranks, key=ranks.__getitem__)
        if ranks[best] == ranks[nearest]:
            near.append(f"{labels.get(gpu, gpu)} {best}")
        else:
            far.append(f"{labels.get(gpu, gpu)} has {best}, but {nearest} is nearer")
    shown = [f"near: {', '.join(near)}"] * bool(near) + far
    if shown:
        yield ContainerRow("Pairs", "; ".join(shown), "; ".join(far), fix if far else "")
