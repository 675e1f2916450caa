"""What would be measured as its screen shows it: settings, what follows from them, who would feel it.

Knows nothing of Textual.
"""

from __future__ import annotations

from dataclasses import dataclass

from probes.bandwidth.model.planned_test import Series
from probes.bandwidth.model.result import Result, planned_key
from probes.bandwidth.results.against_earlier import baseline_result, newest
from probes.bandwidth.tools.command import Refused
from probes.base.origin import Origin, Source, origin_word
from probes.base.unknown import known
from probes.facts.system.platform import PlatformFacts
from probes.snapshot.examination import Examination
from tui.bandwidth.settings import BandwidthSettings
from widgets.bandwidth.result import draw_last_result
from widgets.bandwidth.series import draw_affected, peer_command
from widgets.bandwidth.setup import draw_planned, draw_settings
from widgets.base.lines import Line, Run, Tone, sentence, wrapped


@dataclass(frozen=True)
class ToRun:
    """A series that is to be run, whatever the settings and plans become until it is."""

    examination: Examination
    series: Series
    is_again: bool = False  # as it was run before, not by the settings
    affected_by: tuple[str, ...] | None = None  # None: nobody has looked yet


class SetupState:
    """Changes only by `take`, what was planned, and the keys' methods."""

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self.chosen = BandwidthSettings()
        self.examination: Examination | None = None
        self.refusal = ""  # why nothing at all is measured here
        self.planned: Series | Refused | None = None
        self.affected_by: tuple[str, ...] = ()  # of what is planned, by the newest reading
        self.to_run: ToRun | None = None
        self.kept: tuple[Result, ...] = ()
        self.baseline: tuple[Result, ...] = ()
        self.now = 0.0  # seconds since 1970, by the node's clock
        self._failure = ""
        self._unread = self._no_baseline = ""  # why, where earlier results or a baseline might be expected

    # What is known

    def take(self, examination: Examination) -> None:
        """Take over what the node is."""
        self.examination, self._failure = examination, ""
        self.chosen.take(examination)

    def fail(self, what: str) -> None:
        """The node could not be looked at, or the tests not be planned."""
        self._failure = what

    def set_earlier(self, kept: tuple[Result, ...], unread: str) -> None:
        """Take over earlier results, or why those that are there could not be read."""
        self.kept, self._unread = kept, unread

    def set_baseline(self, baseline: tuple[Result, ...], why_none: str) -> None:
        """Take over the baseline of this machine type, or why there is none where one might be expected."""
        self.baseline, self._no_baseline = baseline, why_none

    # Changing it

    def change(self, step: int) -> bool:
        """Take the next value of the selected row, or the one before; whether there was one."""
        if not self.chosen.change(step):
            return False
        self._changed()
        return True

    def set_peer(self, text: str) -> str:
        """Take the peer's name; why not, where it is none."""
        why = self.chosen.set_peer(text)
        if not why:
            self._changed()
        return why

    def _changed(self) -> None:
        self.planned, self.affected_by = None, ()
        self.do_not_run()

    # Running it

    @property
    def is_looking(self) -> bool:
        """Whether it is being looked who would feel it, before it is run."""
        return self.to_run is not None and self.to_run.affected_by is None

    @property
    def is_asking(self) -> bool:
        """Whether a person has to say if it is to be run though somebody would feel it."""
        return self.to_run is not None and bool(self.to_run.affected_by)

    def do_not_run(self) -> None:
        """It is not to be run after all."""
        self.to_run = None

    # Drawing

    def head(self) -> list[Line]:
        """On which node, and what is the matter."""
        word = "" if self.origin.source is Source.LIVE else f"  {self.origin.source.name}"
        told, tone = "", Tone.DIM
        if self._failure:
            told, tone = f"✗ {self._failure}", Tone.BAD
        elif self.examination is None and not self.refusal:
            told = "Checking the node …"
        title = (
            Run("Bandwidth test ", Tone.TITLE),
            Run(f" {self.node} ", Tone.CURSOR),
            Run(word, Tone.TITLE),
        )
        return [(*title, Run(f"  {told}", tone))]

    @property
    def hostname(self) -> str:
        """The node's own name; "" where that is not known."""
        platform = None if self.examination is None else self.examination.node.platform
        return known(platform.hostname, "") if isinstance(platform, PlatformFacts) else ""

    @property
    def node(self) -> str:
        """The node's name, for showing."""
        return self.hostname or self.origin.label or "this node"

    def settings(self) -> list[Line]:
        """The rows."""
        return draw_settings(self.chosen.rows(), self.chosen.selected)

    def lines(self, width: int) -> list[Line]:
        """What would be run, and what is known of it."""
        if self.refusal:
            return wrapped(f"gdrtop measures nothing here: {self.refusal}.", width, Tone.WARNING)
        to_run = self.to_run
        if to_run is not None and to_run.affected_by:
            felt = [*draw_affected(to_run.affected_by, width), *self._simulated(width), ()]
            again = wrapped(f"Run again with the same settings: {to_run.series.title}", width, Tone.TITLE)
            return [*felt, *(again if to_run.is_again else []), *self._about(to_run.series, width)]
        if self.planned is None:
            return [] if self.examination is None else [(Run("…", Tone.DIM),)]
        return self._about(self.planned, width, self.affected_by)

    def _simulated(self, width: int) -> list[Line]:
        if self.origin.source is not Source.SIMULATED:
            return []
        return wrapped("The job is simulated. On a real node it would be slowed down.", width, Tone.DIM)

    def _about(self, series: Series | Refused, width: int, affected_by: tuple[str, ...] = ()) -> list[Line]:
        before = self._before(series, width) if isinstance(series, Series) else []
        return draw_planned(series, width, self.hostname, affected_by, before)

    def _before(self, series: Series, width: int) -> list[Line]:
        """The newest results of its first tests on this node, and its machine type's baseline."""
        lines: list[Line] = []
        origin = origin_word(self.origin)
        for test in series.tests[:3]:
            key = planned_key(test)
            for word, found in (
                ("last measured", newest(self.kept, key, self.hostname, origin)),
                ("baseline", baseline_result(self.baseline, key, origin)),
            ):
                if found is not None:
                    label = word if len(series.tests) == 1 else f"{word}, {test.title}:"
                    lines.extend(draw_last_result(found, self.now, width, label))
        for why in (self._unread, self._no_baseline):
            if why:
                lines.extend(wrapped(sentence(why), width, Tone.WARNING))
        return lines

    @property
    def _shown(self) -> Series | Refused | None:
        return self.to_run.series if self.is_asking and self.to_run is not None else self.planned

    def for_peer(self) -> str:
        """The command for the peer; "" where none is needed."""
        series = self._shown
        return peer_command(series.tests[0], self.hostname) if isinstance(series, Series) else ""

    @property
    def question(self) -> Line:
        """What the keys do here, in a sentence."""
        if self.refusal:
            return (Run("q goes back.", Tone.DIM),)
        if self.is_asking:
            return (Run("Run it anyway?  y: run, Esc: do not run", Tone.WARNING),)
        if self.is_looking:
            return (Run("Checking what it would affect …", Tone.DIM),)
        if isinstance(self.planned, Refused):
            return (Run("This cannot run. ↑↓ ←→ change the settings.", Tone.WARNING),)
        return (Run("Enter: run   ↑↓: select a row   ←→: change its value", Tone.DIM),)
