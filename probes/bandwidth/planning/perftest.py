"""Plan one test of perftest between a NIC and GPU or host memory, with both of its ends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from probes.bandwidth.model.command import Refused, bound_to, by_ssh, host_of, is_ipv6
from probes.bandwidth.model.limits import Limit, limit_of_two_ends
from probes.bandwidth.model.planned_series import Pair, PlannedProcess, PlannedTest
from probes.bandwidth.model.request import MemoryPath, Mode, Request
from probes.bandwidth.model.samples import BY_DMABUF, BY_PEERMEM, HOST_MEMORY
from probes.bandwidth.planning.node_settings import (
    NoSuchDevice,
    TimedSettings,
    better_nics_down,
    gpu_memory,
    is_without_dmabuf,
    most_bytes,
    perftest_defaults,
    uses_data_direct,
    with_duration,
)
from probes.bandwidth.tools.perftest_command import LOCALHOST, PerftestSettings, loopback, perftest
from probes.base.frozen import frozen
from probes.base.unknown import Unknown
from probes.facts.system.tools import ToolFacts
from probes.snapshot.examination import Examination

_DMABUF = {MemoryPath.BEST: None, MemoryPath.DMABUF: True, MemoryPath.PEERMEM: False}
_WORDS = {MemoryPath.HOST: HOST_MEMORY, MemoryPath.DMABUF: BY_DMABUF, MemoryPath.PEERMEM: BY_PEERMEM}


def title_of(examination: Examination, gpu: str | None, nic: str | None, path: MemoryPath) -> str:
    """Return the title of a test, also of one that cannot run."""
    return _title(_label(examination, gpu), nic or "no NIC", _WORDS.get(path, "GPU memory"))


def _title(gpu: str, nic: str, memory: str) -> str:
    return f"{gpu} → {nic} · {memory}" if gpu else f"{nic} · {memory}"


def _label(examination: Examination, gpu: str | None) -> str:
    cards = examination.node.known_gpus
    return next((f"GPU{card.index}" for card in cards if card.bdf == gpu), gpu or "")


def perftest_test(
    examination: Examination,
    request: Request,
    gpu: str | None,
    nic: str | None,
    path: MemoryPath,
    tcp_port: int,
) -> PlannedTest | Refused:
    """Return the test of one pair with one kind of memory, or why it cannot run on this node."""
    tools = examination.tools
    if isinstance(tools, Unknown):
        return Refused(f"cannot tell which tools are installed: {tools}")
    most, size = most_bytes(examination), (request.size_bytes or 0) * request.queue_pairs
    if most is not None and size > most:
        limit = f"{most >> 20} MiB" if most >> 20 else f"{most} bytes"
        return Refused(f"such messages could take the memory that is left; {limit} are safe now")
    with_gpu = path is not MemoryPath.HOST
    if with_gpu and gpu is None:
        return Refused("this node has no GPU")
    settings = perftest_defaults(examination, gpu if with_gpu else None, nic, _DMABUF.get(path))
    if isinstance(settings, Refused):
        return settings
    timed = with_duration(
        request,
        replace(
            settings,
            tool=request.tool,
            queue_pairs=request.queue_pairs,
            is_bidirectional=request.is_bidirectional,
            tcp_port=request.tcp_port or tcp_port,
            numa_node=settings.numa_node if request.binds else None,
        ),
    )
    planned = ends_of(examination, request, timed, tools)
    if isinstance(planned, Refused):
        return planned
    settings, far = planned.settings, planned.far
    is_loopback = request.setup is Mode.LOOPBACK and request.far_nic in (None, settings.device)
    memory = HOST_MEMORY if settings.gpu is None else BY_DMABUF if settings.gpu.dmabuf else BY_PEERMEM
    # A client of a server here has no name: its device would be taken for one of this node.
    far_nic = "" if request.setup is Mode.SERVER else request.far_nic or ""
    label = _label(examination, gpu) if with_gpu else ""
    between = settings.device
    if far is not None:
        far_label = _label(examination, far.gpu.bdf) if far.gpu else ""
        between += f" → {far.device}" + (f" → {far_label}" if far_label else "")
    nics_down = (
        f"{name} is a better NIC for {_label(examination, gpu)}, but has no active port"
        for name in better_nics_down(examination.topology, gpu, settings.device)
    )
    is_other = path is MemoryPath.BEST and memory == BY_PEERMEM and is_without_dmabuf(tools)
    why = (
        "this perftest is built without DMA-BUF, so the test uses nvidia-peermem regardless of what NCCL uses"
    )
    other_path = (why,) if is_other else ()
    return PlannedTest(
        title=_title(label, between, memory),
        settings=settings,
        setup=request.setup,
        pair=Pair(
            gpu=(gpu or "") if with_gpu else "",
            gpu_label=label,
            nic=settings.device,
            port=settings.port,
            far_nic="" if far_nic == settings.device and not request.peer else far_nic,
            peer="" if request.setup is Mode.LOOPBACK else request.peer,
        ),
        memory=memory,
        processes=planned.processes,
        limit=planned.limit,
        purpose=settings.purpose(is_loopback),
        seconds=timed.seconds,
        time_limit_s=timed.time_limit_s,
        end_after_s=timed.end_after_s,
        tcp_port=settings.tcp_port if request.setup in (Mode.LOOPBACK, Mode.SERVER) else 0,
        for_peer=planned.for_peer,
        far=far if request.setup is Mode.LOOPBACK else None,
        notes=(*planned.notes, *nics_down, *other_path, *key_notes(settings, far)),
    )


def key_notes(*ends: PerftestSettings | None) -> Iterator[str]:
    """Yield which end uses another partition key than that at index 0."""
    for end in filter(None, ends):
        if end.pkey_index is not None:
            yield (
                f"{end.device}: index 0 has no partition key of a full member, so the test uses index "
                f"{end.pkey_index}"
            )


@frozen
class PerftestEnds:
    """Both ends of one test."""

    settings: PerftestSettings  # of the end on this node; in loopback the client's
    processes: tuple[PlannedProcess, ...]  # those that gdrtop starts, in this order
    limit: Limit
    for_peer: tuple[str, ...] = ()  # the argv that the user has to start on the peer
    far: PerftestSettings | None = None  # the other end's, if its device is another one
    notes: tuple[str, ...] = ()


def ends_of(
    examination: Examination, request: Request, timed: TimedSettings, tools: ToolFacts
) -> PerftestEnds | Refused:
    """Return the ends of a test with these settings, or why one of them cannot run."""
    if request.setup is Mode.LOOPBACK:
        return _loopback(examination, request, timed.settings, tools)
    host = host_of(request.peer)
    if host is None and request.setup is not Mode.SERVER:
        invalid = f"{request.peer[:80]!r} is not a valid host name or address"
        return Refused(invalid if request.peer else "no peer was specified")
    wanted = replace(timed.settings, over_ipv6=host is not None and is_ipv6(host))
    near, notes = _bound(examination, wanted)
    far, far_notes = _at_peer(examination, request, wanted)
    notes = tuple(dict.fromkeys((*notes, *far_notes)))
    is_known = far.device != near.device and not far_notes
    limit = near.limit(examination)
    if is_known:
        limit = limit_of_two_ends(limit, _of_peer(far.limit(examination)), near.is_bidirectional)
    planned = PerftestEnds(near, (), limit, (), far if is_known else None, notes)
    serves = request.setup is Mode.SERVER
    server = perftest(near if serves else far, tools)
    client = perftest(far if serves else near, tools, LOCALHOST if serves else host)
    if isinstance(server, Refused):
        return server
    if isinstance(client, Refused):
        return client
    if serves:  # The name of this node is appended where it is shown.
        return replace(planned, processes=(PlannedProcess("server", server),), for_peer=client.argv[:-1])
    if request.setup is Mode.CLIENT:
        return replace(planned, processes=(PlannedProcess("client", client),), for_peer=server.argv)
    by_peer = by_ssh(request.peer, server, timed.time_limit_s)
    if isinstance(by_peer, Refused):
        return by_peer
    both = (PlannedProcess("server", by_peer, request.peer), PlannedProcess("client", client))
    return replace(planned, processes=both)


def _loopback(
    examination: Examination, request: Request, wanted: PerftestSettings, tools: ToolFacts
) -> PerftestEnds | Refused:
    near, notes = _bound(examination, wanted)
    far: PerftestSettings | None = None
    limit = near.limit(examination, is_loopback=request.far_nic in (None, near.device))
    if request.far_nic not in (None, near.device):
        other = _over_other_device(examination, request, wanted)
        if isinstance(other, Refused):
            return other
        far, more_notes = _bound(examination, other)
        notes = tuple(dict.fromkeys((*notes, *more_notes)))
        limit = limit_of_two_ends(limit, far.limit(examination), near.is_bidirectional)
    both = loopback(near, tools, far)
    if isinstance(both, Refused):
        return both
    processes = (PlannedProcess("server", both[0]), PlannedProcess("client", both[1]))
    return PerftestEnds(near, processes, limit, (), far, notes)


def _bound(
    examination: Examination, settings: PerftestSettings, is_here: bool = True
) -> tuple[PerftestSettings, tuple[str, ...]]:
    """Bind to the NIC's NUMA node if possible; else return a note."""
    numa_node, notes = bound_to(examination, settings.numa_node, is_here)
    return replace(settings, numa_node=numa_node), notes


