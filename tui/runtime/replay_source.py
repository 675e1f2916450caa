"""Play a recording: what the screens show at a moment, with the histories up to that moment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from probes.base.history import HISTORY_SECONDS
from probes.recording.replay_host import ReplayHost
from probes.snapshot.nic_roles import roles_of
from tui.runtime.node_monitor import NodeMonitor
from tui.runtime.reading_thread import Probed, Replayed, Report, Sampled

if TYPE_CHECKING:
    from probes.checks.judgment import Judgment
    from probes.live.model.sample import LiveEvent
    from probes.snapshot.examination import Examination

_MOST_MOMENTS = 512  # of the histories
_CACHED = 1024  # moments: those of the histories, and room to move back and forth


class _Shown(NamedTuple):
    """What the screens show of a moment."""

    probed: Probed
    sampled: Sampled


class ReplaySource:
    """A recorded node with a position; `move` and `position` are for the screen's thread."""

    def __init__(self, host: ReplayHost) -> None:
        self._host = host
        self.damage = host.recording.damage
        self.last = len(host.recording.moments) - 1
        self.position = host.recording.opening
        self._shown: int | None = None
        self._monitor = NodeMonitor(host)
        self._read_at: int | None = None  # the moment of the monitor's newest sample
        self._moments: dict[int, _Shown] = {}

    def move(self, moment: int) -> None:
        """Go to a moment, at most to the first or last."""
        self.position = max(0, min(moment, self.last))

    def moment_at(self, taken_at: float) -> int:
        """Return the first moment at or after this time, in seconds since 1970; else the last one."""
        return self._host.recording.moment_at(taken_at)

    def read(self, probe: bool) -> Iterator[Report]:
        """Yield what is new at the next moment, or after a jump everything up to the position."""
        moment, before = self.position, self._shown
        is_full = probe or before is None or moment != before + 1
        reports: list[Probed | Sampled] = []
        probed: Probed | None = None
        if not is_full and before is not None and before in self._moments:
            probed = self._moments[before].probed
        for number in range(self._first(moment) if is_full else moment, moment + 1):
            shown = self._moment(number)
            if shown.probed is not probed:
                probed = shown.probed
                reports.append(probed)
            reports.append(shown.sampled)
        newest = reports[-1]
        if is_full and isinstance(newest, Sampled):  # the last check was at another moment
            reports[-1] = newest._replace(needs_check=True)
        self._shown = moment
        yield Replayed(moment, is_full, tuple(reports))

    def examine(self, probe: bool = False) -> tuple[Examination, Judgment]:
        """Check the node as recorded up to the moment shown."""
        moment = self.position
        if self._read_at != moment:
            self._moments.pop(moment, None)
        shown = self._moment(moment)
        self._host.seek(moment)
        judgment = self._monitor.check(probe)
        examination = self._monitor.examination
        assert examination is not None
        sampled = shown.sampled._replace(judgment=judgment, live=self._monitor.sample, needs_check=False)
        probed = self._probed(shown.probed)
        if probed is not shown.probed:
            self._shown = None  # the paths are others, by NCCL's topology file
        self._moments[moment] = _Shown(probed, sampled)
        return examination, judgment

    def events(self) -> Iterator[tuple[tuple[LiveEvent, ...], float]]:
        """Yield the events of each moment of the recording, as playing finds them, and its time.

        It has a host of its own: another thread may read ahead while the recording is played.
        """
        host = ReplayHost(self._host.recording)
        monitor = NodeMonitor(host)
        for number, moment in enumerate(host.recording.moments):
            if number and monitor.needs_check:
                monitor.check()
            host.seek(number)
            live = monitor.read(moment.probed)
            yield live.events, live.taken_at

    def release(self) -> None:
        """Do nothing: a recording uses no driver."""

    def _first(self, moment: int) -> int:
        """Return the first moment that the histories at this one show, and one more for its rates."""
        first = moment
        oldest = self._host.recording.clock_at(moment) - HISTORY_SECONDS
        while first > 0 and moment - first < _MOST_MOMENTS:
            if self._host.recording.clock_at(first) < oldest:
                break
            first -= 1
        return first

    def _moment(self, moment: int) -> _Shown:
        """Return what a moment shows; rates, events and what lasts need the moments before it."""
        shown = self._moments.get(moment)
        if shown is not None:
            return shown
        if self._read_at is None or self._read_at >= moment:
            self._monitor, self._read_at = NodeMonitor(self._host), None
        for earlier in range(0 if self._read_at is None else self._read_at + 1, moment):
            self._read(earlier)
        return self._read(moment)

    def _read(self, moment: int) -> _Shown:
        monitor = self._monitor
        if monitor.needs_check and self._read_at != self._shown:  # of what is shown, the screen asks itself
            monitor.check()
        self._host.seek(moment)
        live = monitor.read(self._host.recording.moments[moment].probed)
        self._read_at = moment
        assert monitor.reading is not None
        sampled = Sampled(monitor.reading, monitor.judgment, live.taken_at, live, monitor.needs_check)
        earlier = self._moments.get(moment - 1)
        shown = _Shown(self._probed(None if earlier is None else earlier.probed), sampled)
        while len(self._moments) >= _CACHED:
            del self._moments[next(iter(self._moments))]
        self._moments[moment] = shown
        return shown

    def _probed(self, before: Probed | None) -> Probed:
        """Return the monitor's node and paths; `before`, if they are the same."""
        node, topology = self._monitor.node, self._monitor.topology
        assert node is not None
        assert topology is not None
        if before is not None and before.topology is topology:
            return before
        return Probed(node, topology, roles_of(node, topology))
