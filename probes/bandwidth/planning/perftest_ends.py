"""The two ends of a perftest test, wherever they are: their commands, and what they can reach together."""

from __future__ import annotations

from dataclasses import replace

from probes.bandwidth.model.command import Refused, is_ipv6
from probes.bandwidth.model.limits import Limit, limit_of_two_ends
from probes.bandwidth.model.planned_test import PlannedProcess
from probes.bandwidth.model.request import Mode, Request
from probes.bandwidth.planning.defaults import TimedSettings, gpu_memory, perftest_defaults, uses_data_direct
from probes.bandwidth.tools.numa_binding import bound_to
from probes.bandwidth.tools.perftest_command import LOCALHOST, PerftestSettings, loopback, perftest
from probes.bandwidth.tools.ssh import by_ssh, host_of
from probes.base.frozen import frozen
from probes.facts.gpu.gpus import GpuFacts
from probes.facts.system.tools import ToolFacts
from probes.snapshot.examination import Examination


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
        return Refused(invalid if request.peer else "no peer is named")
    wanted = replace(timed.settings, over_ipv6=host is not None and is_ipv6(host))
    near, notes = _bound(examination, wanted)
    far, far_notes = _at_peer(examination, request, wanted)
    notes = tuple(dict.fromkeys((*notes, *far_notes)))
    is_known = far.device != near.device and not far_notes
    limit = near.limit(examination)
    if is_known:
        limit = limit_of_two_ends(limit, _of_peer(far.limit(examination)), near.is_bidirectional)
    planned = PerftestEnds(near, (), limit, (), far if is_known else None, notes)
    if request.setup is Mode.SERVER:
        server_command, client_command = perftest(near, tools), perftest(far, tools, LOCALHOST)
        if isinstance(server_command, Refused):
            return server_command
        if isinstance(client_command, Refused):
            return client_command
        # The name of this node is appended where it is shown.
        processes = (PlannedProcess("server", server_command),)
        return replace(planned, processes=processes, for_peer=client_command.argv[:-1])
    there, client_command = perftest(far, tools), perftest(near, tools, host)
    if isinstance(there, Refused):
        return there
    if isinstance(client_command, Refused):
        return client_command
    if request.setup is Mode.CLIENT:
        return replace(planned, processes=(PlannedProcess("client", client_command),), for_peer=there.argv)
    server = by_ssh(request.peer, there, timed.time_limit_s)
    if isinstance(server, Refused):
        return server
    both = (PlannedProcess("server", server, request.peer), PlannedProcess("client", client_command))
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
    note = f"{other.reason} here: the peer's {name[:64]} gets the {given} of {settings.device}"
    return replace(far, device=name), (note,)


def _over_other_device(
    examination: Examination, request: Request, settings: PerftestSettings
) -> PerftestSettings | Refused:
    """Return the same settings over the chosen other device, with its port, GID index, NUMA node and GPU."""
    other = perftest_defaults(examination, None, request.far_nic)
    if isinstance(other, Refused):
        return other
    far = replace(
        settings,
        device=other.device,
        port=other.port,
        gid_index=other.gid_index,
        numa_node=other.numa_node if request.binds else None,
    )
    return far if far.gpu is None else _nearest_gpu(examination, far)


def _nearest_gpu(examination: Examination, far: PerftestSettings) -> PerftestSettings:
    """Use the far device's own GPU if it is the best NIC of another GPU; else the same GPU at both ends."""
    assert far.gpu is not None
    facts = examination.node.gpus
    for card in facts.gpus if isinstance(facts, GpuFacts) else ():
        if card.bdf != far.gpu.bdf and far.device in examination.topology.best_nics.get(card.bdf, ())[:1]:
            memory = gpu_memory(examination, card, far.device, far.gpu.dmabuf)
            return far if isinstance(memory, Refused) else replace(far, gpu=memory)
    direct = far.gpu.dmabuf and uses_data_direct(examination, far.device)
    return replace(far, gpu=replace(far.gpu, data_direct=direct))


def _of_peer(limit: Limit) -> Limit:
    """Return the same parts of a node like this one."""
    bounds = tuple(
        replace(
            bound,
            name=f"{bound.name} at the peer",
            why=f"{bound.why}, if it is like this node" if bound.why else "",
            part=f"peer {bound.part}" if bound.part else "",
        )
        for bound in limit.bounds
    )
    return Limit(bounds, tuple(f"at the peer {note}" for note in limit.notes))
