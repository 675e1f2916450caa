"""Moves through a recording: what the screens show at one moment of it, with the histories up to there."""

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

_KEPT = 1024  # readings: what the histories show, and room to move back and forth in
T = TypeVar("T")


class ReplaySource:
    """A source of readings with a position; `move` and `position` are for the screen's thread."""

    def __init__(self, host: ReplayHost) -> None:
        self._host = host
        self.damage = host.recording.damage
        self.last = len(host.recording.moments) - 1
        self.position = 0
        self._shown: int | None = None
        self._probed: dict[int, Probed] = {}
        self._sampled: dict[int, Sampled] = {}
        self._files: Maybe[TopologyFileFacts] | None = None

    def move(self, moment: int) -> None:
        """Goes to a moment; beyond the first or last, to that."""
        self.position = max(0, min(moment, self.last))

    def take(self, probe: bool) -> Iterator[Report]:
        """What is new at the position, or where it was moved to another place, all up to it."""
        moment, before = self.position, self._shown
        anew = probe or before is None or moment != before + 1
        first = self._first(moment) if anew else moment
        reports: list[Probed | Sampled] = []
        for number in range(first, moment + 1):
            if self._is_probed(number) or (anew and number == first):
                reports.append(self._probe(number))
            reports.append(self._sample(number))
        self._shown = moment
        yield Replayed(moment, anew, tuple(reports))

    def examine(self) -> Examination:
        """All that the doctor looks at, as it was recorded up to the moment shown."""
        from probes.snapshot.examination import examine

        moment = self.position
        node = self._probe(moment).node
        self._host.seek(moment)
        examination = examine(self._host, node)
        if examination.topology_files != self._files:  # the verdicts so far did not know of them
            self._files = examination.topology_files
            self._sampled.clear()
        return examination

    def let_go(self) -> None:
        """A recording holds nothing of a node."""

    def _first(self, moment: int) -> int:
        """The first moment that the histories at this one still show, and one before for its rates."""
        first = moment
        oldest = self._at(moment) - HISTORY_SECONDS
        while first > 0 and moment - first < _KEPT // 2 and self._at(first) >= oldest:
            first -= 1
        return first

    def _at(self, moment: int) -> float:
        head = self._host.recording.moments[moment]
        return head.clock[-1] if head.clock else head.at

    def _is_probed(self, moment: int) -> bool:
        return moment == 0 or self._host.recording.moments[moment].probed

    def _probe(self, moment: int) -> Probed:
        """The node as it was probed last at this moment."""
        while not self._is_probed(moment):
            moment -= 1
        probed = self._probed.get(moment)
        if probed is None:
            self._host.seek(moment)
            node = probe_node(self._host)
            topology = build(node)
            probed = Probed(node, topology, roles_of(node, topology))
            _keep(self._probed, moment, probed, 8)
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
            _keep(self._sampled, moment, sampled, _KEPT)
        return sampled


def _keep(kept: dict[int, T], moment: int, value: T, most: int) -> None:
    """Keeps a value; what was kept first goes first."""
    while len(kept) >= most:
        del kept[next(iter(kept))]
    kept[moment] = value
