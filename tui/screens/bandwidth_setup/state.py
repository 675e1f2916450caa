"""What the setup screen of bandwidth tests shows: settings, planned tests, and whom they would affect.

Independent of Textual.
"""

from __future__ import annotations

from probes.bandwidth.model.command import Refused
from probes.bandwidth.model.planned_series import Series
from probes.bandwidth.model.result import Result, planned_key
from probes.bandwidth.results.against_earlier import baseline_result, newest
from probes.base.frozen import frozen
from probes.base.origin import Origin, Source, origin_word
from probes.base.unknown import known
from probes.facts.system.platform import PlatformFacts
from probes.snapshot.examination import Examination
from tui.bandwidth.settings import BandwidthSettings
from widgets.bandwidth.result import draw_last_result
from widgets.bandwidth.series import draw_affected, draw_planned, draw_settings, peer_command
from widgets.base.lines import Line, Run, Tone, sentence, wrapped

_MOST_EARLIER = 3  # tests of a series whose earlier results are shown


@frozen
class ToRun:
    """A series that is about to run; later changes of the settings do not change it."""

    examination: Examination
    series: Series
    is_again: bool = False  # an earlier series, which the settings may not match
    affected_by: tuple[str, ...] | None = None  # None: not checked yet


class BandwidthSetupState:
    """The settings, and what follows from them."""

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self.chosen = BandwidthSettings()
        self.examination: Examination | None = None
        self.refusal = ""  # why no test can run here
        self.planned: Series | Refused | None = None
        self.affected_by: tuple[str, ...] = ()  # the planned series, by the newest reading
        self.to_run: ToRun | None = None
        self.earlier: tuple[Result, ...] = ()
        self.baseline: tuple[Result, ...] = ()
        self.now = 0.0  # seconds since 1970, by the node's clock
        self._failure = ""
        self._unread = self._no_baseline = ""  # why earlier results, or a baseline, are missing

    # Facts

    def set_examination(self, examination: Examination) -> None:
        """Set the facts of the node."""
        self.examination, self._failure = examination, ""
        self.chosen.set_examination(examination)

    def fail(self, message: str) -> None:
        """Note that the node could not be read, or the tests could not be planned."""
        self._failure = message

    def set_earlier(self, earlier: tuple[Result, ...], unread: str) -> None:
        """Set the earlier results, or why existing ones could not be read."""
        self.earlier, self._unread = earlier, unread

    def set_baseline(self, baseline: tuple[Result, ...], why_none: str) -> None:
        """Set the baseline of this machine type, or why there is none although one might be expected."""
        self.baseline, self._no_baseline = baseline, why_none

    # Changes

    def change(self, step: int) -> bool:
        """Change the selected setting to its next or previous value; return whether it has another."""
        if not self.chosen.change(step):
            return False
        self._forget_plan()
        return True

    def set_peer(self, text: str) -> str:
        """Set the name of the peer; return an error message if it is not valid, else ""."""
        error = self.chosen.set_peer(text)
        if not error:
            self._forget_plan()
        return error

    def _forget_plan(self) -> None:
        self.planned, self.affected_by = None, ()
        self.cancel_run()

    # The run

    @property
    def is_checking(self) -> bool:
        """Return whether gdrtop is checking whom the series would affect."""
        return self.to_run is not None and self.to_run.affected_by is None

    @property
    def is_asking(self) -> bool:
        """Return whether a person must confirm that running jobs may be affected."""
        return self.to_run is not None and bool(self.to_run.affected_by)

    def cancel_run(self) -> None:
        """Do not run the series that was about to run."""
        self.to_run = None

    # Text

    def summary(self) -> list[Line]:
        """Return what is missing, if anything is."""
        if self._failure:
            return [(Run(f"✗ {self._failure}", Tone.BAD),)]
        if self.examination is None and not self.refusal:
            return [(Run("Checking the node …", Tone.DIM),)]
        return []

    @property
    def hostname(self) -> str:
        """Return the host name; "" if it is unknown."""
        platform = None if self.examination is None else self.examination.node.platform
        return known(platform.hostname, "") if isinstance(platform, PlatformFacts) else ""

    @property
    def node(self) -> str:
        """Return a name of the node for display."""
        return self.hostname or self.origin.label or "this node"

    def settings(self) -> list[Line]:
        """Return the settings, a line each."""
        return draw_settings(self.chosen.rows(), self.chosen.selected)

    def lines(self, width: int) -> list[Line]:
        """Return the planned tests, or those that are about to run."""
        if self.refusal:
            return wrapped(f"No test can run here: {self.refusal}.", width, Tone.WARNING)
        if self.to_run is not None and self.to_run.affected_by:
            return self._draw(self.to_run.series, width)
        if self.planned is None:
            return [] if self.examination is None else [(Run("…", Tone.DIM),)]
        return self._draw(self.planned, width, self.affected_by)

    def question_lines(self, to_run: ToRun, width: int) -> list[Line]:
        """Return the question whether a series may affect running jobs."""
        lines = draw_affected(to_run.affected_by or (), width)
        if self.origin.source is Source.SIMULATED:
            text = "The job is simulated. On a real node it would slow down."
            lines += wrapped(text, width, Tone.DIM)
        words = "Run again with the same settings: " if to_run.is_again else ""
        return [*lines, (), *wrapped(f"{words}{to_run.series.title}", width, Tone.TITLE), ()]

    def _draw(self, series: Series | Refused, width: int, affected: tuple[str, ...] = ()) -> list[Line]:
        earlier = self._earlier_lines(series, width) if isinstance(series, Series) else []
        return draw_planned(series, width, self.hostname, affected, earlier)

    def _earlier_lines(self, series: Series, width: int) -> list[Line]:
        """Return the newest results of the first tests on this node, and their baseline."""
        lines: list[Line] = []
        origin = origin_word(self.origin)
        for test in series.tests[:_MOST_EARLIER]:
            key = planned_key(test)
            for label, result in (
                ("last measured", newest(self.earlier, key, self.hostname, origin)),
                ("baseline", baseline_result(self.baseline, key, origin)),
            ):
                if result is not None:
                    title = f", {test.title}:" if len(series.tests) > 1 else ""
                    lines += draw_last_result(result, self.now, width, f"{label}{title}")
        for why in (self._unread, self._no_baseline):
            if why:
                lines += wrapped(sentence(why), width, Tone.WARNING)
        return lines

    @property
    def peer_command(self) -> str:
        """Return the command for the peer; "" if none is needed."""
        series = self.to_run.series if self.to_run is not None and self.is_asking else self.planned
        return peer_command(series.tests[0], self.hostname) if isinstance(series, Series) else ""

    @property
    def question(self) -> Line:
        """Return what the keys do here, as a sentence."""
        if self.refusal:
            return (Run("q goes back.", Tone.DIM),)
        if self.is_checking:
            return (Run("Checking what it would affect …", Tone.DIM),)
        if isinstance(self.planned, Refused):
            return (Run("This cannot run. ↑↓ ←→ change the settings.", Tone.WARNING),)
        return (Run("Enter: run   ↑↓: select a row   ←→: change its value", Tone.DIM),)
