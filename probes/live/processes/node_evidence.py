"""What the paths of all processes depend on, and sentences about what the live view cannot see."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from probes.base.frozen import frozen
from probes.base.latest import Latest
from probes.base.text import plural
from probes.base.unknown import Maybe, Reason, Unknown, known, map_known
from probes.facts.gpudirect import GdrPath, GpuDirectFacts, PeermemReading
from probes.facts.gpudirect_probe import AttachedDevices
from probes.facts.jobs.processes import Process
from probes.facts.kernel.modules import ModuleFacts, ModuleState
from probes.facts.kernel.release import KernelFacts
from probes.facts.node import Node
from probes.facts.rdma.data_direct import functions_of_nics
from probes.live.model.sample import LiveProcess
from probes.live.processes.gdr_path import DMABUF_THRESHOLD, TRACKS_DMABUF, NodeEvidence, uncharged_bytes
from probes.live.processes.ownership import RdmaUse, ResourceRound
from probes.snapshot.gdr_use import first_unmet
from probes.snapshot.path_verdict import usable_gpus
from probes.snapshot.rates import Reading

_MOST_NAMES = 4  # in a sentence
_OTHER_PEERMEM = ("efa_nv_peermem",)  # AWS EFA's own module has no refcnt of regions


@frozen
class GpuUsers:
    """The processes of each GPU by NVML."""

    gpus: Mapping[int, tuple[str, ...]]  # BDFs by pid
    is_complete: bool  # every GPU has answered


def gpu_users(node: Node, reading: Reading, cache: Latest[frozenset[str]] | None = None) -> GpuUsers:
    """Return the GPUs of each process; one off the bus is not in the reading; `cache`: the caller's."""
    if isinstance(reading.gpus, Unknown):
        return GpuUsers({}, False)
    found: dict[int, list[str]] = {}
    usable = (cache or Latest()).get(lambda: frozenset(gpu.bdf for gpu in usable_gpus(node)), objects=(node,))
    # All that are there are known, and have answered.
    is_complete = not isinstance(node.gpus, Unknown) and usable <= reading.gpus.keys()
    for bdf, live in sorted(reading.gpus.items()):
        if isinstance(live.processes, Unknown):
            is_complete = False
        else:
            for pid in live.processes:
                found.setdefault(pid, []).append(bdf)
    return GpuUsers({pid: tuple(bdfs) for pid, bdfs in found.items()}, is_complete)


def has_gpu(pid: int, process: Maybe[Process], users: GpuUsers) -> Maybe[bool]:
    """Return whether a process uses a GPU: by NVML, else by its open files."""
    if pid in users.gpus:
        return True
    files = process if isinstance(process, Unknown) else process.gpu_files
    if not isinstance(files, Unknown):
        return any(file[len("/dev/nvidia") :].isdecimal() for file in files)
    return False if users.is_complete else Unknown(Reason.NOT_RECORDED, "NVML", "its GPUs are unknown")


def numa_nodes(node: Node) -> dict[str, int]:
    """Return the NUMA nodes of GPUs, by BDF, and of RDMA devices, by name; without those that are unknown."""
    found = [(gpu.bdf, gpu.numa_node) for gpu in node.known_gpus]
    found += [(device.name, device.numa_node) for device in node.rdma_devices]
    return {name: number for name, number in found if not isinstance(number, Unknown)}


def is_far(nodes: Mapping[str, int], gpus: Iterable[str], use: RdmaUse) -> bool:
    """Return whether all NICs with connected queue pairs are on other NUMA nodes than the GPUs."""
    near = {nodes[gpu] for gpu in gpus if gpu in nodes}
    nics = {nodes[nic.device] for nic in use.nics if nic.is_active and nic.device in nodes}
    return bool(near and nics and not near & nics)


def has_devices(node: Node) -> bool:
    """Return whether this node may have RDMA devices."""
    if isinstance(node.rdma, Unknown):
        return node.rdma.reason is not Reason.NOT_THERE
    return bool(node.rdma.devices or node.rdma.devices_elsewhere)


