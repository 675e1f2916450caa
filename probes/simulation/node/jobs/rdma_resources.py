"""Queue pairs, memory regions and contexts of a simulated node, as RDMA netlink lists them.

A rank of NCCL has a send and a receive connection for each channel, each with a queue pair and three
buffers: LL in host memory; LL128 and Simple in GPU memory, unless it copies through host memory
(NCCL src/transport/net.cc).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from probes.base.unknown import Unknown
from probes.facts.rdma.port_health import PORT_DATA
from probes.host.rdma_resources import (
    CompletionQueue,
    MemoryRegion,
    PacketNumbers,
    ProtectionDomain,
    QueuePair,
    RdmaContext,
    RdmaResources,
)
from probes.simulation.node.devices.ports import is_listed, port_of
from probes.simulation.node.jobs.programs import is_alive, path_of, peermem_regions
from probes.simulation.node.model.tree import PEERMEM_REGION_BYTES, Pool, Program, Tree, Via

_CHANNELS = 4
_LL, _LL128, _SIMPLE = 512 << 10, 640 * 120 * 8 * 8, 4 << 20
_FIFO = 16 << 10  # of each connection, in host memory
_FLUSH = 4  # bytes; a read into it makes GPU memory current
_PAGE = 4096
_RING_BYTES = 96 << 10  # of a queue pair and its completion queue, which mlx5 also charges to VmPin
_OWN_NUMBERS = 256  # object numbers of one program
_FIRST_THREAD = 1_000_000
_THREADS = 8  # of one program
_KERNEL = "ib_core"
_PACKET = 4096 // 4 * 2 * _CHANNELS  # units of a packet on each queue pair of a rank
_PSNS = 1 << 24
_MOST_REGIONS = 64  # of most programs
_REMEMBERED = 128  # more than the programs of a node; what is registered changes while they run

# What a program's regions depend on: its NICs, its pool (None: NCCL's), its path, regions of nvidia-peermem.
_Kind = tuple[tuple[str, ...], Pool | None, Via, int]


class _Owner(NamedTuple):
    """What the objects of a program depend on."""

    kind: _Kind
    opened: tuple[str, ...]  # of these devices, those that are there
    used: tuple[str, ...]  # with queue pairs
    pairs: tuple[tuple[str, int], ...]  # on each of them: kind and number
    first: int  # object number
    pid: int | None
    thread: int | None


class _Region(NamedTuple):
    device: str
    length_bytes: int
    is_charged: bool  # to VmPin: host memory, and GPU memory through nvidia-peermem


def service_thread(program: Program) -> int:
    """Return the id of the thread that registers memory: NCCL's proxy service, else the first thread."""
    return _FIRST_THREAD + program.pid * _THREADS if program.is_nccl else program.pid


def rdma_resources(tree: Tree, seconds: float) -> RdmaResources:
    """Return everything that netlink lists at a moment."""
    present = (nic.name for nic in tree.nics if is_listed(tree, nic))
    devices = dict.fromkeys(present)
    alive = [is_alive(tree, program) for program in tree.programs]
    through_peermem = peermem_regions(tree, seconds)
    efa = {nic.name for nic in tree.nics if nic.kind.driver == "efa"}  # its queue pairs are SRD
    owners = tuple(
        _Owner(
            kind=_kind_of(program, via, through_peermem),
            opened=tuple(filter(devices.__contains__, program.opened)),
            used=() if via is Via.NONE else tuple(filter(devices.__contains__, program.nics)),
            pairs=_pairs(program, "DRIVER" if program.nics and efa.issuperset(program.nics) else "RC"),
            first=program.pid * _OWN_NUMBERS,
            pid=program.pid if is_here else None,  # one of another PID namespace has no pid here
            thread=service_thread(program) if is_here else None,
        )
        for program, is_here in zip(tree.programs, alive, strict=True)
        if any(alive) and (via := path_of(tree, program)) not in (Via.TCP, Via.PLUGIN)
    )
    clients = tuple((device, name) for device, name in tree.kernel_clients.items() if device in devices)
    hidden = tuple(
        nic.name
        for number, nic in enumerate(tree.nics)
        if nic.name not in devices and tree.is_there(f"/sys/class/infiniband_verbs/uverbs{number}/device")
    )
    found = _listed(tuple(devices), owners, clients)
    return replace(found, shares_namespaces=False, hidden=hidden) if hidden else found


@lru_cache(64)
def _listed(
    devices: tuple[str, ...], owners: tuple[_Owner, ...], clients: tuple[tuple[str, str], ...]
) -> RdmaResources:
    """Return the kernel's own objects, those of its clients, and those of the programs."""
    each = [_of_kernel(devices, clients), *(_objects_of(*owner[1:]) for owner in owners)]
    regions = (_memory_regions(owner.kind, owner.used, owner.first, owner.thread) for owner in owners)
    return RdmaResources(
        tuple(chain.from_iterable(objects.queue_pairs for objects in each)),
        tuple(chain.from_iterable(regions)),
        tuple(chain.from_iterable(objects.domains for objects in each)),
        tuple(chain.from_iterable(objects.contexts for objects in each)),
        tuple(chain.from_iterable(objects.completion_queues for objects in each)),
        shares_namespaces=True,
    )