def _at_peer(
    examination: Examination, request: Request, settings: PerftestSettings
) -> tuple[PerftestSettings, tuple[str, ...]]:
    """Return the peer's end, assuming a node of the same type, and a note if its device is unknown here."""
    # The peer has its own cpuset; if numactl is missing here, gdrtop assumes that it is missing there too.
    far = _bound(examination, settings, is_here=False)[0]
    name = request.far_nic
    if name is None or name == settings.device:
        return far, ()
    other = _over_other_device(examination, request, settings)
    if not isinstance(other, Refused):
        return _bound(examination, other, is_here=False)[0], ()
    given = "port, GID index, GPU and NUMA node" if settings.gpu else "port, GID index and NUMA node"
    missing = f"there is no RDMA device {name[:64]}" if isinstance(other, NoSuchDevice) else other.reason
    note = f"{missing} here: the peer's {name[:64]} gets the {given} of {settings.device}"
    return replace(far, device=name), (note,)


def _over_other_device(
    examination: Examination, request: Request, settings: PerftestSettings
) -> PerftestSettings | Refused:
    """Return the same settings over the chosen other device, with its port, GID index, NUMA node and GPU."""
    other = perftest_defaults(examination, None, request.far_nic)
    if isinstance(other, Refused):
        return other
    node = other.numa_node if request.binds else None
    far = replace(settings, device=other.device, port=other.port, gid_index=other.gid_index, numa_node=node)
    far = replace(far, pkey_index=other.pkey_index)
    return far if far.gpu is None else _nearest_gpu(examination, far)


def _nearest_gpu(examination: Examination, far: PerftestSettings) -> PerftestSettings:
    """Use the far device's own GPU if it is the best NIC of another GPU; else the same GPU at both ends."""
    assert far.gpu is not None
    for card in examination.node.known_gpus:
        if card.bdf != far.gpu.bdf and far.device in examination.topology.best_nics.get(card.bdf, ())[:1]:
            memory = gpu_memory(examination, card, far.device, far.gpu.dmabuf)
            return far if isinstance(memory, Refused) else replace(far, gpu=memory)
    direct = far.gpu.dmabuf and uses_data_direct(examination, far.device)
    return replace(far, gpu=replace(far.gpu, data_direct=direct))


def _of_peer(limit: Limit) -> Limit:
    bounds = tuple(
        replace(
            bound,
            name=f"{bound.name} on the peer",
            why=f"{bound.why}, if it is like this node" if bound.why else "",
            part=f"peer {bound.part}" if bound.part else "",
        )
        for bound in limit.bounds
    )
    return Limit(bounds, tuple(f"on the peer {note}" for note in limit.notes))
