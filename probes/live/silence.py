"""For how long each job has moved no data, and whether its ranks wait meanwhile.

Counters of a port also count storage and other jobs, but the packet sequence numbers of queue pairs do not.
mlx5 takes these from the hardware (drivers/infiniband/hw/mlx5/qp.c, query_qp_attr). Other drivers may return
constants, so theirs count only if they have changed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from probes.base.frozen import frozen
from probes.base.text import plural
from probes.base.unknown import Maybe, Reason, Unknown, known, map_known
from probes.facts.node import Node
from probes.facts.rdma.roce import MLX5
from probes.host.protocol import Host
from probes.host.rdma_resources import PacketNumbers
from probes.live.model.activity import BUSY_PERCENT, SILENT_SECONDS, WAIT_SECONDS, moves_data
from probes.live.model.paced_source import PacedSource, Question
from probes.live.model.sample import (
    COLLECTIVE_ROLES,
    STOPPED_STATES,
    LiveJob,
    LiveProcess,
    LiveSample,
    PortSample,
    Standstill,
)
from probes.live.processes.ownership import find_processes
from probes.queries.queue_pair_makers import unlisted


@frozen
class PairMotion:
    """The connected queue pairs of one process, between two readings."""

    connected: int
    moving: int  # those that have sent or received a packet

    def are_still(self, connected: int, has_unlisted: bool) -> bool | None:
        """Return whether none of a job's queue pairs has moved; None: not all are known (DEVX never are)."""
        if self.moving:
            return False
        if has_unlisted:
            return None
        return True if connected and self.connected >= connected else None


def read_motions(
    host: Host, node: Node, before: Maybe[tuple[PacketNumbers, ...]], after: Maybe[tuple[PacketNumbers, ...]]
) -> Maybe[Mapping[int, PairMotion]]:
    """Return the motion by pid; a process whose threads that made the queue pairs have ended has none."""
    if isinstance(before, Unknown):
        return before
    if isinstance(after, Unknown):
        return after
    groups: dict[int, int] = {}
    find_processes(host, dict.fromkeys(pair.pid for pair in after if pair.pid is not None), groups, {})
    return motions(before, after, groups, {each.name for each in node.rdma_devices if each.driver == MLX5})


def motions(
    before: Sequence[PacketNumbers],
    after: Sequence[PacketNumbers],
    groups: Mapping[int, int],
    current: Collection[str],
) -> dict[int, PairMotion]:
    """Return the motion by pid. `groups`: the process of each thread; `current`: the devices of mlx5."""
    earlier = {(pair.device, pair.number, pair.pid): (pair.sent, pair.received) for pair in before}
    found: dict[int, PairMotion] = {}
    for pair in after:
        process = None if pair.pid is None else groups.get(pair.pid)
        numbers = earlier.get((pair.device, pair.number, pair.pid))
        if process is None or numbers is None:
            continue
        is_moving = numbers != (pair.sent, pair.received)
        if is_moving or pair.device in current:
            counted = found.get(process, PairMotion(0, 0))
            found[process] = PairMotion(counted.connected + 1, counted.moving + is_moving)
    return found


_SERVES_REQUESTS = "libnixl"  # it may compute for minutes before the next one comes
_BLOCKED_STATES = ("D", *STOPPED_STATES)  # D: waiting in the kernel where no signal arrives
_PAIRS = "packet numbers"  # of queue pairs
_NOT_ALL_PAIRS = Unknown(
    Reason.NOT_THERE, _PAIRS, "other jobs use its NICs, and not all of its queue pairs are counted"
)
_NOT_YET = Unknown(Reason.NOT_YET, "rates", f"watched for less than {WAIT_SECONDS:.0f} s")


def telling_nics(job: LiveJob, clients: Collection[str]) -> tuple[str, ...]:
    """Return the NICs that nothing else uses, else all of the job; `clients`: those of kernel storage."""
    return tuple(name for name in job.own_nics if name not in clients) or job.nics