def packet_numbers(tree: Tree, seconds: float) -> tuple[PacketNumbers, ...]:
    """Return the packet numbers at a moment: those of a NIC's queue pairs follow the counters of its port."""
    numbers = {}
    for nic in tree.nics:
        directory = f"{port_of(nic)}/counters"
        counts = (tree.content(f"{directory}/{name}", seconds) for name in PORT_DATA)
        numbers[nic.name] = [0 if isinstance(count, Unknown) else int(count) // _PACKET for count in counts]
    return tuple(
        PacketNumbers(pair.device, pair.number, sent % _PSNS, received % _PSNS, pair.pid)
        for pair in rdma_resources(tree, seconds).queue_pairs
        if pair.kind == "RC" and not pair.kernel_name
        for sent, received in (numbers[pair.device],)
    )


@lru_cache(_REMEMBERED)
def _of_kernel(devices: tuple[str, ...], clients: tuple[tuple[str, str], ...]) -> RdmaResources:
    """Return the kernel's own objects, and those of its clients."""
    return RdmaResources(
        (
            *(QueuePair(device, 1, "GSI", "RTS", 1, None, 1, kernel_name=_KERNEL) for device in devices),
            *(QueuePair(device, 9, "RC", "RTS", 1, 9, 2, kernel_name="rdma_cm") for device, _ in clients),
        ),
        domains=(
            *(ProtectionDomain(device, 1, kernel_name=_KERNEL) for device in devices),
            *(ProtectionDomain(device, 2, kernel_name=name) for device, name in clients),
        ),
        completion_queues=tuple(CompletionQueue(device, 1, kernel_name=_KERNEL) for device in devices),
    )


@lru_cache(_REMEMBERED)
def _objects_of(
    opened: tuple[str, ...],
    used: tuple[str, ...],
    pairs: tuple[tuple[str, int], ...],
    first: int,
    pid: int | None,
    thread: int | None,
) -> RdmaResources:
    """Return the objects of a program but for its regions, the only ones that change while it runs."""
    kinds = [kind for kind, count in pairs for _ in range(count)]
    numbers = [(device, number) for device in used for number in range(first, first + len(kinds))]
    return RdmaResources(
        tuple(
            QueuePair(
                device, number, kind, "RTS", 1, number ^ 0x5000 if kind == "RC" else None, first, thread
            )
            for (device, number), kind in zip(numbers, kinds * len(used), strict=True)
        ),
        domains=tuple(ProtectionDomain(device, first, first, thread) for device in opened),
        contexts=tuple(RdmaContext(device, first, pid) for device in opened),
        completion_queues=tuple(CompletionQueue(device, number, first, thread) for device, number in numbers),
    )


def _pairs(program: Program, kind: str = "RC") -> tuple[tuple[str, int], ...]:
    """Return the queue pairs on each NIC that a program uses; `kind`: of those of NCCL."""
    return ((kind, 2 * _CHANNELS),) if program.pool is None else program.pool.queue_pairs


def connections(program: Program) -> int:
    """Return the number of queue pairs on each NIC that a program uses."""
    return sum(count for _, count in _pairs(program))


def _kind_of(program: Program, via: Via, through_peermem: Mapping[int, int]) -> _Kind:
    count = through_peermem.get(program.pid, 0) if via is Via.PEERMEM else 0
    return program.nics, program.pool, via, count


@lru_cache(_REMEMBERED)
def _regions(kind: _Kind) -> tuple[_Region, ...]:
    return tuple(_each_region(*kind))


def _each_region(nics: tuple[str, ...], pool: Pool | None, via: Via, peermem: int) -> Iterator[_Region]:
    if via in (Via.TCP, Via.NONE):
        return
    for number, device in enumerate(nics):
        if pool is not None:
            yield _Region(device, pool.length_bytes, via is not Via.DMABUF)
            continue
        for _ in range(2 * _CHANNELS):
            yield _Region(device, _LL, True)
            yield _Region(device, _FIFO, True)
        for _ in range(_CHANNELS if via is not Via.HOST else 0):
            yield _Region(device, _FLUSH, True)
        if via is Via.PEERMEM:
            for _ in range(number, peermem, len(nics)):  # in turn, as channels take the NICs
                yield _Region(device, PEERMEM_REGION_BYTES, True)
            continue
        for _ in range(2 * _CHANNELS):
            yield _Region(device, _SIMPLE, via is Via.HOST)
            yield _Region(device, _LL128, via is Via.HOST)


_memory_region = lru_cache(_REMEMBERED * _MOST_REGIONS)(MemoryRegion)


@lru_cache(_REMEMBERED)
def _memory_regions(
    kind: _Kind, used: tuple[str, ...], first: int, thread: int | None
) -> tuple[MemoryRegion, ...]:
    return tuple(
        _memory_region(region.device, number, region.length_bytes, first, thread)
        for number, region in enumerate(_regions(kind), first)
        if region.device in used
    )


@lru_cache(_REMEMBERED)
def _charged_bytes(kind: _Kind) -> int:
    return sum(-(-region.length_bytes // _PAGE) * _PAGE for region in _regions(kind) if region.is_charged)


def pinned_bytes(tree: Tree, program: Program, seconds: float) -> int:
    """Return VmPin: regions in whole pages, and the rings of the queues."""
    via = path_of(tree, program)
    through_peermem = peermem_regions(tree, seconds, (program,)) if via is Via.PEERMEM else {}
    charged = _charged_bytes(_kind_of(program, via, through_peermem))
    has_queues = via not in (Via.TCP, Via.NONE)
    return charged + _RING_BYTES * connections(program) * len(program.nics) * has_queues
