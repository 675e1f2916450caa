"""What the screen of a bandwidth run shows: the running test, its rows, the console, and the results.

Independent of Textual. Bounded: only the newest lines of the console and the newest rows of a test are kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from probes.bandwidth.model.planned_series import PlannedTest, Series
from probes.bandwidth.model.rating import Rating, headline, rate
from probes.bandwidth.model.request import Mode
from probes.bandwidth.model.result import MOST_SAMPLES, Ending, Result, is_measured
from probes.bandwidth.model.samples import Sample
from probes.bandwidth.results.against_earlier import below_limit, changes
from probes.bandwidth.results.comparison import conclusions
from probes.bandwidth.tools.nccl_tests import NcclSettings
from probes.bandwidth.tools.perftest_command import PerftestSettings
from probes.base.origin import Origin
from probes.base.text import plural
from probes.snapshot.examination import Examination
from tui.actions.guards import node_name
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
from tui.bandwidth.impact_check import with_not_started
from tui.files.new_file import file_word
from tui.screens.keys import KEYS
from widgets.bandwidth.chart import Curve, XAxis, curve_of, draw_chart, is_latency, x_axis_of
from widgets.bandwidth.result import draw_result, mark_of, words_of
from widgets.bandwidth.series import draw_for_peer, draw_left_out, peer_command
from widgets.bandwidth.table import draw_matrix, draw_rows
from widgets.base.figures import minutes
from widgets.base.lines import Line, Run, Tone, fit, folded, sentence, wrapped

# The console of a series: what its processes print.

MOST_LINES = 2000


class _Entry(NamedTuple):
    text: str
    process: str
    tone: Tone


class Console:
    """Lines, each with the name of the process that printed it; gdrtop's own lines have no name."""

    def __init__(self, processes: Iterable[str]) -> None:
        self._width = max(map(len, processes), default=0)
        self._entries: deque[_Entry] = deque(maxlen=MOST_LINES)
        self._unshown = 0
        self.count = 0  # of all lines so far, including dropped ones

    def write(self, text: str, process: str = "", tone: Tone = Tone.PLAIN) -> None:
        """Add a line of a process, or of gdrtop."""
        self._entries.append(_Entry(text, process, tone))
        self.count += 1

    def note_unshown(self, lines: int) -> None:
        """Add a warning if more lines were skipped; `lines` counts all of them since the start."""
        if lines > self._unshown:
            self.write(f"▲ {lines - self._unshown} lines skipped: output too fast", tone=Tone.WARNING)
            self._unshown = lines

    def lines(self, width: int, first: int = 0) -> list[Line]:
        """Return the lines from number `first` on, each behind the name of its process."""
        dropped = self.count - len(self._entries)
        lines: list[Line] = []
        if first == 0 and dropped:
            lines.append((Run(f"{dropped} earlier lines were dropped.", Tone.DIM),))
        for entry in list(self._entries)[max(0, first - dropped) :]:
            prefix = f"{entry.process:<{self._width}} │ " if entry.process else ""
            pieces = folded((Run(entry.text, entry.tone),), max(8, width - len(prefix)))
            lines.extend((Run(prefix, Tone.DIM), *piece) for piece in pieces or [()])
        return lines


MOST_COMPARED = 3
_LARGEST_BYTES = 8 << 20  # with perftest's -a


def _first_row(samples: Sequence[Sample], count: int) -> int:
    """Return the number of the first row that is kept, from 1; `count`: of all rows."""
    return max(0, count - len(samples)) + 1


def _tone(samples: Sequence[Sample], test: PlannedTest) -> Tone:
    figure = headline(samples, test.settings)
    if figure is None or figure.gbps is None:
        return Tone.NIC
    verdict = rate(figure, test.limit).verdict
    return {Rating.NEAR: Tone.GOOD, Rating.BELOW: Tone.WARNING}.get(verdict, Tone.NIC)


def _expected_axis(test: PlannedTest) -> XAxis:
    settings = test.settings
    if isinstance(settings, PerftestSettings):
        return XAxis.TIME if settings.is_endless else XAxis.SIZE
    return XAxis.SIZE if isinstance(settings, NcclSettings) else XAxis.NAME


def _span(test: PlannedTest, rows: int) -> tuple[float, float] | None:
    """Return the range of sizes or rows that the test will have, if it is known."""
    settings = test.settings
    if isinstance(settings, NcclSettings):
        return settings.begin_bytes, settings.end_bytes
    if not isinstance(settings, PerftestSettings):
        return None
    if settings.all_sizes:
        return 2, _LARGEST_BYTES
    if not settings.is_endless:
        return None if settings.size_bytes is None else (settings.size_bytes, settings.size_bytes)
    dropped = max(0, rows - MOST_SAMPLES)
    return dropped + 1, dropped + min(MOST_SAMPLES, max(test.end_after_s or 1, rows, 1))


