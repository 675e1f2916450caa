"""Write what NICs and GPUs do to the history, once a minute."""

from __future__ import annotations

from collections.abc import Callable

from probes.facts.node import Node
from probes.live.model.sample import LiveSample
from probes.live.reliability import ComponentTally
from tui.files.reliability.database import HistoryDatabase, HistoryError, HistoryInUse

WRITE_SECONDS = 60.0


class HistoryRecorder:
    """Sums up samples and writes the sums; reports each reason why it cannot once, and never fails."""

    def __init__(self, path: str, tell: Callable[[float, str], object]) -> None:
        """`tell`: takes the time in seconds since 1970, and why nothing can be written."""
        self._tally = ComponentTally()
        self._database = HistoryDatabase(path)
        self._tell = tell
        self._told: set[str] = set()
        self._written_at: float | None = None  # by the sample's clock
        self._taken_at = 0.0  # seconds since 1970, of the newest sample

    def update(self, sample: LiveSample, node: Node) -> None:
        """Add a sample, and write if a minute has passed."""
        self._taken_at = sample.taken_at
        if self._written_at is None:
            self._written_at = sample.at
        is_due = sample.at - self._written_at >= WRITE_SECONDS
        if is_due:
            self._written_at = sample.at
        try:
            self._tally.update(sample, node)
            if is_due:
                self._write()
        except Exception as error:
            self._report(error)

    def close(self) -> None:
        """Write what is left."""
        try:
            self._write()
        except Exception as error:
            self._report(error)
        self._database.close()

    def _write(self) -> None:
        changes = self._tally.changes()
        if changes is not None:
            try:
                self._database.write(changes)
            except HistoryInUse:
                self._tally.forget()
                raise
            self._tally.forget()

    def _report(self, error: Exception) -> None:
        is_known = isinstance(error, HistoryError)
        text = str(error) if is_known else f"an error in gdrtop ({type(error).__name__})"
        if text not in self._told:
            self._told.add(text)
            self._tell(self._taken_at, text)
