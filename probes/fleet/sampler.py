"""Sample several nodes at the same time; one that hangs does not delay the others."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.node import Node
from probes.fleet.job_model import ClockOffset, NodeSample
from probes.fleet.rails import Rails, rails_of
from probes.host.probe_thread import RunningProbe, start_probe
from probes.host.protocol import Host
from probes.live.live_sampler import LiveSampler
from probes.nccl import topology_file
from probes.nccl.topology_file import tree_in_use
from probes.snapshot.node_reader import NodeReader
from probes.topology.paths import build

ANSWER_SECONDS = 10.0  # for a sample; a node that takes longer does not answer
FIRST_ANSWER_SECONDS = 60.0  # for the first sample, which reads the whole node
_CLOCK_QUESTIONS = 3
# A rail does not move because a job names a topology file: only the node's own one counts.
_NO_PROCESSES = Unknown(Reason.NOT_RECORDED, "processes", "not asked")


def measure_clock(host: Host, wall: Callable[[], float] = time.time) -> Maybe[ClockOffset]:
    """Compare a node's wall clock with this machine's `wall`; the fastest of three answers counts."""
    best: ClockOffset | None = None
    for _ in range(_CLOCK_QUESTIONS):
        before = wall()
        there = host.wall_clock()
        after = wall()
        half = (after - before) / 2
        if half >= 0 and (best is None or half < best.uncertainty_seconds):
            best = ClockOffset(there - before - half, half)
    return best or Unknown(Reason.MALFORMED, "clock", "this machine's clock was set back")


class NodeSampler:
    """The samples of one node; only one thread asks for them at a time."""

    def __init__(self, host: Host, wall: Callable[[], float] = time.time) -> None:
        self._host, self._wall = host, wall
        self._reader = NodeReader(host)
        self._live = LiveSampler(settles=False)
        self._node: Node | None = None
        self._rails: Rails = ()
        self._clock: Maybe[ClockOffset] | None = None

    def sample(self) -> NodeSample:
        """Return a sample of now; the first call also reads the whole node and compares its clock."""
        if self._clock is None:
            self._clock = measure_clock(self._host, self._wall)
        if (node := self._reader.probe()) is not None:
            files = topology_file.probe(self._host, _NO_PROCESSES)
            self._node, self._rails = node, rails_of(node, build(node, tree_in_use(files)))
        assert self._node is not None
        return NodeSample(
            self._live.sample(self._host, self._node, self._reader.read()), self._rails, self._clock
        )


class Begun(dict[str, NodeSampler]):
    """The samplers of nodes that were read once, by name."""

    def __call__(self, host: Host) -> None:
        """Ask a node what its first sample asks; answers that were missing are asked again."""
        self[host.origin.label] = NodeSampler(host)
        self[host.origin.label].sample()


@dataclass
class _Question:
    """A sample that a node was asked for."""

    probe: RunningProbe[NodeSample]
    asked_at: float
    allowed_seconds: float


class FleetSampler:
    """Samples of many nodes, each read in a thread of its own."""

    def __init__(
        self,
        hosts: Mapping[str, Host],
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        begun: dict[str, NodeSampler] | None = None,
    ) -> None:
        """`hosts` and their samplers that have `begun` may become more, while other threads reach them."""
        self._hosts, self._clock, self._wall = hosts, clock, wall
        self._nodes = {} if begun is None else begun
        self._asked: dict[str, _Question] = {}
        self._has_answered: set[str] = set()

    def read(self, wait_seconds: float) -> tuple[dict[str, NodeSample], dict[str, str]]:
        """Ask each node for a sample, and wait for the answers, at most this long.

        Return the answers, and why other nodes do not answer. A node in neither is not late yet: its answer
        comes with a later call.
        """
        for name, host in dict(self._hosts).items():
            node = self._nodes.get(name) or self._nodes.setdefault(name, NodeSampler(host, self._wall))
            if name not in self._asked:
                allowed = ANSWER_SECONDS if name in self._has_answered else FIRST_ANSWER_SECONDS
                probe = start_probe(host, "fleet sample", node.sample)
                self._asked[name] = _Question(probe, self._clock(), allowed)
        answers: dict[str, NodeSample] = {}
        unanswered: dict[str, str] = {}
        until = time.monotonic() + wait_seconds
        for name, question in list(self._asked.items()):
            if question.probe.wait(max(0.0, until - time.monotonic())):
                del self._asked[name]
                answer = question.probe.answer(0.0)
                if isinstance(answer, Unknown):
                    unanswered[name] = answer.detail or answer.reason.value
                else:
                    self._has_answered.add(name)
                    answers[name] = answer
                continue
            waited = self._clock() - question.asked_at
            if waited >= question.allowed_seconds:
                unanswered[name] = f"no answer for {waited:.0f} s"
        return answers, unanswered
