"""Play a recording: what the screens show at a moment, with the histories up to that moment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeVar

from probes.base.history import HISTORY_SECONDS
from probes.facts.node import probe_node
from probes.recording.replay_host import ReplayHost
from probes.snapshot.nic_roles import roles_of
from probes.snapshot.rates import read
from probes.snapshot.verdict import judge
from probes.topology.paths import build
from tui.runtime.sampler import Probed, Replayed, Report, Sampled

if TYPE_CHECKING:
    from probes.base.unknown import Maybe
    from probes.nccl.topology_file import TopologyFileFacts
    from probes.snapshot.examination import Examination

_CACHED = 1024  # readings: those of the histories, and room to move back and forth
T = TypeVar("T")


class ReplaySource:
    """A recorded node with a position; `move` and `position` are for the screen's thread."""

    def __init__(self, host: ReplayHost) -> None:
        self._host = host
        self.damage = host.recording.damage
        self.last = len(host.recording.moments) - 1
        self.position = host.recording.opening
        self._shown: int | None = None
        self._probed: dict[int, Probed] = {}
        self._sampled: dict[int, Sampled] = {}
        self._files: Maybe[TopologyFileFacts] | None = None

    def move(self, moment: int) -> None:
        """Go to a moment, at most to the first or last."""
        self.position = max(0, min(moment, self.last))

    def read(self, probe: bool) -> Iterator[Report]:
        """Yield what is new at the next moment, or after a jump everything up to the position."""
        moment, before = self.position, self._shown
        is_full = probe or before is None or moment != before + 1
        first = self._first(moment) if is_full else moment
        reports: list[Probed | Sampled] = []
        for number in range(first, moment + 1):
            if self._is_probed(number) or (is_full and number == first):
                reports.append(self._probe(number))
            reports.append(self._sample(number))
        self._shown = moment
        yield Replayed(moment, is_full, tuple(reports))

    def examine(self) -> Examination:
        """Examine the node as recorded up to the moment shown."""
        from probes.snapshot.examination import examine

        moment = self.position
        node = self._probe(moment).node
        self._host.seek(moment)
        examination = examine(self._host, node)
        if examination.topology_files != self._files:  # the verdicts so far did not use them
            self._files = examination.topology_files
            self._sampled.clear()
        return examination

    def release(self) -> None:
        """Do nothing: a recording uses no driver."""

    def _first(self, moment: int) -> int:
        """Return the first moment that the histories at this one show, and one more for its rates."""
        first = moment
        oldest = self._at(moment) - HISTORY_SECONDS
        while first > 0 and moment - first < _CACHED // 2 and self._at(first) >= oldest:
            first -= 1
        return first

    def _at(self, moment: int) -> float:
        head = self._host.recording.moments[moment]
        return head.clock[-1] if head.clock else head.at

    def _is_probed(self, moment: int) -> bool:
        return moment == 0 or self._host.recording.moments[moment].probed

    def _probe(self, moment: int) -> Probed:
        """Return the newest probe at this moment."""
        while not self._is_probed(moment):
            moment -= 1
        probed = self._probed.get(moment)
        if probed is None:
            self._host.seek(moment)
            node = probe_node(self._host)
            topology = build(node)
            probed = Probed(node, topology, roles_of(node, topology))
            _cache(self._probed, moment, probed, 8)
        return probed

    def _sample(self, moment: int) -> Sampled:
        sampled = self._sampled.get(moment)
        if sampled is None:
            probed = self._probe(moment)
            self._host.seek(moment)
            reading = read(self._host, probed.node, with_interfaces=True)
            earlier = self._sampled.get(moment - 1)
            before = None if earlier is None else earlier.reading
            verdict = judge(probed.node, probed.topology, reading, before, self._files)
            sampled = Sampled(reading, verdict, self._host.wall_clock())
            _cache(self._sampled, moment, sampled, _CACHED)
        return sampled


def _cache(cached: dict[int, T], moment: int, value: T, most: int) -> None:
    """Cache a value; drop the oldest ones."""
    while len(cached) >= most:
        del cached[next(iter(cached))]
    cached[moment] = value
