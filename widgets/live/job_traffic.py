"""What each job has sent and received in the last minutes, up to an hour, in graphs of several rows."""

from __future__ import annotations

from collections.abc import Mapping

from probes.base.history import History
from probes.base.text import plural
from probes.base.unknown import Maybe, Unknown
from probes.live.model.sample import LiveJob, LiveSample, program_of
from widgets.base.figures import gbps, local_time, share, tall_graph
from widgets.base.lines import Line, Run, Tone, fit
from widgets.live.figures import line_rates
from widgets.live.job_lines import limit_mark

_SPANS = (2, 5, 10, 20, 30, 60)  # minutes: the shortest one in which all that was seen has room
LEAST_ROWS = 6  # for the graphs of one job, with the line of times
_LEAST_OF_JOB = 4  # a heading, and a graph in which a change is seen
_TWO_COLUMNS = 100
_GAP = 2


def jobs_with_traffic(sample: LiveSample) -> list[LiveJob]:
    """Return the jobs that use a NIC."""
    return [job for job in sample.jobs if job.nics]


def span(seen_seconds: float) -> float:
    """Return the seconds of the graphs after so many seconds of watching."""
    return 60.0 * next((minutes for minutes in _SPANS if seen_seconds <= 60 * minutes), _SPANS[-1])


def title(seconds: float) -> str:
    """Return what the graphs show."""
    return f"Traffic of jobs, {seconds / 60:.0f} min, full height = line rate of their NICs"


def draw(
    sample: LiveSample,
    histories: Mapping[str, tuple[History, History]],
    width: int,
    rows: int,
    seconds: float,
    newest: float,
    shown_at: float = 0.0,
) -> list[Line]:
    """Draw what the jobs sent beside what they received, in exactly so many rows if there is a job.

    `histories`: of both in Gb/s, by the job's id; `seconds`: the length of the graphs; `newest`: the time of
    their last sample; `shown_at`: that of the shown one, 0 for now.
    """
    jobs = jobs_with_traffic(sample)
    if not jobs or rows < LEAST_ROWS:
        return []
    shown = jobs[: max(1, (rows - 1) // _LEAST_OF_JOB)]
    rates = line_rates(sample)
    lines: list[Line] = []
    for number, job in enumerate(shown):
        height = (rows - 1 - len(lines)) // (len(shown) - number)
        top = sum(rates.get(nic, 0.0) for nic in job.nics)
        lines += _of_job(job, limit_mark(job, sample), histories.get(job.id), top, width, height, seconds)
    left = len(jobs) - len(shown)
    return [*lines, _times(width, seconds, newest, shown_at, plural(left, "more job") if left else "")]


def _of_job(
    job: LiveJob,
    limit: str,
    histories: tuple[History, History] | None,
    top: float,
    width: int,
    rows: int,
    seconds: float,
) -> list[Line]:
    each = _cells(width)
    columns = [
        _direction(job, f"{limit}{arrow}", now, history, top, each, rows, seconds)
        for arrow, now, history in zip(
            "↑↓", (job.sent_gbps, job.received_gbps), histories or (None, None), strict=True
        )
    ]
    if each == width:  # one column: the busier direction
        is_sent = _value(job.sent_gbps) >= _value(job.received_gbps)
        return columns[0 if is_sent else 1]
    return [(*left, Run(" " * _GAP), *right) for left, right in zip(*columns, strict=True)]


def _cells(width: int) -> int:
    return (width - _GAP) // 2 if width >= _TWO_COLUMNS else width


def _value(rate: Maybe[float]) -> float:
    return -1.0 if isinstance(rate, Unknown) else rate


def _direction(
    job: LiveJob,
    arrow: str,
    now: Maybe[float],
    history: History | None,
    top: float,
    width: int,
    rows: int,
    seconds: float,
) -> list[Line]:
    """Return a heading, "train.py ↑ 2.17 Tb/s 68% peak 2.31 Tb/s", and the graph below it."""
    values = history.buckets(width, seconds / width) if history is not None else [None] * width
    peak = max((value for value in values if value is not None), default=None)
    heading: Line = (
        Run(program_of(job.name), Tone.TITLE),
        Run(f" {arrow} {gbps(now)} {share(now, top)}"),
        Run(f" peak {gbps(peak)}" if peak is not None else "", Tone.DIM),
    )
    return [fit(heading, width), *tall_graph(values, rows - 1, top or None)]


def _times(width: int, seconds: float, newest: float, shown_at: float, more: str) -> Line:
    """Return when the graphs begin and end, with ▲ which moment is shown, and the jobs without room."""
    each = _cells(width)
    begin, end = local_time(newest - seconds, "%H:%M"), local_time(newest, "%H:%M %Z")
    axis = f"{begin}{end:>{each - len(begin)}}"
    if shown_at:
        place = max(0, min(each - 1, round((1 - (newest - shown_at) / seconds) * each)))
        axis = f"{axis[:place]}▲{axis[place + 1 :]}"
    second = f"and {more}" if more else axis
    return fit((Run(axis if each == width else f"{axis}{' ' * _GAP}{second}", Tone.DIM),), width)
