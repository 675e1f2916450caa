"""Play a recording: what the screens show at a moment, with the histories up to that moment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeVar

from probes.base.history import HISTORY_SECONDS
from probes.facts.node import probe_node
from probes.live.live_watch import LiveWatch
from probes.live.verdict import examine_with_jobs, with_jobs
from probes.nccl.topology_file import tree_in_use
from probes.recording.replay_host import ReplayHost
from probes.snapshot.nic_roles import roles_of
from probes.snapshot.rates import read
from probes.snapshot.verdict import ServedCache, judge
from probes.topology.paths import build
from tui.runtime.live_reader import recorded_events
from tui.runtime.sampler import Probed, Replayed, Report, Sampled

if TYPE_CHECKING:
    from probes.base.unknown import Maybe
    from probes.live.model.sample import LiveSample
    from probes.nccl.topology_file import TopologyFileFacts
    from probes.snapshot.examination import Examination
    from probes.snapshot.rates import Reading

_WARM_UP = 15  # moments before the first one that is watched after a jump
_CACHED = 1024  # readings: those of the histories, and room to move back and forth
_CACHED_SAMPLES = 600
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
        self._live = self._new_watch()
        self._watched: int | None = None  # the moment of the newest sample of `_live`
        self._live_samples: dict[int, LiveSample] = {}
        self._files: Maybe[TopologyFileFacts] | None = None
        self._served = ServedCache()

    def _new_watch(self) -> LiveWatch:
        return LiveWatch(recorded_events(self._host))

    def move(self, moment: int) -> None:
        """Go to a moment, at most to the first or last."""
        self.position = max(0, min(moment, self.last))

    def moment_at(self, taken_at: float) -> int:
        """Return the first moment at or after this time, in seconds since 1970; else the last one."""
        moments = self._host.recording.moments
        return next((number for number, moment in enumerate(moments) if moment.at >= taken_at), self.last)

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
        moment = self.position
        node, live = self._probe(moment).node, self._sample(moment).live
        self._host.seek(moment)
        examination = examine_with_jobs(self._host, node, sample=live)
        if examination.topology_files != self._files:  # the verdicts so far did not use them
            if tree_in_use(examination.topology_files) != tree_in_use(self._files):
                self._probed.clear()
                self._shown = None
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
            topology = build(node, tree_in_use(self._files))
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
            verdict = judge(probed.node, probed.topology, reading, before, self._files, self._served)
            sampled = Sampled(reading, verdict, self._host.wall_clock())
            _cache(self._sampled, moment, sampled, _CACHED)
        live = self._live_sample(moment, sampled.reading)
        return sampled._replace(verdict=with_jobs(sampled.verdict, live.processes, live.jobs), live=live)

    def _live_sample(self, moment: int, reading: Reading) -> LiveSample:
        """Return the live sample of a moment; rates and events need the moments before it."""
        sample = self._live_samples.get(moment)
        if sample is not None:
            return sample
        if self._watched is None or self._watched != moment - 1:
            self._live = self._new_watch()
            for earlier in range(max(0, moment - _WARM_UP), moment):
                self._watch(earlier, self._reading(earlier))
        return self._watch(moment, reading)

    def _watch(self, moment: int, reading: Reading) -> LiveSample:
        node = self._probe(moment).node
        self._host.seek(moment)
        sample = self._live.sample(self._host, node, reading)
        self._watched = moment
        _cache(self._live_samples, moment, sample, _CACHED_SAMPLES)
        return sample

    def _reading(self, moment: int) -> Reading:
        sampled = self._sampled.get(moment)
        if sampled is not None:
            return sampled.reading
        node = self._probe(moment).node
        self._host.seek(moment)
        return read(self._host, node, with_interfaces=True)


def _cache(cached: dict[int, T], moment: int, value: T, most: int) -> None:
    """Cache a value; drop the oldest ones."""
    while len(cached) >= most:
        del cached[next(iter(cached))]
    cached[moment] = value
