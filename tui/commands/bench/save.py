"""What `gdrtop bench` keeps where it is wished: the baseline of the machine type, and a ticket."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from probes.bandwidth.model.planned_test import LeftOut
from probes.bandwidth.model.result import Result
from probes.bandwidth.results.baseline import below_limit, machine_type
from probes.snapshot.examination import Examination
from tui.actions.guards import node_name
from tui.bandwidth.session import ResultsStore, StoreError
from tui.bandwidth.ticket import ticket_text, versions_of
from tui.commands.bench.exit_status import EXIT_NOT_WRITTEN, below_threshold
from tui.commands.bench.options import BenchOptions
from tui.commands.bench.output import BenchOutput
from tui.files.new_file import NotWritten, write_new
from widgets.bandwidth.result import words_of
from widgets.base.lines import Line, Tone, wrapped


class BenchSaver:
    """Baseline and ticket of one use of `gdrtop bench`."""

    def __init__(
        self,
        output: BenchOutput,
        wanted: BenchOptions,
        store: ResultsStore,
        examination: Examination,
        answers: TextIO | None,
    ) -> None:
        self._output, self._wanted, self._store = output, wanted, store
        self._examination, self._answers = examination, answers
        self._machine = machine_type(examination)

    def keep(self, results: tuple[Result, ...], left_out: Sequence[LeftOut], status: int) -> int:
        """Keeps what is wished; the exit status, another one than 0 where that was not possible."""
        kept_all = not self._wanted.save_baseline or self._save_baseline(results)
        if self._wanted.text_file is not None:
            kept_all = self._write_ticket(self._wanted.text_file, results, left_out) and kept_all
        return status or (0 if kept_all else EXIT_NOT_WRITTEN)

    def _save_baseline(self, results: tuple[Result, ...]) -> bool:
        """Whether they are it now; what is below the bar is never, what is below the line after a yes."""
        low = below_threshold(results, self._wanted.min_gbps)
        if low:
            self._output.warn(f"no baseline saved: below the threshold: {low[0].title}, {words_of(low[0])}")
            return False
        poor = below_limit(results)
        if poor and not self._wanted.yes and not self._may_save(poor):
            told = f"{poor[0].title}, {words_of(poor[0])}, is below the limit of its path"
            self._output.warn(f"no baseline saved: {told} (use --yes to override)")
            return False
        try:
            place = self._store.save_baseline(results)
        except StoreError as error:
            self._output.warn(f"no baseline: {error}")
            return False
        self._output.note(f"baseline of {self._machine}: {place}")
        return True

    def _may_save(self, poor: Sequence[Result]) -> bool:
        if not self._output.can_ask(self._answers):
            return False
        why: list[Line] = []
        for one in poor:
            told = f"below what its way can carry: {one.title}, {words_of(one)}"
            why += wrapped(told, self._output.width, Tone.WARNING)
        self._output.say([(), *why])
        try:
            return self._output.asks(self._answers, why, "Save it as the baseline anyway?")
        except KeyboardInterrupt:  # what was measured is still to be told
            return False

    def _write_ticket(self, path: str, results: tuple[Result, ...], left_out: Sequence[LeftOut]) -> bool:
        text = ticket_text(
            results,
            node_name(self._examination),
            versions_of(self._examination),
            self._store.results(),
            self._store.baseline(self._machine),
            left_out,
        )
        try:
            self._output.note(f"written: {write_new(path, text)}")
        except NotWritten as error:
            self._output.warn(str(error))
            return False
        return True
