"""The two ends of a test of perftest, wherever they are: their commands, and what they can reach together."""

from __future__ import annotations

from dataclasses import dataclass, replace

from probes.bandwidth.model.limits import Limit, limit_of_two_ends
from probes.bandwidth.model.planned_test import PlannedProcess
from probes.bandwidth.model.request import Mode, Request
from probes.bandwidth.planning.defaults import gpu_memory, perftest_defaults
from probes.bandwidth.planning.duration import Method
from probes.bandwidth.tools.command import Refused, is_ipv6
from probes.bandwidth.tools.numa_binding import bound_to
from probes.bandwidth.tools.perftest_command import LOCALHOST, PerftestSettings, loopback, perftest
from probes.bandwidth.tools.ssh import by_ssh, host_of
from probes.facts.gpu.gpus import GpuFacts
from probes.facts.system.tools import ToolFacts
from probes.snapshot.examination import Examination


@dataclass(frozen=True)
class PerftestEnds:
    """Both ends of one test."""

    settings: PerftestSettings  # of the end here, in loopback the client's
    processes: tuple[PlannedProcess, ...]  # those that are started from here, in this order
    limit: Limit
    for_peer: tuple[str, ...] = ()  # the argv that somebody at the peer has to start
    far: PerftestSettings | None = None  # the other end's, where its device is another one
    notes: tuple[str, ...] = ()


def ends_of(
    examination: Examination, request: Request, method: Method, tools: ToolFacts
) -> PerftestEnds | Refused:
    """The ends of a test with these settings; Refused with the reason where one of them cannot be run."""
    if request.setup is Mode.LOOPBACK:
        return _loopback(examination, request, method.settings, tools)
    host = host_of(request.peer)
    if host is None and request.setup is not Mode.SERVER:
        told = "no peer is named" if not request.peer else f"{request.peer[:80]!r} is no host name or address"
        return Refused(told)
    wished = replace(method.settings, over_ipv6=host is not None and is_ipv6(host))
    near, notes = _bound(examination, wished)
    far, told_of_far = _at_peer(examination, request, wished)
    notes = tuple(dict.fromkeys((*notes, *told_of_far)))
    is_known = far.device != near.device and not told_of_far
    limit = near.limit(examination)
    if is_known:
        limit = limit_of_two_ends(limit, _of_peer(far.limit(examination)), near.is_bidirectional)
    planned = PerftestEnds(near, (), limit, (), far if is_known else None, notes)
    if request.setup is Mode.SERVER:
        waits, asks = perftest(near, tools), perftest(far, tools, LOCALHOST)
        if isinstance(waits, Refused):
            return waits
        if isinstance(asks, Refused):
            return asks
        # This node's name is put behind it.
        return replace(planned, processes=(PlannedProcess("server", waits),), for_peer=asks.argv[:-1])
    there, asks = perftest(far, tools), perftest(near, tools, host)
    if isinstance(there, Refused):
        return there
    if isinstance(asks, Refused):
        return asks
    if request.setup is Mode.CLIENT:
        return replace(planned, processes=(PlannedProcess("client", asks),), for_peer=there.argv)
    server = by_ssh(request.peer, there, method.time_limit_s)
    if isinstance(server, Refused):
        return server
    processes = (PlannedProcess("server", server, request.peer), PlannedProcess("client", asks))
    return replace(planned, processes=processes)


def _loopback(
    examination: Examination, request: Request, wished: PerftestSettings, tools: ToolFacts
) -> PerftestEnds | Refused:
    near, notes = _bound(examination, wished)
    far: PerftestSettings | None = None
    limit = near.limit(examination, is_loopback=request.far_nic in (None, near.device))
    if request.far_nic not in (None, near.device):
        other = _over_other_device(examination, request, wished)
        if isinstance(other, Refused):
            return other
        far, told = _bound(examination, other)
        notes = tuple(dict.fromkeys((*notes, *told)))
        limit = limit_of_two_ends(limit, far.limit(examination), near.is_bidirectional)
    both = loopback(near, tools, far)
    if isinstance(both, Refused):
        return both
    processes = (PlannedProcess("server", both[0]), PlannedProcess("client", both[1]))
    return PerftestEnds(near, processes, limit, (), far, notes)


def _bound(
    examination: Examination, settings: PerftestSettings, is_here: bool = True
) -> tuple[PerftestSettings, tuple[str, ...]]:
    """Bound to the NIC's NUMA node where that can be; else not, and told."""
    numa_node, notes = bound_to(examination, settings.numa_node, is_here)
    return replace(settings, numa_node=numa_node), notes


def _at_peer(
    examination: Examination, request: Request, settings: PerftestSettings
) -> tuple[PerftestSettings, tuple[str, ...]]:
    """The peer's end: it is taken for a node of the same type; and why nothing is known of its device."""
    # It has a cpuset of its own; numactl, where it is missing here, is taken to be missing there, too.
    far = _bound(examination, settings, is_here=False)[0]
    name = request.far_nic
    if name is None or name == settings.device:
        return far, ()
    other = _over_other_device(examination, request, settings)
    if not isinstance(other, Refused):
        return _bound(examination, other, is_here=False)[0], ()
    given = "port, GID index, GPU and NUMA node" if settings.gpu else "port, GID index and NUMA node"
    told = f"{other.reason} here: the peer's {name[:64]} gets the {given} of {settings.device}"
    return replace(far, device=name), (told,)


def _over_other_device(
    examination: Examination, request: Request, settings: PerftestSettings
) -> PerftestSettings | Refused:
    """The same over the chosen other device of this node: with its port, GID index, NUMA node and GPU."""
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
    """The far device's own GPU, where it is another one's best NIC; else the same GPU at both ends."""
    assert far.gpu is not None
    facts = examination.node.gpus
    for card in facts.gpus if isinstance(facts, GpuFacts) else ():
        if card.bdf != far.gpu.bdf and far.device in examination.topology.best_nics.get(card.bdf, ())[:1]:
            memory = gpu_memory(examination, card, far.device, far.gpu.dmabuf)
            return far if isinstance(memory, Refused) else replace(far, gpu=memory)
    return far


def _of_peer(limit: Limit) -> Limit:
    """The same parts of a node like this one."""
    bounds = tuple(
        replace(
            one,
            name=f"{one.name} at the peer",
            why=f"{one.why}, if it is like this node" if one.why else "",
            part=f"peer {one.part}" if one.part else "",
        )
        for one in limit.bounds
    )
    return Limit(bounds, tuple(f"at the peer {note}" for note in limit.notes))
