"""Queue pairs, memory regions and contexts of a simulated node, as RDMA netlink lists them.

A rank of NCCL has a send and a receive connection for each channel, each with a queue pair and three
buffers: LL in host memory; LL128 and Simple in GPU memory, unless it copies through host memory
(NCCL src/transport/net.cc).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from functools import lru_cache

from probes.base.frozen import dataclass
from probes.host.rdma_resources import (
    CompletionQueue,
    MemoryRegion,
    ProtectionDomain,
    QueuePair,
    RdmaContext,
    RdmaResources,
)
from probes.simulation.node.jobs.programs import is_alive, path_of, peermem_regions
from probes.simulation.node.model.program import PEERMEM_REGION_BYTES, Program, Via
from probes.simulation.node.model.tree import Tree

_CHANNELS = 4
_LL, _LL128, _SIMPLE = 512 << 10, 640 * 120 * 8 * 8, 4 << 20
_FIFO = 16 << 10  # of each connection, in host memory
_FLUSH = 4  # bytes; a read into it makes GPU memory current
_PAGE = 4096
_RING_BYTES = 96 << 10  # of a queue pair and its completion queue, which mlx5 also charges to VmPin
_STORAGE_POOL = 8 << 30  # a storage client's cache
_STORAGE_QUEUE_PAIRS = 16
_OWN_NUMBERS = 256  # object numbers of one program
_FIRST_THREAD = 1_000_000
_THREADS = 8  # of one program
_KERNEL = "ib_core"


@dataclass
class _Objects:
    queue_pairs: list[QueuePair] = field(default_factory=list)
    regions: list[MemoryRegion] = field(default_factory=list)
    domains: list[ProtectionDomain] = field(default_factory=list)
    contexts: list[RdmaContext] = field(default_factory=list)
    completion_queues: list[CompletionQueue] = field(default_factory=list)


@dataclass(frozen=True)
class _Region:
    device: str
    length_bytes: int
    is_charged: bool  # to VmPin: host memory, and GPU memory through nvidia-peermem


# What a program's regions depend on: its NICs, whether it is NCCL, its path, regions of nvidia-peermem.
_Kind = tuple[tuple[str, ...], bool, Via, int]


def service_thread(program: Program) -> int:
    """Return the id of the thread that registers memory: NCCL's proxy service, else the first thread."""
    return _FIRST_THREAD + program.pid * _THREADS if program.is_nccl else program.pid


def rdma_resources(tree: Tree, seconds: float) -> RdmaResources:
    """Return everything that netlink lists at a moment."""
    found = _Objects()
    devices = [nic.name for nic in tree.nics if tree.is_there(f"/sys/class/infiniband/{nic.name}")]
    for device in devices:
        found.domains.append(ProtectionDomain(device, 1, kernel_name=_KERNEL))
        found.completion_queues.append(CompletionQueue(device, 1, kernel_name=_KERNEL))
        found.queue_pairs.append(QueuePair(device, 1, "GSI", "RTS", 1, None, 1, kernel_name=_KERNEL))
    anyone = any(is_alive(tree, program) for program in tree.programs)
    for program in tree.programs if anyone else ():
        _add(found, tree, program, devices, seconds)
    return RdmaResources(
        tuple(found.queue_pairs),
        tuple(found.regions),
        tuple(found.domains),
        tuple(found.contexts),
        tuple(found.completion_queues),
        shares_namespaces=True,
    )


def _add(found: _Objects, tree: Tree, program: Program, devices: list[str], seconds: float) -> None:
    via = path_of(tree, program)
    if via in (Via.TCP, Via.PLUGIN):
        return
    # A process of another PID namespace has no pid here.
    is_alive_here = is_alive(tree, program)
    pid = program.pid if is_alive_here else None
    thread = service_thread(program) if is_alive_here else None
    first = program.pid * _OWN_NUMBERS
    for device in program.opened:
        if device in devices:
            found.contexts.append(RdmaContext(device, first, pid))
            found.domains.append(ProtectionDomain(device, first, first, thread))
    used = tuple(device for device in program.nics if device in devices and via is not Via.NONE)
    count = connections(program)
    for device in used:
        for number in range(first, first + count):
            found.completion_queues.append(CompletionQueue(device, number, first, thread))
            remote = number ^ 0x5000
            found.queue_pairs.append(QueuePair(device, number, "RC", "RTS", 1, remote, first, thread))
    found.regions += _memory_regions(_kind_of(tree, program, seconds), used, first, thread)


def connections(program: Program) -> int:
    """Return the queue pairs on each NIC that a program uses."""
    return 2 * _CHANNELS if program.is_nccl else _STORAGE_QUEUE_PAIRS


def _kind_of(tree: Tree, program: Program, seconds: float) -> _Kind:
    via = path_of(tree, program)
    count = peermem_regions(tree, seconds).get(program.pid, 0) if via is Via.PEERMEM else 0
    return program.nics, program.is_nccl, via, count


@lru_cache(1024)
def _regions(kind: _Kind) -> tuple[_Region, ...]:
    return tuple(_each_region(*kind))


def _each_region(nics: tuple[str, ...], is_nccl: bool, via: Via, peermem: int) -> Iterator[_Region]:
    if via in (Via.TCP, Via.NONE):
        return
    for device in nics:
        if not is_nccl:
            yield _Region(device, _STORAGE_POOL, True)
            continue
        for _ in range(2 * _CHANNELS):
            yield _Region(device, _LL, True)
            yield _Region(device, _FIFO, True)
        for _ in range(_CHANNELS if via is not Via.HOST else 0):
            yield _Region(device, _FLUSH, True)
        if via is Via.PEERMEM:
            for _ in range(peermem):
                yield _Region(device, PEERMEM_REGION_BYTES, True)
            continue
        for _ in range(2 * _CHANNELS):
            yield _Region(device, _SIMPLE, via is Via.HOST)
            yield _Region(device, _LL128, via is Via.HOST)


@lru_cache(1024)
def _memory_regions(
    kind: _Kind, used: tuple[str, ...], first: int, thread: int | None
) -> tuple[MemoryRegion, ...]:
    return tuple(
        MemoryRegion(region.device, number, region.length_bytes, first, thread)
        for number, region in enumerate(_regions(kind), first)
        if region.device in used
    )


@lru_cache(1024)
def _charged_bytes(kind: _Kind) -> int:
    return sum(-(-region.length_bytes // _PAGE) * _PAGE for region in _regions(kind) if region.is_charged)


def pinned_bytes(tree: Tree, program: Program, seconds: float) -> int:
    """Return VmPin: regions in whole pages, and the rings of the queues."""
    charged = _charged_bytes(_kind_of(tree, program, seconds))
    has_queues = path_of(tree, program) not in (Via.TCP, Via.NONE)
    return charged + _RING_BYTES * connections(program) * len(program.nics) * has_queues
