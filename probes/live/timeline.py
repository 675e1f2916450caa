"""The last hour of samples and events, in bounded memory."""

from __future__ import annotations

from probes.live.sample import LiveEvent, LiveSample

KEPT_SECONDS = 3600.0


class Timeline:
    """Samples by time, compressed, and their events."""

    def add(self, sample: LiveSample) -> None:
        """Append a sample, and drop those older than an hour."""

    @property
    def times(self) -> tuple[float, ...]:
        """The times of the samples, in seconds since 1970, oldest first."""
        return ()

    @property
    def events(self) -> tuple[LiveEvent, ...]:
        """The events, oldest first."""
        return ()

    def at(self, taken_at: float) -> LiveSample | None:
        """Return the newest sample up to this time; None if there is none."""
        return None
