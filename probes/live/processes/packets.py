"""Whether the queue pairs of each process send and receive, by their own packet sequence numbers.

Counters of a port also count storage and other jobs. mlx5 takes the numbers from the hardware
(drivers/infiniband/hw/mlx5/qp.c, query_qp_attr). Other drivers may return constants, so theirs count only if
they have changed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from probes.base.frozen import frozen
from probes.base.unknown import Maybe, Unknown
from probes.facts.node import Node
from probes.facts.rdma.roce import MLX5
from probes.host.protocol import Host
from probes.host.rdma_resources import PacketNumbers
from probes.live.processes.ownership import find_processes


@frozen
class PairMotion:
    """The connected queue pairs of one process, between two readings."""

    connected: int
    moving: int  # those that have sent or received a packet

    def are_still(self, connected: int, gpu_may_post: bool) -> bool | None:
        """Return whether none of a job's queue pairs has moved; None: not all are known (DEVX never are)."""
        if self.moving:
            return False
        if gpu_may_post:
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
