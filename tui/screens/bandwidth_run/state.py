"""A series of tests as its screen shows it: what runs, its rows, what the ends print, what came of it.

Knows nothing of Textual. Bounded: the newest lines of the console and the newest rows of a test are kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from probes.bandwidth.model.planned_test import LeftOut, PlannedTest, Series
from probes.bandwidth.model.rating import Rating
from probes.bandwidth.model.result import MOST_SAMPLES, Ending, Result
from probes.bandwidth.results.against_earlier import changes
from probes.bandwidth.results.baseline import below_limit
from probes.bandwidth.results.comparison import conclusions
from probes.bandwidth.results.memory_path import is_measured
from probes.bandwidth.tools.perftest_command import PerftestSettings
from probes.bandwidth.tools.samples import Sample
from probes.base.origin import Origin, Source
from probes.snapshot.examination import Examination
from tui.actions.guards import node_name
from tui.bandwidth.console import Console
from tui.bandwidth.events import (
    BandwidthEvent,
    ImpactCheckStarted,
    LinePrinted,
    ProcessStarted,
    SampleReceived,
    SaveFailed,
    SeriesEnded,
    TestEnded,
    TestStarted,
)
from tui.bandwidth.series_abort import with_not_started
from tui.screens.bandwidth_run import chart as live_chart
from tui.screens.bandwidth_run.chart import MOST_COMPARED, Rows
from tui.screens.confirm.state import file_word
from widgets.bandwidth.matrix import draw_matrix
from widgets.bandwidth.result import draw_result, mark_of, words_of
from widgets.bandwidth.series import draw_for_peer, draw_left_out, peer_command
from widgets.bandwidth.table import draw_rows
from widgets.base.figures import minutes, plural
from widgets.base.lines import Line, Run, Tone, fit, sentence, wrapped

_FEWEST_ROWS = 4  # of the test under way, however many results stand below


class SeriesState:
    """A series under way or ended; changes only by `take` and what a person wants."""

    def __init__(
        self,
        examination: Examination,
        series: Series,
        origin: Origin,
        node: str,
        clock: Callable[[], float],
        kept: Sequence[Result] = (),
        baseline: Sequence[Result] = (),
    ) -> None:
        self._examination, self.series, self.origin, self.node = examination, series, origin, node
        self._clock = clock
        self._kept, self._baseline = tuple(kept), tuple(baseline)
        self.number = 0  # of the test under way, the first is 1
        self.results: list[Result] = []
        self.ended: SeriesEnded | None = None
        self.was_seen = False  # the end, on the screen
        self.wants_end = False
        self.is_leaving = False
        self.console = Console(end.name for test in series.tests for end in test.processes)
        self._samples: deque[Sample] = deque(maxlen=MOST_SAMPLES)
        self._rows = 0  # of this test, ever
        self._rows_of: list[int] = []  # of each result's test, ever
        self._began = clock()
        self._test_began: float | None = None
        self._row_began: float | None = None
        self._waits = ""
        self._is_looking = False  # who would feel the next test

    # What happens

    def take(self, events: Sequence[BandwidthEvent]) -> None:
        """Take over what the series told."""
        for event in events:
            self._take(event)

    def _take(self, event: BandwidthEvent) -> None:
        if isinstance(event, ImpactCheckStarted):
            self._is_looking = True
        elif isinstance(event, TestStarted):
            self._is_looking = False
            self.number = event.number
            self._samples.clear()
            self._rows = 0
            self._test_began, self._row_began, self._waits = self._clock(), None, "starting"
            self.console.say(
                f"TEST {event.number}/{len(self.series.tests)} {event.test.title}", tone=Tone.TITLE
            )
        elif isinstance(event, ProcessStarted):
            self._waits = "connecting" if len(self._test.processes) > 1 else "starting"
            self.console.say(f"$ {' '.join(event.argv)}", event.end, Tone.DIM)
        elif isinstance(event, LinePrinted):
            self.console.say(event.line, event.end)
        elif isinstance(event, SampleReceived):
            self._row_began = self._clock() if self._row_began is None else self._row_began
            self._samples.append(event.sample)
            self._rows += 1
        elif isinstance(event, TestEnded):
            self._end_test(event.result)
        elif isinstance(event, SaveFailed):
            self.console.say(f"▲ not saved: {event.why}", tone=Tone.WARNING)
        elif isinstance(event, SeriesEnded):
            self.ended = event
            if event.refused:
                self.console.say(f"✗ {event.refused}", tone=Tone.BAD)
            if event.aborted:
                self.console.say(f"▲ {event.aborted}", tone=Tone.WARNING)

    def _end_test(self, result: Result) -> None:
        self.results.append(result)
        self._rows_of.append(max(self._rows, len(result.samples)))
        mark = mark_of(result)
        self.console.say(f"{mark.text} {words_of(result)}", tone=mark.tone)
        if result.trouble:
            self.console.say(result.trouble, tone=Tone.BAD)

    # How far it is

    @property
    def _test(self) -> PlannedTest:
        return self.series.tests[max(0, self.number - 1)]

    @property
    def progress(self) -> str:
        """As "2/8"."""
        return f"{self.number}/{len(self.series.tests)}" if self.number else "starting"

    @property
    def word(self) -> str:
        """What the overview's first line says of it; "" once its end was seen."""
        if self.ended is None:
            return f"bandwidth test {self.progress}"
        return "" if self.was_seen else f"bandwidth test {self._mark.text} press b"

    @property
    def _mark(self) -> Run:
        if self.ended is not None and self.ended.refused:
            return Run("✗", Tone.BAD)
        marks = [mark_of(one) for one in self.results]
        if self.ended is not None and self.ended.aborted:
            marks.append(Run("▲", Tone.WARNING))
        for tone in (Tone.BAD, Tone.WARNING, Tone.DIM, Tone.PLAIN):
            for mark in marks:
                if mark.tone is tone:
                    return mark
        return Run("✓", Tone.GOOD) if marks else Run("■", Tone.DIM)

    @property
    def seconds_left(self) -> float:
        """About how long it goes on."""
        rest = sum(test.seconds for test in self.series.tests[max(1, self.number) :])
        gone = 0.0 if self._test_began is None else self._clock() - self._test_began
        return rest + max(0.0, self._test.seconds - gone)

    def head(self, width: int) -> list[Line]:
        """What is measured and where, and how far it has come."""
        word = "" if self.origin.source is Source.LIVE else f"  {self.origin.source.name}"
        title = self._test.title if self.number and self.ended is None else self.series.title
        first: Line = (
            Run("Bandwidth ", Tone.TITLE),
            Run(f" {self.node} ", Tone.CURSOR),
            Run(word, Tone.TITLE),
            Run(f"  {title}"),
        )
        return [fit(first, width), fit((*self._marks(), *self._now()), width)]

    def _marks(self) -> list[Run]:
        """One mark a test; a long series has its count alone."""
        if len(self.series.tests) > 16:
            return []
        marks: list[Run] = []
        for number in range(1, len(self.series.tests) + 1):
            if number <= len(self.results):
                marks.append(mark_of(self.results[number - 1]))
            else:
                runs = number == self.number and self.ended is None
                marks.append(Run("▸", Tone.TITLE) if runs else Run("·", Tone.DIM))
        return [*marks, Run(" ")]

    def _now(self) -> list[Run]:
        if self.ended is not None:
            if self.ended.refused:
                return [Run(f"✗ {self.ended.refused}", Tone.BAD)]
            if self.ended.aborted:
                return [Run(f"▲ {self.ended.aborted}", Tone.WARNING), Run(f" · {self._summary()}")]
            how, told = "cancelled" if self.ended.was_cancelled else "done", self._summary()
            rest = told.removeprefix(how).removeprefix("; ")
            return [Run(how, Tone.TITLE), Run(f" · {rest}" if rest else "")]
        if self.wants_end:
            leaving = ", then gdrtop quits" if self.is_leaving else ""
            return [Run(f"stopping both ends{leaving} …", Tone.WARNING)]
        if self._is_looking:
            return [Run(f"test {self.progress} · checking what the next test would affect")]
        gone = minutes(self._clock() - self._began)
        left = f"about {minutes(self.seconds_left)} left"
        doing = "measuring" if self._row_began is not None else self._waits or "starting"
        if self._waits_for_peer():
            return [Run(f"test {self.progress} · waiting for the peer · {gone}", Tone.WARNING)]
        return [Run(f"test {self.progress} · {doing} · {gone} · {left}")]

    def _waits_for_peer(self) -> bool:
        return bool(self._test.for_peer) and self._row_began is None and self._test.setup.value == "server"

    def _summary(self) -> str:
        done = sum(one.ending is Ending.DONE for one in self.results)
        near = sum(is_measured(one) and one.judgement.verdict is Rating.NEAR for one in self.results)
        failed = sum(one.ending is Ending.FAILED for one in self.results)
        if len(self.series.tests) == 1 and self.results:
            return words_of(self.results[0])
        told = [f"{done} of {plural(len(self.series.tests), 'test')} measured"]
        told.extend([f"{near} near line rate"] if done else [])
        return ", ".join([*told, f"{failed} failed"] if failed else told)

    # Drawing

    def chart(self, width: int, height: int) -> list[Line]:
        """The rows of the test under way, or of the last; of a comparison all paths to memory."""
        rows = Rows(list(self._samples), self._rows)
        if not rows.samples and self.results and len(self.results) >= max(1, self.number):
            rows = Rows(self.results[-1].samples, self._rows_of[-1])
        done = [Rows(one.samples, ever) for one, ever in zip(self.results, self._rows_of, strict=True)]
        before = list(zip(self.results, done, strict=True))[: max(0, self.number - 1)]
        return live_chart.draw(self.series, self._test, rows, before, width, height)

    @property
    def table_title(self) -> str:
        """What stands in the lower pane."""
        return "Rows" if self.ended is None else "Result" if len(self.series.tests) == 1 else "Results"

    def table(self, width: int, height: int) -> list[Line]:
        """The newest rows of the test under way and the results before it; at the end what it all means."""
        if self.ended is not None:
            return self._end_lines(width)
        done = [
            (mark_of(one), Run(f" {one.title}  "), Run(words_of(one), mark_of(one).tone))
            for one in self.results
        ]
        below: list[Line] = [(), *reversed(done)] if done else []
        heading, *rows = draw_rows(list(self._samples), width, self._test_is_latency) or [
            (Run(self._no_rows(), Tone.DIM),)
        ]
        if self._test.for_peer and not rows:
            below = [*self._peer_lines(width), *below]
        room = max(_FEWEST_ROWS, height - 1 - len(below))
        return [heading, *rows[-room:], *below]

    @property
    def _test_is_latency(self) -> bool:
        settings = self._test.settings
        return isinstance(settings, PerftestSettings) and settings.is_latency

    def _no_rows(self) -> str:
        if self._waits_for_peer():
            return "Waiting for the peer."
        return "No result yet." if self.number else "Starting."

    def _peer_lines(self, width: int) -> list[Line]:
        return draw_for_peer(self._test, width, node_name(self._examination))

    def for_peer(self) -> str:
        """The command for the peer; "" where none is needed."""
        return peer_command(self._test, node_name(self._examination))

    def _end_lines(self, width: int) -> list[Line]:
        assert self.ended is not None
        lines: list[Line] = []
        if self.ended.refused:
            lines.extend(wrapped(f"Nothing was measured: {self.ended.refused}.", width, Tone.BAD))
        if self.ended.aborted:
            told = f"The remaining tests were not started: {self.ended.aborted}"
            lines.extend([*wrapped(sentence(told), width, Tone.WARNING), ()])
        meant = conclusions(self.results, self.series.left_out)
        for one in meant:
            lines.extend([*wrapped(one, width), ()])
        if len(self.results) > MOST_COMPARED and any(one.pair.nic for one in self.results):
            lines.extend([*draw_matrix(self.results, width), ()])
        for result in self.results:
            purpose = self._test.purpose if len(self.series.tests) == 1 else None
            lines.extend(draw_result(result, changes(result, self._kept, self._baseline), width, purpose))
        begun = len(self.results)
        if begun < len(self.series.tests):
            left = len(self.series.tests) - begun
            verb = "was" if left == 1 else "were"
            lines.append((Run(f"{plural(left, 'test')} {verb} not started.", Tone.DIM),))
        if self.series.left_out and not meant:
            lines.extend(draw_left_out(self.series, width))
        if len(self.series.tests) == 1 and self.results:
            lines.extend([(), *draw_rows(self.results[0].samples, width, self._test_is_latency)])
        return lines

    # Keeping

    def why_ask(self, baseline: Sequence[Result]) -> str:
        """Why these results had better not become the baseline unasked; "" where nothing is odd."""
        below = below_limit(self.done)
        if below:
            count = "this is" if len(self.done) == 1 else f"{len(below)} of {len(self.done)} results are"
            return f"{count} below the limit of the path"
        kept = {one.key: one for one in baseline}
        others = [one for one in self.done if kept.get(one.key, one) != one]
        if not others:
            return ""
        told = words_of(kept[others[0].key])
        return f"the baseline has {told} for {others[0].title}" + " and others" * (len(others) > 1)

    def text(self) -> str:
        """All of it for a ticket."""
        from tui.bandwidth.ticket import ticket_text, versions_of

        return ticket_text(
            self.results,
            self.node,
            versions_of(self._examination),
            self._kept,
            self._baseline,
            self._left_out,
        )

    @property
    def _left_out(self) -> tuple[LeftOut, ...]:
        """For a ticket, also what was not begun because somebody had come."""
        if self.ended is None or not self.ended.aborted:
            return self.series.left_out
        return with_not_started(self.series, len(self.results), self.ended.aborted).left_out

    @property
    def done(self) -> tuple[Result, ...]:
        """What can be a baseline."""
        return tuple(one for one in self.results if is_measured(one))

    @property
    def file_name(self) -> str:
        """A name for the text's file, but for the time."""
        return f"gdrtop-bandwidth-{file_word(self.node)}"
