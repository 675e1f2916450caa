"""What `gdrtop bench` saves on request: the baseline of the machine type, and a text for a ticket."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from probes.bandwidth.model.planned_series import LeftOut
from probes.bandwidth.model.result import Result
from probes.bandwidth.results.against_earlier import below_limit, machine_type
from probes.snapshot.examination import Examination
from tui.actions.guards import node_name
from tui.bandwidth.results_store import ResultsStore, StoreError
from tui.bandwidth.ticket import ticket_text, versions_of
from tui.commands.bench.exit_status import EXIT_NOT_WRITTEN, below_threshold
from tui.commands.bench.options import BenchOptions
from tui.commands.bench.output import BenchOutput
from tui.files.new_file import NotWritten, write_new
from widgets.bandwidth.result import words_of
from widgets.base.lines import Line, Tone, wrapped


class BenchSaver:
    """Saves the baseline and the ticket, if the options ask for them."""

    def __init__(
        self,
        output: BenchOutput,
        options: BenchOptions,
        store: ResultsStore,
        examination: Examination,
        answers: TextIO | None,
    ) -> None:
        self._output, self._options, self._store = output, options, store
        self._examination, self._answers = examination, answers
        self._machine = machine_type(examination)

    def save(self, results: tuple[Result, ...], left_out: Sequence[LeftOut], status: int) -> int:
        """Save what was requested; return the exit status: `status`, or not 0 if saving failed."""
        is_saved = not self._options.save_baseline or self._save_baseline(results)
        if self._options.text is not None:
            is_saved = self._write_ticket(self._options.text, results, left_out) and is_saved
        return status or (0 if is_saved else EXIT_NOT_WRITTEN)

    def _save_baseline(self, results: tuple[Result, ...]) -> bool:
        """Save unless a result is below --min-gbps; ask first if one is below the limit of its path."""
        low = below_threshold(results, self._options.min_gbps)
        if low:
            self._output.warn(f"baseline not saved: {low[0].title}, {words_of(low[0])}, below the threshold")
            return False
        low = list(below_limit(results))
        if low and not self._options.yes and not self._confirm(low):
            text = f"{low[0].title}, {words_of(low[0])}, is below the limit of its path"
            self._output.warn(f"baseline not saved: {text} (use --yes to override)")
            return False
        try:
            place = self._store.save_baseline(results)
        except StoreError as error:
            self._output.warn(f"baseline not saved: {error}")
            return False
        self._output.note(f"baseline of {self._machine}: {place}")
        return True

    def _confirm(self, low: Sequence[Result]) -> bool:
        if not self._output.can_ask(self._answers):
            return False
        why: list[Line] = []
        for result in low:
            text = f"below the limit of its path: {result.title}, {words_of(result)}"
            why += wrapped(text, self._output.width, Tone.WARNING)
        self._output.show([(), *why])
        try:
            return self._output.ask(self._answers, why, "Save it as the baseline anyway?")
        except KeyboardInterrupt:  # the results must still be printed
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
