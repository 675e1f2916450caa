"""Read live samples of a node without a dashboard."""

from __future__ import annotations

from probes.base.origin import Source
from probes.facts.node import Node
from probes.host.protocol import Host
from probes.live.live_watch import LiveWatch
from probes.live.model.sample import LiveSample
from probes.live.ras.events import RasEvents
from probes.snapshot.rates import Reading
from probes.snapshot.watch import Watch


def recorded_events(host: Host) -> RasEvents:
    """Return the RAS events that a recording has, or of a running node none until they are followed."""
    if host.origin.source is not Source.RECORDED:
        return RasEvents()
    from probes.recording.replay_host import ReplayHost

    if not isinstance(host, ReplayHost):  # a replay that is recorded again, to redact it
        return RasEvents()
    questions = host.recording.answers
    return RasEvents(question.of[0] for question in questions if question.kind == "ras_events")


class LiveReader:
    """A node over time; each `read` is a sample. Rates and debounced values need earlier samples."""

    def __init__(self, host: Host) -> None:
        self._watch = Watch(host)
        self._live = LiveWatch(recorded_events(host))
        self.node: Node | None = None
        self.reading: Reading | None = None
        self.is_probed = False  # the last `read` has probed the whole node

    @property
    def ras(self) -> RasEvents:
        """Return the RAS events in the samples."""
        return self._live.ras

    def read(self, probe: bool = False) -> LiveSample:
        """Return a sample, after probing the node if it has changed or with `probe`."""
        node = self._watch.probe(probe)
        self.is_probed = node is not None
        if node is not None:
            self.node = node
        assert self.node is not None
        self.reading = self._watch.read()
        return self._live.sample(self._watch.host, self.node, self.reading)
