"""What changed between samples, as events; debounced."""

from __future__ import annotations

from probes.base.unknown import Maybe
from probes.host.kernel_messages import KernelMessage
from probes.live.sample import LiveSample


class EventDetector:
    """Compare each sample with the ones before."""

    def update(self, sample: LiveSample, messages: Maybe[tuple[KernelMessage, ...]]) -> LiveSample:
        """Return the sample with its events."""
        return sample
