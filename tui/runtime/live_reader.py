"""Read live samples of a node without a dashboard."""

from __future__ import annotations

from probes.facts.node import Node
from probes.host.protocol import Host
from probes.live.live_watch import LiveWatch
from probes.live.sample import LiveSample
from probes.snapshot.rates import Reading
from probes.snapshot.watch import Watch


class LiveReader:
    """A node over time; each `read` is a sample. Rates and debounced values need earlier samples."""

    def __init__(self, host: Host) -> None:
        self._watch = Watch(host)
        self._live = LiveWatch()
        self.node: Node | None = None
        self.reading: Reading | None = None
        self.is_probed = False  # the last `read` has probed the whole node

    def read(self, probe: bool = False) -> LiveSample:
        """Return a sample, after probing the node if it has changed or with `probe`."""
        node = self._watch.probe(probe)
        self.is_probed = node is not None
        if node is not None:
            self.node = node
        assert self.node is not None
        self.reading = self._watch.read()
        return self._live.sample(self._watch.host, self.node, self.reading)
