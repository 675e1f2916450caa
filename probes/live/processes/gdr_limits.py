"""Sentences about what the live view cannot see, one for each kind of limit."""

from __future__ import annotations

from collections.abc import Sequence

from probes.base.text import plural
from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.kernel.release import KernelFacts
from probes.facts.node import Node
from probes.live.model.sample import LiveProcess
from probes.live.processes.gdr_path import TRACKS_DMABUF
from probes.live.processes.node_evidence import dmabuf_candidates, is_hidden
from probes.live.processes.ownership import ResourceRound
from probes.snapshot.rates import Reading


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
        sentences.append(f"No answer from {', '.join(late)}; the last answer is shown")
    if isinstance(found, Unknown):
        if found.reason is not Reason.TIMED_OUT or not late:
            sentences.append(f"RDMA resources of processes are unknown: {found}")
    else:
        missing += _without_owner(found)
        sentences += [*missing, *_resource_limits(found, node, bool(processes))]
    if any(_needs_root(process.process.environment) for process in processes):
        sentences.append("Run as root to see the environment of other users' jobs")
    if any(_needs_root(process.pinned_bytes) for process in processes if process.nics):
        sentences.append("Run as root to see the pinned memory of other users' jobs")
    if isinstance(reading.gpus, Unknown) and reading.gpus.reason is not Reason.NOT_THERE:
        missing.append(f"The GPUs of processes are unknown: {reading.gpus}")
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


def _without_owner(found: ResourceRound) -> list[str]:
    unowned = found.ownership.unowned_regions + found.ownership.unowned_queue_pairs
    if not unowned:
        return []
    what = plural(unowned, "RDMA object has", "RDMA objects have")
    return [f"{what} no visible owner: it ended, is hidden, or is in another PID namespace"]


def _resource_limits(found: ResourceRound, node: Node, has_processes: bool) -> list[str]:
    sentences = []
    if is_hidden(node, found):
        sentences.append("RDMA devices in other network namespaces are not visible from here")
    version = node.kernel.version if isinstance(node.kernel, KernelFacts) else node.kernel
    if isinstance(version, Unknown) or version >= TRACKS_DMABUF or not has_processes:
        return sentences
    if not dmabuf_candidates(found):
        sentences.append(f"Kernel {version[0]}.{version[1]} may not list DMA-BUF regions; 5.15 and later do")
    return sentences


def _needs_root(fact: Maybe[object]) -> bool:
    return isinstance(fact, Unknown) and fact.reason is Reason.NEEDS_ROOT