class Silence:
    """For how long each job has moved no data while gdrtop watched, and whether its ranks wait meanwhile.

    The ports that no other job and no client in the kernel uses show whether a job moves data. A job without
    such a port is known by its queue pairs.
    """

    def __init__(self) -> None:
        self._moved_at: dict[str, float] = {}  # by the job's id; it has not: when it was first seen
        self._moved: set[str] = set()  # jobs that have moved data while gdrtop watched
        self._idle_at: dict[str, float] = {}  # when a GPU or a rank last did not wait, by BDF or pid
        self._asks = False  # a job shares all its ports
        self._numbers: Maybe[tuple[PacketNumbers, ...]] = _NOT_YET
        self._pairs: PacedSource[Mapping[int, PairMotion]] = PacedSource(_PAIRS, SILENT_SECONDS)

    def questions(self, host: Host, node: Node) -> tuple[Question, ...]:
        """Return what to ask if a job shares all its ports: the NICs answer for each queue pair."""

        def read_pairs() -> Maybe[Mapping[int, PairMotion]]:
            before, self._numbers = self._numbers, host.packet_numbers()
            return read_motions(host, node, before, self._numbers)

        return (Question(self._pairs, read_pairs),) if self._asks else ()

    def update(self, sample: LiveSample) -> tuple[LiveJob, ...]:
        """Return the jobs with their silence; what is unknown may be traffic."""
        at, jobs, processes = sample.at, sample.jobs, sample.processes
        if isinstance(processes, Unknown):  # for a moment: what was seen before counts
            return jobs
        members: dict[str, list[LiveProcess]] = {job.id: [] for job in jobs}
        for process in processes:
            members.setdefault(process.job, []).append(process)
        waits: dict[str, Maybe[bool]] = {}
        for gpu in sample.gpus:
            percent = map_known(gpu.live, lambda live: live.utilization_percent)
            waits[gpu.bdf] = map_known(percent, lambda percent: percent >= BUSY_PERCENT)
        for process in processes:
            waits[str(process.pid)] = map_known(process.state, lambda state: state in _BLOCKED_STATES)
        self._idle_at = {
            name: min(at, self._idle_at.get(name, at)) if is_waiting else at
            for name, is_waiting in waits.items()
            if not isinstance(is_waiting, Unknown)
        }
        waiting = {name for name, since in self._idle_at.items() if at - since >= WAIT_SECONDS}
        before, self._moved_at, self._asks = self._moved_at, {}, False
        self._moved &= before.keys()
        found = []
        for job in jobs:
            moves, shown_by, source = self._moves(job, members[job.id], sample)
            since = before.get(job.id, at)
            self._moved_at[job.id] = since if moves is False and since <= at else at
            if moves is True:
                self._moved.add(job.id)
            seconds = at - self._moved_at[job.id]
            standstill: Maybe[Standstill | None] = None
            if job.nics and _has_to_move(job, members[job.id]):
                if isinstance(moves, Unknown):
                    standstill = moves if job.id in before else _NOT_YET
                elif seconds >= WAIT_SECONDS:
                    own = {gpu for each in members[job.id] for gpu in each.gpus} & self._idle_at.keys()
                    blocked = tuple(each.rank_name for each in members[job.id] if str(each.pid) in waiting)
                    is_whole, busy = job.id not in self._moved, len(own & waiting)
                    standstill = Standstill(seconds, is_whole, len(own), busy, blocked, shown_by, source)
                elif job.id not in self._moved:
                    standstill = _NOT_YET
            shown = seconds if seconds >= SILENT_SECONDS else 0.0
            found.append(replace(job, silent_seconds=shown, standstill=standstill))
        return tuple(found)

    def _moves(
        self, job: LiveJob, members: Sequence[LiveProcess], sample: LiveSample
    ) -> tuple[Maybe[bool], str, str]:
        """Return whether a job moves data, what shows it, and the source of that."""
        clients = sample.kernel_clients  # NICs that storage in the kernel uses, too
        nics = telling_nics(job, clients)
        is_own = job.shared_nics.union(clients).isdisjoint(nics)
        shown_by = plural(len(nics), "unshared NIC" if len(nics) < len(job.nics) else "NIC")
        moves = _any_moves(nics, sample.ports)
        if is_own or moves is False or job.role not in COLLECTIVE_ROLES:
            return moves, shown_by, "port_xmit_data"
        self._asks = True
        connected = sum(nic.active for process in members for nic in process.nics)
        shown_by, motions = plural(connected, "queue pair"), self._pairs.answer
        if isinstance(motions, Unknown):
            return motions, shown_by, _PAIRS
        found = [motions[each.pid] for each in members if each.pid in motions]
        pairs = PairMotion(sum(pair.connected for pair in found), sum(pair.moving for pair in found))
        outside = unlisted(queues for each in members for queues in each.own_queues)
        still = pairs.are_still(connected, bool(outside))
        why = Unknown(Reason.NOT_THERE, _PAIRS, outside) if outside else _NOT_ALL_PAIRS
        return why if still is None else not still, shown_by, _PAIRS


def _any_moves(devices: Collection[str], ports: Sequence[PortSample]) -> Maybe[bool]:
    """Return whether a port of these devices moves data; an unknown rate may be traffic."""
    used = [port for port in ports if port.device in devices]
    seen = {moves_data(port) for port in used}
    if True in seen:
        return True
    rates = (rate for port in used for rate in (port.sent_gbps, port.received_gbps))
    unread = next((rate for rate in rates if isinstance(rate, Unknown)), None)
    if unread is not None:
        return unread
    return False if used else Unknown(Reason.NOT_THERE, "ports", "the rates of its NICs are unknown")


def _has_to_move(job: LiveJob, members: Sequence[LiveProcess]) -> bool:
    """Return whether ranks wait for others over the job's NICs; those of one node need none."""
    is_local = known(job.world_size, len(job.pids) + 1) <= len(job.pids)
    libraries = (library.name for each in members for library in known(each.process.libraries, ()))
    return job.role in COLLECTIVE_ROLES and not is_local and _SERVES_REQUESTS not in libraries
