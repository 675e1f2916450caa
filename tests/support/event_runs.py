"""Runs samples through the detector of events, one a second."""

from __future__ import annotations

from dataclasses import replace

from probes.base.unknown import Maybe
from probes.host.protocol import KernelMessage
from probes.live.events.detectors import EventDetector
from probes.live.model.sample import LiveEvent, LiveSample
from tests.support.live_samples import BEGAN, a_sample


class Following:
    """A node that is watched."""

    def __init__(self) -> None:
        self.detector = EventDetector()
        self.now = 0.0
        self.sample: LiveSample = a_sample()

    def see(
        self, sample: LiveSample, seconds: int = 1, messages: Maybe[tuple[KernelMessage, ...]] = ()
    ) -> list[LiveEvent]:
        """Return the events while the node looks like this for some seconds."""
        events: list[LiveEvent] = []
        for _ in range(seconds):
            self.now += 1.0
            now = replace(sample, at=self.now, taken_at=BEGAN + self.now, events=())
            self.sample = self.detector.update(now, messages)
            messages = () if isinstance(messages, tuple) else messages
            events += self.sample.events
        return events


def lasting(node: Following, check: str) -> list[str]:
    """Return the texts of a check's problems that last."""
    return [condition.text for condition in node.sample.watched.conditions if condition.check == check]


def texts(events: list[LiveEvent]) -> list[str]:
    return [event.text for event in events]