def unread_devices(node: Node, reading: Reading, found: object) -> Unknown | None:
    """Return why no process means nothing: the node's GPUs or NICs are unknown, and who uses them too."""
    is_read = not isinstance(found, Unknown) and not isinstance(reading.gpus, Unknown)
    return node.pci if isinstance(node.pci, Unknown) and not is_read else None


def peermem_regions(peermem: PeermemReading) -> Maybe[int]:
    """Return the regions that are registered through nvidia-peermem: its refcnt, else memory_peers."""
    if not isinstance(peermem.refcnt, Unknown) or peermem.refcnt.reason is not Reason.NOT_THERE:
        return peermem.refcnt
    return sum(max(0, known(peer.live_mrs, 0)) for peer in known(peermem.peers, ()))


def dmabuf_candidates(found: ResourceRound) -> dict[int, frozenset[str]]:
    """Return the processes with regions that VmPin does not count, and the devices with their regions."""
    candidates = {}
    for pid, use in found.ownership.uses.items():
        pinned = found.pinned.get(pid)
        is_charged_less = isinstance(pinned, int) and uncharged_bytes(use, pinned) >= DMABUF_THRESHOLD
        if use.own.without_length or use.inherited.without_length or is_charged_less:
            candidates[pid] = frozenset(nic.device for nic in use.nics if nic.regions)
    return candidates


def lasting_evidence(node: Node) -> NodeEvidence:
    """Return the part of the evidence that stays the same until the node is probed again."""
    kernel = node.kernel.version if isinstance(node.kernel, KernelFacts) else node.kernel
    direct = node.gpudirect
    modules = node.modules.modules if isinstance(node.modules, ModuleFacts) else {}
    loaded: Collection[str] = [name for name, module in modules.items() if module.state is ModuleState.LIVE]
    peermem = direct.peermem if isinstance(direct, GpuDirectFacts) else None
    is_impossible = peermem and peermem.path is GdrPath.PEERMEM and peermem.usable is False
    no_peermem = first_unmet(peermem) if peermem and is_impossible else ""
    return NodeEvidence(
        other_peermem=tuple(name for name in _OTHER_PEERMEM if name in loaded),
        kernel=kernel,
        dmabuf_usable=direct.dmabuf.usable if isinstance(direct, GpuDirectFacts) else direct,
        no_dmabuf=_without_dmabuf(direct) if isinstance(direct, GpuDirectFacts) else {},
        no_peermem=no_peermem,
        drivers={device.name: device.driver for device in node.rdma_devices},
        has_small_pages=map_known(node.platform, lambda platform: platform.cpu_architecture) == "x86_64",
        numa_nodes=numa_nodes(node),
    )


def _without_dmabuf(direct: GpuDirectFacts) -> dict[str, str]:
    """Return why RDMA devices cannot register GPU memory through DMA-BUF: the node, or their drivers."""
    if direct.dmabuf.usable is False:
        return dict.fromkeys(direct.nic_dmabuf, first_unmet(direct.dmabuf))
    return {
        name: f"the driver of {name} does not support it"
        for name, answer in direct.nic_dmabuf.items()
        if answer is False
    }


def current_evidence(
    node: Node,
    lasting: NodeEvidence,
    reading: Reading,
    found: ResourceRound,
    with_gpu: Mapping[int, Maybe[bool]],
    jobs: Mapping[int, str],
    attached: Maybe[AttachedDevices],
    has_no_dmabuf: bool,
    candidates: Mapping[int, frozenset[str]],
) -> NodeEvidence:
    """Return the evidence now; `attached`: functions at DMA-BUFs; `candidates`: who may use them."""
    uses = found.ownership.uses
    with_regions = frozenset(
        pid
        for pid, use in uses.items()
        if (use.own.total or use.inherited.total) and with_gpu.get(pid, True) is not False
    )
    names = {jobs.get(pid, f"pid {pid}") for pid in with_regions}
    nics = functions_of_nics(node.rdma, node.data_direct)
    return replace(
        lasting,
        peermem_regions=peermem_regions(reading.peermem),
        peermem_candidates=with_regions,
        candidates_share_job=len(names) == 1,
        unowned_regions=found.ownership.unowned_regions,
        unowned_queue_pairs=found.ownership.unowned_queue_pairs,
        is_hidden=is_hidden(node, found),
        dmabuf_attached=map_known(
            attached, lambda found: frozenset(nics[bdf] for bdf in found.gpu_memory if nics.get(bdf))
        ),
        has_no_dmabuf=has_no_dmabuf,
        dmabuf_candidates=candidates,
    )


