"""The schedule of tests between pairs of nodes: rounds of disjoint pairs, and how long they take."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from probes.bandwidth.model.command import Refused, bound_to
from probes.bandwidth.model.limits import Limit
from probes.bandwidth.model.planned_series import Pair, PlannedProcess, PlannedTest
from probes.bandwidth.model.request import DEFAULT_BYTES, Mode
from probes.bandwidth.model.samples import BY_DMABUF, BY_PEERMEM, HOST_MEMORY
from probes.bandwidth.planning.affected_jobs import affected_by
from probes.bandwidth.planning.node_settings import perftest_defaults
from probes.bandwidth.tools.perftest_command import PerftestSettings, mismatched_settings, perftest
from probes.base.frozen import frozen
from probes.base.unknown import Unknown
from probes.facts.system.tools import PERFTEST_PORT, ToolFacts
from probes.fleet.attribution import PairEnd, PairMemory
from probes.fleet.rails import Rail
from probes.snapshot.examination import Examination
from probes.snapshot.rates import Reading


@frozen
class NodePair:
    """Two nodes that measure between each other."""

    server: str
    client: str

    @property
    def key(self) -> frozenset[str]:
        """Both nodes, in no order."""
        return frozenset((self.server, self.client))


Round = tuple[NodePair, ...]
"""Pairs without a common node, measured at the same time."""


def all_rounds(nodes: Sequence[str]) -> Iterator[Round]:
    """Yield rounds in which every two nodes meet exactly once, by the circle method.

    n nodes need n - 1 rounds, or n if n is odd. The sides alternate, so that each node is server in about
    half of its tests.
    """
    if len(nodes) < 2:
        return
    circle: deque[str | None] = deque(nodes)
    if len(circle) % 2:
        circle.append(None)  # whoever meets it is idle
    fixed = circle.popleft()
    for number in range(len(circle)):
        order = (fixed, *circle)
        pairs = []
        for place in range(len(order) // 2):
            ends = order[place], order[-1 - place]
            # The fixed node changes sides every round; the others change theirs as they move on.
            server, client = ends[::-1] if (number if place == 0 else place) % 2 else ends
            if server is not None and client is not None:
                pairs.append(NodePair(server, client))
        yield tuple(pairs)
        circle.rotate(1)


def count_rounds(nodes: int) -> int:
    """Return the number of rounds of `all_rounds`."""
    return 0 if nodes < 2 else nodes - 1 + nodes % 2


def quick_rounds(nodes: Sequence[str]) -> tuple[Round, ...]:
    """Return one round with each node once; if their number is odd, a second one with the node that is left.

    Neighbors in the list are not paired: they often share a rack, a leaf switch and its fault.
    """
    half = len(nodes) // 2
    pairs = tuple(NodePair(nodes[place], nodes[half + place]) for place in range(half))
    left = (NodePair(nodes[-1], nodes[0]),) if len(nodes) % 2 and half else ()
    return tuple(filter(None, (pairs, left)))


def repeated_rounds(
    suspects: Iterable[str], good: Sequence[str], earlier: Collection[frozenset[str]]
) -> tuple[Round, ...]:
    """Return rounds in which each suspect meets two different good nodes that it has not met yet.

    With fewer good nodes than suspects there are more rounds; with too few, fewer meetings. A suspect is the
    client in its first meeting and the server in its second, so that both directions are measured.
    """
    met = set(earlier)
    rounds: list[Round] = []
    for meeting in range(2):
        waiting = list(suspects)
        while waiting:
            free, pairs, later = deque(good), [], []
            for suspect in waiting:
                partner = next((node for node in free if frozenset((suspect, node)) not in met), None)
                if partner is None:
                    later.append(suspect)
                    continue
                free.remove(partner)
                pair = NodePair(suspect, partner) if meeting % 2 else NodePair(partner, suspect)
                met.add(pair.key)
                pairs.append(pair)
            if not pairs:
                break
            rounds.append(tuple(pairs))
            waiting = later
    return tuple(rounds)


def seconds_of(rounds: int, memories: int, rail_groups: int, test_seconds: float) -> float:
    """Return how long rounds take; `rail_groups`: how many times a pair measures some of its rails."""
    return rounds * memories * rail_groups * test_seconds


TOOL = "ib_write_bw"
START_SECONDS = 4.0  # until both ends are connected; CUDA takes most of it
_LIMIT_SECONDS = 45.0  # beyond the duration: then both ends are stopped


@frozen
class PairSettings:
    """What is the same for all pairs."""

    memories: tuple[PairMemory, ...] = (PairMemory.HOST, PairMemory.GPU)
    rails: tuple[int, ...] | None = None  # None: all
    duration_s: int = 5
    is_bidirectional: bool = False
    first_port: int = PERFTEST_PORT  # TCP port of rail 0; rail k uses the port k places above
    one_rail_at_a_time: bool = False

    @property
    def seconds(self) -> float:
        """Estimated duration of one test."""
        return self.duration_s + START_SECONDS

    @property
    def time_limit_s(self) -> float:
        """Duration after which both ends of a test are stopped."""
        return self.duration_s + _LIMIT_SECONDS


@frozen
class NodeRail:
    """One end that can run on a node: a rail with one kind of memory."""

    node: str
    rail: Rail
    memory: PairMemory
    settings: PerftestSettings
    tools: ToolFacts
    limit: Limit

    @property
    def pair_end(self) -> PairEnd:
        """The node and its NIC."""
        return PairEnd(self.node, self.settings.device)


def node_rail(
    node: str, examination: Examination, rail: Rail, memory: PairMemory, settings: PairSettings
) -> NodeRail | Refused:
    """Return one end, or why the node cannot run it."""
    tools = examination.tools
    if isinstance(tools, Unknown):
        return Refused(f"cannot tell which tools are installed: {tools}")
    if not rail.is_active:
        return Refused(f"no port of {rail.nic} is active")
    if memory is PairMemory.GPU and rail.gpu is None:
        return Refused("this node has no GPU")
    gpu = rail.gpu if memory is PairMemory.GPU else None
    found = perftest_defaults(examination, gpu, rail.nic)
    if isinstance(found, Refused):
        return found
    wanted = replace(
        found,
        tool=TOOL,
        size_bytes=DEFAULT_BYTES,
        # Not endless: both ends stop by themselves, even if nothing can reach them any more.
        duration_s=settings.duration_s,
        is_bidirectional=settings.is_bidirectional,
        tcp_port=settings.first_port + rail.number,
        numa_node=bound_to(examination, found.numa_node)[0],
    )
    server = perftest(wanted, tools)
    if isinstance(server, Refused):
        return server
    return NodeRail(node, rail, memory, wanted, tools, wanted.limit(examination))


def pair_test(server: NodeRail, client: NodeRail, settings: PairSettings) -> PlannedTest | Refused:
    """Return the test of two ends; the client's node connects to the server's node by its name."""
    if mismatched := mismatched_settings(server.settings, client.settings):
        return Refused(f"both ends need the same {', '.join(mismatched)}")
    if server.rail.link_layer != client.rail.link_layer:
        return Refused("one end is InfiniBand, the other one is not")
    waiting = perftest(server.settings, server.tools)
    address = server.node.rpartition("@")[2]  # without the user of ssh
    connecting = perftest(client.settings, client.tools, address)
    if isinstance(waiting, Refused):
        return waiting
    if isinstance(connecting, Refused):
        return connecting
    test = _end_test(client, settings)
    processes = (PlannedProcess("server", waiting, server.node), PlannedProcess("client", connecting))
    title = f"{client.node} → {server.node} · rail {client.rail.number} · {test.memory}"
    pair = replace(test.pair, far_nic=server.settings.device, peer=server.node)
    return replace(test, title=title, processes=processes, pair=pair)


def limit_gbps(server: NodeRail, client: NodeRail, settings: PairSettings) -> float | None:
    """Return what both ends allow in Gb/s, the sum if both directions are measured; None: unknown."""
    limits = [limit for end in (server, client) if not isinstance(limit := end.limit.gbps, Unknown)]
    directions = 2 if settings.is_bidirectional else 1
    return min(limits) * directions if len(limits) == 2 else None


def affected_on_node(
    examination: Examination, ends: Iterable[NodeRail], before: Reading | None, settings: PairSettings
) -> tuple[str, ...]:
    """Return who would be affected on a node by its ends of the tests, a line each."""
    return affected_by(examination, [_end_test(end, settings) for end in ends], before)


def _end_test(end: NodeRail, settings: PairSettings) -> PlannedTest:
    """Return a test that has only this end, without processes."""
    memory = end.settings.gpu
    words = HOST_MEMORY if memory is None else BY_DMABUF if memory.dmabuf else BY_PEERMEM
    return PlannedTest(
        title=f"{end.node} · {end.settings.device} · {words}",
        settings=end.settings,
        setup=Mode.BOTH_ENDS,
        pair=Pair(
            gpu=memory.bdf if memory else "",
            gpu_label=end.rail.gpu_label if memory else "",
            nic=end.settings.device,
            port=end.settings.port,
            peer="another node",
        ),
        memory=words,
        processes=(),
        limit=end.limit,
        purpose=end.settings.purpose(),
        seconds=settings.seconds,
        time_limit_s=settings.time_limit_s,
    )
