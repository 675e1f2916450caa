"""A live view that shows the samples and events of a test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from probes.base.evidence import Severity
from probes.facts.node import Node
from probes.host.protocol import Host
from probes.live.events.conditions import Conditions
from probes.live.model.sample import EventKind, LiveEvent, LiveSample
from probes.snapshot.rates import Reading

Scripted = Callable[..., None]
"""Takes `sample_of` and `events_of`, functions of the second."""


def port_down(at: float, severity: Severity) -> LiveEvent:
    """Return the event of a port that went down."""
    return LiveEvent(at, EventKind.PORT_STATE, severity, "mlx5_3", "mlx5_3 went down", "Check the cable.")


class ScriptedWatch:
    """Stand for LiveSampler: the sample and the events of each second come from functions."""

    def __init__(
        self, sample_of: Callable[[int], LiveSample], events_of: Callable[[int], Sequence[Severity]]
    ) -> None:
        self._sample_of, self._events_of = sample_of, events_of
        self.count = 0
        self._conditions = Conditions()

    def sample(self, host: Host, node: Node, reading: Reading) -> LiveSample:
        """Return the next sample with the time of the host."""
        at = host.wall_clock()
        events = tuple(port_down(at, severity) for severity in self._events_of(self.count))
        taken = replace(self._sample_of(self.count), at=reading.at, taken_at=at, events=events)
        self.count += 1
        return replace(taken, watched=self._conditions.update(taken))