def is_hidden(node: Node, found: ResourceRound) -> bool:
    """Return whether objects may be in other network namespaces.

    An empty list is no proof that there are none, unless the devices are in all namespaces: even an idle NIC
    has the kernel's own queue pairs.
    """
    if found.hidden is not None:
        return bool(found.hidden)
    return has_devices(node) and (
        found.shares_namespaces is False or (found.is_empty and found.shares_namespaces is None)
    )


def limits_of(
    processes: Sequence[LiveProcess],
    node: Node,
    found: Maybe[ResourceRound],
    reading: Reading,
    left_out: int,
    elsewhere: int,
    unread: int,
    late: Sequence[str],
) -> tuple[tuple[str, ...], str]:
    """Return the sentences, and the first of those by which whole processes may be missing; "": none is.

    `left_out`: processes beyond the limit. `elsewhere`: processes that NVML lists and /proc does not.
    `unread`: processes without facts. `late`: sources that have not answered.
    """
    sentences: list[str] = []
    missing: list[str] = []
    if late:
        sentences.append(f"No response from {', '.join(late)}; the last data is shown")
    if isinstance(found, Unknown):
        if found.reason is not Reason.TIMED_OUT or not late:
            sentences.append(f"The processes' RDMA resources are unknown: {found}")
    else:
        if unowned := found.ownership.unowned_regions + found.ownership.unowned_queue_pairs:
            what = plural(unowned, "RDMA object has", "RDMA objects have")
            why = "a process that exited, is hidden, or is in another PID namespace"
            missing.append(f"{what} no visible owner: {why}")
        sentences += [*missing, *_resource_limits(found, node, bool(processes))]
    if any(_needs_root(process.process.environment) for process in processes):
        sentences.append("Run as root to see the environment of other users' jobs")
    if any(_needs_root(process.pinned_bytes) for process in processes if process.nics):
        sentences.append("Run as root to see the pinned memory of other users' jobs")
    if isinstance(reading.gpus, Unknown) and reading.gpus.reason is not Reason.NOT_THERE:
        missing.append(f"The processes' GPUs are unknown: {reading.gpus}")
    if elsewhere:
        missing.append(
            f"{plural(elsewhere, 'process with a GPU is', 'processes with a GPU are')} not visible here: "
            "run gdrtop on the host, or as root"
        )
    if unread:
        missing.append(f"{plural(unread, 'process', 'processes')} not read yet")
    refused = sum(isinstance(process.process.comm, Unknown) for process in processes)
    if refused and not unread:
        missing.append(f"{plural(refused, 'process', 'processes')} could not be read")
    if left_out > 0:
        missing.append(f"{plural(left_out, 'more process uses', 'more processes use')} GPUs or RDMA")
    return tuple(dict.fromkeys((*sentences, *missing))), next(iter(missing), "")


def _resource_limits(found: ResourceRound, node: Node, has_processes: bool) -> list[str]:
    sentences = []
    if is_hidden(node, found):
        names = f" ({', '.join(found.hidden[:_MOST_NAMES])})" if found.hidden else ""
        sentences.append(f"Run as root on the host to see RDMA devices in other network namespaces{names}")
    version = node.kernel.version if isinstance(node.kernel, KernelFacts) else node.kernel
    if isinstance(version, Unknown) or version >= TRACKS_DMABUF or not has_processes:
        return sentences
    if not dmabuf_candidates(found):
        sentences.append(f"Kernel {version[0]}.{version[1]} may not list DMA-BUF regions; 5.15 and later do")
    return sentences


def _needs_root(fact: Maybe[object]) -> bool:
    return isinstance(fact, Unknown) and fact.reason is Reason.NEEDS_ROOT