_FEWEST_ROWS = 4  # of the running test, however many results are listed below
_MOST_MARKS = 16


class SeriesState:
    """A series that runs or has ended."""

    def __init__(
        self,
        examination: Examination,
        series: Series,
        origin: Origin,
        node: str,
        clock: Callable[[], float],
        earlier: Sequence[Result] = (),
        baseline: Sequence[Result] = (),
    ) -> None:
        self._examination, self.series, self.origin, self.node = examination, series, origin, node
        self._clock = clock
        self._earlier, self._baseline = tuple(earlier), tuple(baseline)
        self.number = 0  # of the running test, from 1; 0: none has started
        self.results: list[Result] = []
        self.ended: SeriesEnded | None = None
        self.was_seen = False  # the screen has shown the end
        self.wants_end = False
        self.is_leaving = False
        self.console = Console(process.name for test in series.tests for process in test.processes)
        self._samples: deque[Sample] = deque(maxlen=MOST_SAMPLES)
        self._row_count = 0  # of the running test, including dropped rows
        self._row_counts: list[int] = []  # the same for each result
        self._began = clock()
        self._test_began: float | None = None
        self._is_measuring = False
        self._phase = ""
        self._chart_key: tuple[int, ...] = ()
        self._chart: list[Line] = []
        self._is_checking = False  # whom the next test would affect

    # Events

    def apply(self, events: Sequence[BandwidthEvent]) -> None:
        """Update the state by events of the series."""
        for event in events:
            self._apply(event)

    def _apply(self, event: BandwidthEvent) -> None:
        write = self.console.write
        if isinstance(event, ImpactCheckStarted):
            self._is_checking = True
        elif isinstance(event, TestStarted):
            self._is_checking = self._is_measuring = False
            self.number, self._row_count = event.number, 0
            self._samples.clear()
            self._test_began, self._phase = self._clock(), "starting"
            write(f"TEST {event.number}/{len(self.series.tests)} {event.test.title}", tone=Tone.TITLE)
        elif isinstance(event, ProcessStarted):
            self._phase = "connecting" if len(self._test.processes) > 1 else "starting"
            write(f"$ {' '.join(event.argv)}", event.process, Tone.DIM)
        elif isinstance(event, LinePrinted):
            write(event.line, event.process)
        elif isinstance(event, SampleReceived):
            self._is_measuring = True
            self._samples.append(event.sample)
            self._row_count += 1
        elif isinstance(event, TestEnded):
            self.results.append(event.result)
            self._row_counts.append(max(self._row_count, len(event.result.samples)))
            mark = mark_of(event.result)
            write(f"{mark.text} {words_of(event.result)}", tone=mark.tone)
            if event.result.failure:
                write(event.result.failure, tone=Tone.BAD)
        elif isinstance(event, SaveFailed):
            write(f"▲ not saved: {event.reason}", tone=Tone.WARNING)
        elif isinstance(event, SeriesEnded):
            self.ended = event
            if event.refused:
                write(f"✗ {event.refused}", tone=Tone.BAD)
            if event.aborted:
                write(f"▲ {event.aborted}", tone=Tone.WARNING)

    # Progress

    @property
    def _test(self) -> PlannedTest:
        return self.series.tests[max(0, self.number - 1)]

    @property
    def progress(self) -> str:
        """Return the running test and the count: "2/8"."""
        return f"{self.number}/{len(self.series.tests)}" if self.number else "starting"

    @property
    def word(self) -> str:
        """Return what the first line of the overview says about the series; "" once its end was seen."""
        if self.ended is None:
            return f"bandwidth test {self.progress}"
        key = KEYS["bandwidth"].display
        return "" if self.was_seen else f"bandwidth test {self._worst_mark.text} press {key}"

    @property
    def _worst_mark(self) -> Run:
        if self.ended is not None and self.ended.refused:
            return Run("✗", Tone.BAD)
        marks = [mark_of(result) for result in self.results]
        if self.ended is not None and self.ended.aborted:
            marks.append(Run("▲", Tone.WARNING))
        order = (Tone.BAD, Tone.WARNING, Tone.DIM, Tone.PLAIN)
        best = Run("✓", Tone.GOOD) if marks else Run("■", Tone.DIM)
        return next((mark for tone in order for mark in marks if mark.tone is tone), best)

    @property
    def seconds_left(self) -> float:
        """Return about how many seconds the series still takes."""
        rest = sum(test.seconds for test in self.series.tests[max(1, self.number) :])
        elapsed = 0.0 if self._test_began is None else self._clock() - self._test_began
        return rest + max(0.0, self._test.seconds - elapsed)

    def summary(self, width: int) -> list[Line]:
        """Return two lines: the test, and the progress or the outcome."""
        title = self._test.title if self.number and self.ended is None else self.series.title
        first: Line = (Run(title, Tone.TITLE),)
        status = self._progress_runs() if self.ended is None else self._outcome_runs(self.ended)
        return [fit(first, width), fit((*self._marks(), *status), width)]

    def _marks(self) -> list[Run]:
        """Return one mark per test, if there are not too many."""
        if len(self.series.tests) > _MOST_MARKS:
            return []
        marks = [mark_of(result) for result in self.results]
        for number in range(len(marks) + 1, len(self.series.tests) + 1):
            is_running = number == self.number and self.ended is None
            marks.append(Run("▸", Tone.TITLE) if is_running else Run("·", Tone.DIM))
        return [*marks, Run(" ")]

    def _progress_runs(self) -> list[Run]:
        if self.wants_end:
            then = ", then gdrtop quits" if self.is_leaving else ""
            return [Run(f"stopping both ends{then} …", Tone.WARNING)]
        if self._is_checking:
            return [Run(f"test {self.progress} · checking what the next test would affect")]
        elapsed = minutes(self._clock() - self._began)
        if self._is_waiting_for_peer:
            return [Run(f"test {self.progress} · waiting for the peer · {elapsed}", Tone.WARNING)]
        phase = "measuring" if self._is_measuring else self._phase or "starting"
        left = f"about {minutes(self.seconds_left)} left"
        return [Run(f"test {self.progress} · {phase} · {elapsed} · {left}")]

    @property
    def _is_waiting_for_peer(self) -> bool:
        return bool(self._test.for_peer) and not self._is_measuring and self._test.setup is Mode.SERVER

    def _outcome_runs(self, ended: SeriesEnded) -> list[Run]:
        if ended.refused:
            return [Run(f"✗ {ended.refused}", Tone.BAD)]
        if ended.aborted:
            return [Run(f"▲ {ended.aborted}", Tone.WARNING), Run(f" · {self._counts()}")]
        how, counts = "canceled" if ended.was_canceled else "done", self._counts()
        rest = counts.removeprefix(how).removeprefix("; ")
        return [Run(how, Tone.TITLE), Run(f" · {rest}" if rest else "")]

    def _counts(self) -> str:
        """Return how many tests were measured; of a single test, its result."""
        if len(self.series.tests) == 1 and self.results:
            return words_of(self.results[0])
        done = sum(result.ending is Ending.DONE for result in self.results)
        near = sum(result.judgment.verdict is Rating.NEAR for result in self.measured)
        failed = sum(result.ending is Ending.FAILED for result in self.results)
        counts = [f"{done} of {plural(len(self.series.tests), 'test')} measured"]
        if done:
            counts.append(f"{near} near line rate")
        if failed:
            counts.append(f"{failed} failed")
        return ", ".join(counts)

    # Chart and table

    def chart(self, width: int, height: int) -> list[Line]:
        """Return the chart of the running or last test; of a comparison, with all paths to memory.

        Until there are new rows, it is the same list, which the screen need not compare.
        """
        key = (self.number, self._row_count, len(self.results), width, height)
        if key != self._chart_key:
            self._chart_key, self._chart = key, self._draw_chart(width, height)
        return self._chart

    def _draw_chart(self, width: int, height: int) -> list[Line]:
        test, done = self._test, list(zip(self.results, self._row_counts, strict=True))
        samples: Sequence[Sample] = list(self._samples)
        count = self._row_count
        if not samples and done and len(done) >= max(1, self.number):
            samples, count = done[-1][0].samples, done[-1][1]
        perftest = test.settings if isinstance(test.settings, PerftestSettings) else None
        is_endless = perftest is not None and perftest.is_endless
        x_axis = x_axis_of(samples, is_endless) if samples else _expected_axis(test)
        as_latency = is_latency(samples) or (perftest is not None and perftest.is_latency)
        curves: list[Curve] = []
        if self._compares_memories:
            for result, rows in done[: max(0, self.number - 1)]:
                name, tone = result.memory or result.title, mark_of(result).tone
                curves.append(curve_of(name, result.samples, x_axis, tone, _first_row(result.samples, rows)))
        if samples:
            name, tone = test.memory or test.title, _tone(samples, test)
            curves.append(curve_of(name, samples, x_axis, tone, _first_row(samples, count)))
        directions = 2 if perftest and perftest.is_bidirectional and not test.limit.is_loopback else 1
        limit = None if as_latency else test.limit
        has_bus = any(sample.bus_gbps is not None for sample in samples)
        unit = "µs" if as_latency else "bus Gb/s" if has_bus else "Gb/s"
        return draw_chart(curves, limit, width, height, x_axis, unit, directions, _span(test, count))

    @property
    def _compares_memories(self) -> bool:
        """Return whether the series compares memories on one NIC."""
        nics = {test.pair.nic for test in self.series.tests}
        return 1 < len(self.series.tests) <= MOST_COMPARED and len(nics) == 1

    @property
    def table_title(self) -> str:
        """Return the title of the lower pane."""
        return "Rows" if self.ended is None else "Result" if len(self.series.tests) == 1 else "Results"

    def table(self, width: int, height: int) -> list[Line]:
        """Return the newest rows of the running test and the results before it; at the end, all results."""
        if self.ended is not None:
            return self._results(self.ended, width)
        below: list[Line] = []
        for result in self.results:
            mark = mark_of(result)
            below.insert(0, (mark, Run(f" {result.title}  "), Run(words_of(result), mark.tone)))
        below = [(), *below] if below else []
        if not self._samples:
            peer = draw_for_peer(self._test, width, node_name(self._examination))
            begun = "No result yet." if self.number else "Starting."
            text = "Waiting for the peer." if self._is_waiting_for_peer else begun
            return [(Run(text, Tone.DIM),), *peer, *below]
        newest = max(_FEWEST_ROWS, height - 1 - len(below))
        return [*draw_rows(self._samples, width, self._is_latency, newest), *below]

    @property
    def _is_latency(self) -> bool:
        settings = self._test.settings
        return isinstance(settings, PerftestSettings) and settings.is_latency

    def _results(self, ended: SeriesEnded, width: int) -> list[Line]:
        lines: list[Line] = []
        if ended.refused:
            lines += wrapped(f"Nothing was measured: {ended.refused}.", width, Tone.BAD)
        if ended.aborted:
            text = f"The remaining tests were not started: {ended.aborted}"
            lines += [*wrapped(sentence(text), width, Tone.WARNING), ()]
        meaning = conclusions(self.results, self.series.left_out)
        for text in meaning:
            lines += [*wrapped(text, width), ()]
        if len(self.results) > MOST_COMPARED and any(result.pair.nic for result in self.results):
            lines += [*draw_matrix(self.results, width), ()]
        is_single = len(self.series.tests) == 1
        for result in self.results:
            purpose = self._test.purpose if is_single else None
            lines += draw_result(result, changes(result, self._earlier, self._baseline), width, purpose)
        left = len(self.series.tests) - len(self.results)
        if left:
            text = f"{plural(left, 'test')} {'was' if left == 1 else 'were'} not started."
            lines.append((Run(text, Tone.DIM),))
        if self.series.left_out and not meaning:
            lines += draw_left_out(self.series, width)
        if is_single and self.results:
            lines += [(), *draw_rows(self.results[0].samples, width, self._is_latency)]
        return lines

    # The peer

    @property
    def peer_command(self) -> str:
        """Return the command for the peer; "" if none is needed."""
        return peer_command(self._test, node_name(self._examination))

    # Saving

    @property
    def measured(self) -> tuple[Result, ...]:
        """Return the results that can become a baseline."""
        return tuple(result for result in self.results if is_measured(result))

    def baseline_warning(self, baseline: Sequence[Result]) -> str:
        """Return why the user must confirm these results as the baseline; "" if nothing is unusual."""
        measured = self.measured
        low = below_limit(measured)
        if low:
            count = "this is" if len(measured) == 1 else f"{len(low)} of {len(measured)} results are"
            return f"{count} below the limit of the path"
        old = {result.key: result for result in baseline}
        changed = [result for result in measured if old.get(result.key, result) != result]
        if not changed:
            return ""
        more = " and others" if len(changed) > 1 else ""
        return f"the baseline has {words_of(old[changed[0].key])} for {changed[0].title}{more}"

    def text(self) -> str:
        """Return the results as text for a ticket."""
        from tui.bandwidth.ticket import ticket_text, versions_of

        series = self.series
        if self.ended is not None and self.ended.aborted:
            series = with_not_started(series, len(self.results), self.ended.aborted)
        versions = versions_of(self._examination)
        return ticket_text(self.results, self.node, versions, self._earlier, self._baseline, series.left_out)

    @property
    def file_name(self) -> str:
        """Return a name for the text file, without the time."""
        return f"gdrtop-bandwidth-{file_word(self.node)}"
