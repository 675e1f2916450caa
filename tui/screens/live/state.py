"""The state of the Live screen: the last hour, the moment that is shown, selection and filter.

It does not use Textual. It is loaded with the first sample, because it imports the probes.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from functools import partial

from probes.base.history import History
from probes.base.latest import Latest
from probes.base.unknown import Unknown
from probes.checks.judgment import Judgment
from probes.live.model.sample import LiveEvent, LiveSample
from probes.live.timeline import KEPT_SECONDS, Timeline
from tui.runtime.node_monitor import with_judgment
from tui.screens.own_settings import HIDE, SORT
from tui.settings.current import current
from widgets.base.columns import ColumnWidths
from widgets.base.figures import local_time, minutes
from widgets.base.lines import LazyLines, Line, Run, Tone, as_text, cut, paragraphs, plain, width_of, wrapped
from widgets.live import changes, detail, gpus, job_lines, job_traffic, nics, ranks
from widgets.live.columns import COLUMNS, names_in, titles_of
from widgets.live.figures import memory_peers, rate_of
from widgets.node import verdict as verdict_drawing

PANES = ("ranks", "nics", "gpus", "changes")
_GRAPH_SECONDS = 120.0
_BEFORE_SECONDS = 10.0
_MOST_SAMPLES = 4096  # of a graph
_MOST_JOBS = 32  # whose traffic is kept
_TEXT_WIDTH = 160  # of a written file


class LiveState:
    """Samples, and which of them is shown; only `add` and the methods of keys change it."""

    def __init__(self) -> None:
        self.timeline = Timeline()
        self.newest: LiveSample | None = None
        self.word = ""  # rows of a pane must contain it
        self.filtered = "changes"
        self.selected = dict.fromkeys(PANES, "")
        self.focused = PANES[0]  # only its selected row is marked
        self._shown_at: float | None = None  # a moment of the past, seconds since 1970; None: now
        self._past: LiveSample | None = None
        self._later: list[LiveEvent] = []  # of a recording that was rewound
        self._recorded: list[LiveEvent] = []  # of a recording, also of moments that were not played yet
        self._read_to = 0.0  # until when, seconds since 1970; 0: it was not read ahead
        self._graphs: defaultdict[str, History] = defaultdict(_hour)  # by port
        self._traffic: dict[str, tuple[History, History]] = {}  # sent and received, by job
        self._drawn: defaultdict[str, Latest[Sequence[Line]]] = defaultdict(Latest)  # by pane
        self._widths = {pane: ColumnWidths() for pane in ("ranks", "nics", "gpus")}
        self.hidden = {pane: tuple(names_in(_configured(HIDE, pane))) for pane in COLUMNS}  # names of columns
        self.sorts = {pane: _configured(SORT, pane) for pane in COLUMNS}  # "": worst first
        self._changes: Latest[list[changes.Change]] = Latest()
        self._order: defaultdict[str, Latest[list[str]]] = defaultdict(Latest)  # by pane

    def add(self, sample: LiveSample) -> None:
        """Append a sample; a recording that was rewound continues with an earlier one."""
        if self.newest is not None and sample.at <= self.newest.at:
            self._graphs.clear()
            self._traffic.clear()
            self._later = [event for event in self._all_events if event.at > sample.taken_at]
        self.timeline.add(sample)
        self.newest = sample
        if sample.events or self._later:
            self._later = [event for event in self._later if event.at > sample.taken_at]
        for port in sample.ports:
            self._graphs[port.name].add(sample.at, rate_of(port))
        self._add_traffic(sample)

    def _add_traffic(self, sample: LiveSample) -> None:
        jobs = job_traffic.jobs_with_traffic(sample)[:_MOST_JOBS]
        if len(self._traffic) > _MOST_JOBS:  # some of them have ended
            self._traffic = {job.id: self._traffic[job.id] for job in jobs if job.id in self._traffic}
        for job in jobs:
            sent, received = self._traffic.setdefault(job.id, (_hour(), _hour()))
            sent.add(sample.at, job.sent_gbps)
            received.add(sample.at, job.received_gbps)

    def judge(self, judgment: Judgment) -> None:
        """Show what a check says about the newest sample."""
        if self.newest is not None:
            self.newest = with_judgment(self.newest, judgment)
            self.timeline.replace_newest(self.newest)

    # Time

    @property
    def is_past(self) -> bool:
        """Whether a moment of the past is shown."""
        return self._shown_at is not None

    @property
    def sample(self) -> LiveSample | None:
        """The sample that is shown."""
        return self.newest if self._shown_at is None else self._past

    @property
    def shown_at(self) -> float:
        """The time of what is shown, in seconds since 1970; 0 before the first sample."""
        sample = self.sample
        return 0.0 if sample is None else sample.taken_at

    def step(self, count: int) -> None:
        """Go back (negative) or forward by a number of samples; the newest one is now."""
        times = self.timeline.times
        if times:
            self._show(times, self._place(times) + count)

    def go_to_end(self, side: int) -> None:
        """Go to the oldest sample (-1), or back to now (1)."""
        times = self.timeline.times
        if times:
            self._show(times, self._now(times) if side > 0 else 0)

    def next_event(self, side: int, is_local: bool = True) -> LiveEvent | None:
        """Select the next event (1) or the one before (-1), and return it; show its moment if `is_local`."""
        times = self.timeline.times
        event = self._event_beside(times, side, is_local) if times else None
        if event is not None:
            if is_local:
                self._show(times, bisect_left(times, event.at))
            row = next((row for row in self.listed_changes if event in row.events), None)
            self.selected["changes"] = changes.key_of(event if row is None else row.first)
        return event

    def add_recorded(self, events: Sequence[LiveEvent], read_to: float) -> None:
        """Append events of a recording that is read ahead; `read_to`: infinite at its end."""
        self._recorded += events
        self._read_to = read_to

    def knows_event(self, side: int) -> bool:
        """Return whether the recording was read as far as the next event (1), or the one before (-1)."""
        if side < 0:
            return self.shown_at <= self._read_to
        is_next = any(self.shown_at < event.at <= self._read_to for event in self.events)
        return is_next or self._read_to == math.inf

    def _event_beside(self, times: tuple[float, ...], side: int, is_local: bool) -> LiveEvent | None:
        """Return the first event after the sample that is shown, or the last one of the samples before."""
        if side > 0:
            return next((event for event in self.events if event.at > self.shown_at), None)
        if is_local and not self.is_past:
            return self.events[-1] if self.events else None
        place = self._place(times)
        bound = times[place - 1] if place else self.shown_at - 1.0
        return next((event for event in reversed(self.events) if event.at <= bound), None)

    def _place(self, times: tuple[float, ...]) -> int:
        """Return the index of the sample that is shown."""
        if self._shown_at is None:
            return self._now(times)
        return max(0, bisect_right(times, self._shown_at) - 1)

    def _now(self, times: tuple[float, ...]) -> int:
        """Return the index of the newest sample; of big nodes, the timeline does not keep every one."""
        is_kept = self.newest is not None and times[-1] == self.newest.taken_at
        return len(times) - is_kept

    def _show(self, times: tuple[float, ...], place: int) -> None:
        place = max(0, place)
        if place >= self._now(times):
            self._shown_at = self._past = None
            return
        self._shown_at = times[place]
        self._past = self.timeline.at(self._shown_at)

    # Selection and filter

    @property
    def _all_events(self) -> list[LiveEvent]:
        played = [*self.timeline.events, *self._later]
        if not self._read_to:
            return played
        return [*self._recorded, *(event for event in played if event.at > self._read_to)]

    @property
    def events(self) -> list[LiveEvent]:
        """The events that match the filter, oldest first."""
        events = self._all_events
        word = self._word_of("changes")
        return [event for event in events if changes.matches(event, word)] if word else events

    @property
    def listed_changes(self) -> list[changes.Change]:
        """The events that match the filter, newest first, one row for one cause."""
        events = self._all_events
        now = len(events), events[-1] if events else None, self._word_of("changes")
        return self._changes.get(lambda: changes.changes_of(reversed(self.events)), values=now)

    def filter(self, word: str, pane: str = "") -> None:
        """List only rows of a pane that contain the word; "": of the pane that is filtered."""
        self.word, self.filtered = word.strip().lower(), pane or self.filtered

    def _word_of(self, pane: str) -> str:
        return self.word if pane == self.filtered else ""

    def order(self, pane: str) -> list[str]:
        """Return the keys of a pane's rows, from the top."""
        events = self._all_events if pane == "changes" else ()
        now = len(events), events[-1] if events else None, self._word_of(pane), self.sorts.get(pane)
        return self._order[pane].get(lambda: self._keys(pane), objects=(self.sample,), values=now)

    def _keys(self, pane: str) -> list[str]:
        sample = self.sample
        if pane == "changes":
            return [changes.key_of(change.first) for change in self.listed_changes]
        if sample is None:
            return []
        sort = self.sorts[pane]
        if pane == "ranks":
            rows = ranks.sorted_rows(sample, sort, self._past_events(sample))
            keys = [str(process.pid) for process in rows]
        elif pane == "nics":
            keys = [port.name for port in nics.sorted_rows(sample, sort)]
        else:
            keys = [gpu.bdf for gpu in gpus.sorted_rows(sample, sort)]
        word = self._word_of(pane)
        if not word:
            return keys
        whole = self._draw_table(pane, sample, _TEXT_WIDTH, "")
        matching = {run.id for line in whole if word in plain(line).lower() for run in line}
        return [key for key in keys if key in matching]

    def _past_events(self, sample: LiveSample) -> list[LiveEvent]:
        return [event for event in self.timeline.events if event.at <= sample.taken_at + 1.0]

    def select(self, pane: str, step: int) -> None:
        """Move the selection of a pane by a number of rows."""
        order = self.order(pane)
        if order:
            selected = self.selected[pane]
            at = order.index(selected) + step if selected in order else 0 if step > 0 else len(order) - 1
            self.selected[pane] = order[max(0, min(len(order) - 1, at))]

    def keep_selection(self, pane: str) -> str:
        """Select a pane's first row if the selected one is gone; return what is selected."""
        order = self.order(pane)
        if self.selected[pane] not in order:
            self.selected[pane] = order[0] if order else ""
        return self.selected[pane]

    # Drawing

    def past(self, width: int) -> list[Line]:
        """Return the time that is shown and the verdict of then, if it is the past."""
        sample, newest = self.sample, self.newest
        if sample is None or newest is None or not self.is_past:
            return []
        earlier = minutes(max(0.0, newest.taken_at - sample.taken_at))
        mark = Run(f" {local_time(sample.taken_at)}, {earlier} ago ", Tone.CURSOR)
        line: Line = (Run(" "), mark, Run(" · End returns to now", Tone.WARNING))
        # The verdict as long as there is room for it.
        forms = (verdict for verdict in verdict_drawing.forms(sample.verdict) if verdict)
        drawn = next((form for form in forms if width_of((*line, *form)) + 3 <= width), ())
        return [cut((*line, Run("   "), *drawn), width)]

    def summary(self, width: int, rows: int) -> list[Line]:
        """Draw the time if it is the past, and one verdict a job, in at most so many rows."""
        past, sample = self.past(width), self.sample
        return past if sample is None else [*past, *job_lines.draw_verdicts(sample, width, rows - len(past))]

    def lines(self, pane: str, width: int, visible: slice = slice(0)) -> Sequence[Line]:
        """Return a pane's lines; they are drawn again only if something in them may have changed.

        `visible`: the rows that are seen; if a figure in them needs a wider column, it gets one.
        """
        sample = self.sample
        if sample is None:
            return [(Run("reading…", Tone.DIM),)] if pane == "ranks" else []
        selected = self.selected[pane] if pane == self.focused else ""
        at = None if pane == "changes" and not self.is_past and not self._read_to else sample.at
        key: tuple[object, ...] = (at, self.is_past, width, selected, self.hidden.get(pane))
        key = (*key, self.sorts.get(pane), self._word_of(pane))
        if pane in ("ranks", "changes"):
            events = self._all_events
            key = (*key, len(events), events[-1] if events else None)
        drawn, widths = self._drawn[pane], self._widths.get(pane)
        if widths is not None and widths.is_outgrown:
            drawn.forget()

        def draw() -> Sequence[Line]:
            lines = self._draw(pane, sample, width, selected, widths)
            if widths is not None and lines[visible] and widths.is_outgrown:
                lines = self._draw(pane, sample, width, selected, widths)
            return lines

        return drawn.get(draw, values=key)

    def _draw(
        self, pane: str, sample: LiveSample, width: int, selected: str, widths: ColumnWidths | None = None
    ) -> Sequence[Line]:
        if pane in COLUMNS:
            table = self._draw_table(pane, sample, width, selected, widths)
            word = self._word_of(pane)
            if word:
                kept = set(self.order(pane))
                head, *rows = table
                shown = [row for row in rows if any(run.id in kept for run in row)]
                nothing = wrapped(f"No row contains {word!r}.", width, Tone.DIM)
                return [head, *(shown or nothing)]
            if pane != "ranks":
                return table
            notes = paragraphs(self.notes, width, Tone.DIM)
            return LazyLines.from_lines(table).followed_by(notes)
        if not self.events and not sample.ports and isinstance(sample.processes, Unknown):
            return wrapped("Changes are unknown: neither processes nor ports can be read.", width, Tone.DIM)
        shown_at = sample.taken_at if self.is_past or self._read_to else 0.0
        word, began_at = self._word_of(pane), self.timeline.began_at
        return changes.draw(self.listed_changes, width, selected, word, began_at, shown_at)

    def _draw_table(
        self, pane: str, sample: LiveSample, width: int, selected: str, widths: ColumnWidths | None = None
    ) -> Sequence[Line]:
        hidden, sort = titles_of(pane, self.hidden[pane]), self.sorts[pane]
        match pane:
            case "ranks":
                past = self._past_events(sample)
                return ranks.draw(sample, width, selected, past, widths=widths, hidden=hidden, sort=sort)
            case "nics":
                cells = nics.graph_cells(sample, width)
                graph = partial(self._graph, sample, cells) if cells else None
                return nics.draw(sample, width, selected, graph, widths=widths, hidden=hidden, sort=sort)
        return gpus.draw(sample, width, selected, widths=widths, hidden=hidden, sort=sort)

    @property
    def has_traffic(self) -> bool:
        """Whether a job uses a NIC at the moment that is shown."""
        return self.sample is not None and bool(job_traffic.jobs_with_traffic(self.sample))

    @property
    def _traffic_seconds(self) -> float:
        return job_traffic.span(0.0 if self.newest is None else self.newest.taken_at - self.timeline.began_at)

    @property
    def traffic_title(self) -> str:
        """What the graphs of the jobs show."""
        return job_traffic.title(self._traffic_seconds)

    def traffic_lines(self, width: int, rows: int) -> list[Line]:
        """Draw what the jobs have sent and received."""
        sample, newest = self.sample, self.newest
        if sample is None or newest is None:
            return []
        shown_at = sample.taken_at if self.is_past else 0.0
        seconds = self._traffic_seconds
        return job_traffic.draw(sample, self._traffic, width, rows, seconds, newest.taken_at, shown_at)

    def _graph(self, sample: LiveSample, cells: int, port: str) -> list[float | None]:
        """Return what a port sent or received in the two minutes before a sample."""
        history = self._graphs.get(port)
        if history is None:
            return []
        shown = history
        if self.is_past:
            shown = History(_GRAPH_SECONDS, _MOST_SAMPLES)
            for at, value in history.samples():
                if sample.at - _GRAPH_SECONDS <= at <= sample.at:
                    shown.add(at, value)
        return shown.buckets(cells, _GRAPH_SECONDS / cells)

    @property
    def notes(self) -> list[str]:
        """The sentences below the ranks: regions through memory_peers, and what cannot be seen."""
        sample = self.sample
        if sample is None:
            return []
        return [f"{text} (whole node)" for text in memory_peers(sample.peermem)] + list(sample.limits)

    def detail_title(self, pane: str) -> str:
        """Return the title of the details of a pane's selected row."""
        return {"ranks": "Process", "nics": "NIC", "gpus": "GPU", "changes": "Event"}[pane]

    def detail_lines(self, pane: str, width: int) -> list[Line]:
        """Draw everything about a pane's selected row."""
        sample, selected = self.sample, self.selected[pane]
        gone: list[Line] = [(Run("It does not exist at this moment.", Tone.DIM),)]
        if pane == "changes":
            row = next((row for row in self.listed_changes if changes.key_of(row.first) == selected), None)
            if row is None:
                return gone
            return detail.of_event(row.first, *self._samples_of(row.first), width, row.events[1:])
        if sample is None:
            return gone
        if pane == "ranks":
            process = sample.process(int(selected or 0))
            return gone if process is None else detail.of_process(process, sample, width)
        if pane == "nics":
            port = next((port for port in sample.ports if port.name == selected), None)
            return gone if port is None else detail.of_port(port, sample, width)
        gpu = next((gpu for gpu in sample.gpus if gpu.bdf == selected), None)
        return gone if gpu is None else detail.of_gpu(gpu, sample, width)

    def stack_command(self, pane: str) -> str:
        """Return the command that shows the Python stacks of the selected rank; "" if there is none."""
        sample, selected = self.sample, self.selected[pane]
        if pane != "ranks" or sample is None or not selected.isdecimal():
            return ""
        process = sample.process(int(selected))
        return "" if process is None else detail.stack_command(process)

    def _samples_of(self, event: LiveEvent) -> tuple[LiveSample | None, LiveSample | None]:
        """Return the first sample after an event, and one some seconds before."""
        times = self.timeline.times
        if not times:
            return None, None
        at = times[min(bisect_left(times, event.at), len(times) - 1)]
        return self.timeline.at(at), self.timeline.at(at - _BEFORE_SECONDS)

    # Files

    def text(self) -> str:
        """Return all panes as text."""
        width = _TEXT_WIDTH
        lines: list[Line] = self.summary(width, 1000)
        sample = self.sample
        if sample is not None:
            titles = {"ranks": "RANKS", "nics": "NICS", "gpus": "GPUS", "changes": "WHAT CHANGED"}
            for pane, title in titles.items():
                lines += [(), (Run(title),), *self._draw(pane, sample, width, "")]
        return as_text(lines)

    def json_lines(self) -> str:
        """Return the listed events as JSON Lines, oldest first."""
        return "".join(json.dumps(_event_json(event), ensure_ascii=False) + "\n" for event in self.events)


def _configured(setting: str, pane: str) -> str:
    return str(current().configured(f"{setting}{pane}").value)


def _event_json(event: LiveEvent) -> dict[str, object]:
    words = {"at": event.at, "kind": event.kind.value, "severity": event.severity.value}
    return {**words, "subject": event.subject, "text": event.text, "explanation": event.explanation}


def _hour() -> History:
    return History(KEPT_SECONDS, _MOST_SAMPLES)
