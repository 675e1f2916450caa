"""Write what NICs and GPUs do to the history, once a minute."""

from __future__ import annotations

from collections.abc import Callable

from probes.facts.node import Node
from probes.live.model.sample import LiveSample
from probes.live.reliability.tally import ComponentTally
from tui.files.reliability.database import HistoryDatabase, HistoryError

WRITE_SECONDS = 60.0


class HistoryRecorder:
    """Sums up samples and writes the sums; reports each reason why it cannot once."""

    def __init__(self, path: str, tell: Callable[[float, str], object]) -> None:
        """`tell`: takes the time in seconds since 1970, and why nothing can be written."""
        self._tally = ComponentTally()
        self._database = HistoryDatabase(path)
        self._tell = tell
        self._told: set[str] = set()
        self._written_at: float | None = None  # by the sample's clock

    def update(self, sample: LiveSample, node: Node) -> None:
        """Add a sample, and write if a minute has passed."""
        self._tally.update(sample, node)
        if self._written_at is None:
            self._written_at = sample.at
        if sample.at - self._written_at >= WRITE_SECONDS:
            self._written_at = sample.at
            self._write()

    def close(self) -> None:
        """Write what is left."""
        self._write()
        self._database.close()

    def _write(self) -> None:
        changes = self._tally.changes()
        if changes is None:
            return
        try:
            self._database.write(changes)
        except HistoryError as error:
            if str(error) not in self._told:
                self._told.add(str(error))
                self._tell(changes.at, str(error))
        else:
            self._tally.forget()
