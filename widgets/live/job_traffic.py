"""Graphs of the traffic of jobs, of several rows and up to an hour, and of their ranks beside each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from probes.base.grouping import grouped
from probes.base.history import History
from probes.base.text import plural
from probes.base.unknown import Maybe, Unknown, known
from probes.checks.statements import Health, rank_health
from probes.live.model.sample import LiveJob, LiveProcess, LiveSample, program_of
from widgets.base.figures import gbps, graph, local_time, share, short, tall_graph
from widgets.base.lines import Line, Run, Tone, fit, width_of
from widgets.live.figures import added, busier, gpu_labels, line_rates, rank_rates
from widgets.live.job_lines import limit_mark
from widgets.live.order import FINE, badness_of_process
from widgets.live.ranks import in_order

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
    each = _cells(width)
    for number, job in enumerate(shown):
        height = (rows - 1 - len(lines)) // (len(shown) - number)
        top, limit = sum(rates.get(nic, 0.0) for nic in job.nics), limit_mark(job, sample)
        now, past = (job.sent_gbps, job.received_gbps), histories.get(job.id, (None, None))
        sent, received = (
            _direction(job, f"{limit}{arrow}", rate, history, top, each, height, seconds)
            for arrow, rate, history in zip("↑↓", now, past, strict=True)
        )
        if each == width:  # one column: the busier direction
            lines += sent if _value(now[0]) >= _value(now[1]) else received
        else:
            lines += [(*left, Run(" " * _GAP), *right) for left, right in zip(sent, received, strict=True)]
    left = len(jobs) - len(shown)
    return [*lines, _times(width, seconds, newest, shown_at, plural(left, "more job") if left else "")]


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


# The ranks of this node beside each other: GPU, path and rate of each, with a graph of the last minutes.

GRAPH_SECONDS = 120.0
_LEAST_GRAPH, _MOST_GRAPH = 8, 120  # a second a cell
_FEWEST_ROWS = 5
_LEAST_CELLS = _LEAST_GRAPH + len("rank 5  GPU5    365 Gb/s ")
_INDENT = 2


def draw_ranks(sample: LiveSample, histories: Mapping[int, History], width: int, rows: int) -> list[Line]:
    """Draw the ranks with a known rate in at most so many rows: all of them, or the worst first.

    `histories`: of the rates in Gb/s, by pid.
    """
    rates = {pid: rate for pid, rate in rank_rates(sample).items() if not isinstance(rate.gbps, Unknown)}
    if not rates or rows < 1:
        return []
    # A rank or two say nothing about the others.
    if rows < _FEWEST_ROWS and rows * ((width - _INDENT + _GAP) // (_LEAST_CELLS + _GAP)) < len(rates):
        return []
    ranks = [process for process in in_order(sample) if process.pid in rates]
    labels, lines_of = gpu_labels(sample), line_rates(sample)
    badness = badness_of_process(sample)

    def head(process: LiveProcess) -> Line:
        """Return "rank 5  GPU5    365 Gb/s "; "≤" before a rate that other processes may share."""
        name = f"rank {process.rank}" if isinstance(process.rank, int) else f"pid {process.pid}"
        gpu = labels.get(process.gpus[0], "") if len(process.gpus) == 1 else ""
        rate = rates[process.pid]
        limit = "≤" if rate.shared_with else ""
        is_odd = badness(process) != FINE or rank_health(process, sample) is Health.WARNING
        tone = Tone.WARNING if is_odd else Tone.PLAIN
        return (
            Run(f"{name:<7}", tone),
            Run(f" {gpu:<5}", Tone.GPU),
            Run(f" {limit}{short(rate.gbps)}".rjust(6), tone),
            Run(" Gb/s ", Tone.DIM),
        )

    heads = {process.pid: head(process) for process in ranks}
    cells = max(map(width_of, heads.values()))
    most = max(1, (width - _INDENT + _GAP) // (cells + _LEAST_GRAPH + _GAP))
    across = min(most, -(-len(ranks) // rows))
    if across * rows < len(ranks):
        if rows < _FEWEST_ROWS:
            return []
        rows -= 1
        ranks = sorted(ranks, key=badness)
    shown = ranks[: across * rows]
    each = (width - _INDENT - _GAP * (across - 1)) // across
    buckets = min(_MOST_GRAPH, each - cells)
    height = -(-len(shown) // across)

    def cell(process: LiveProcess) -> Line:
        history = histories.get(process.pid)
        values = history.buckets(buckets, GRAPH_SECONDS / buckets) if history is not None else []
        top = sum(lines_of.get(nic, 0.0) for nic in process.ready_nics)
        return fit((*heads[process.pid], *graph(values, top or None)), each)

    drawn: list[Line] = []
    for row in range(height):
        runs: list[Run] = [Run(" " * _INDENT)]
        for number, process in enumerate(shown[row::height]):
            runs += [*((Run(" " * _GAP),) if number else ()), *cell(process)]
        drawn.append(tuple(runs))
    more = len(heads) - len(shown)
    return [*drawn, (Run(f"  {plural(more, 'more rank')} (t)", Tone.DIM),)] if more else drawn


def rows_for(sample: LiveSample) -> int:
    """Return how many rows the graphs of all ranks need, one below the other."""
    return sum(not isinstance(rate.gbps, Unknown) for rate in rank_rates(sample).values())


def pair_rates(sample: LiveSample) -> dict[tuple[str, str], float]:
    """Return in Gb/s what each NIC carries for a GPU, in the busier direction, by (GPU, NIC).

    It is known only of NICs that one process alone uses, which computes on one GPU.
    """
    processes = known(sample.processes, ())
    users = Counter(nic for process in processes for nic in process.ready_nics)
    ports = grouped((port.device, port) for port in sample.ports)
    found: dict[tuple[str, str], float] = {}
    for process in processes:
        for nic in process.ready_nics if len(process.gpus) == 1 else ():
            own = ports.get(nic, ())
            rate = busier(added(port.sent_gbps for port in own), added(port.received_gbps for port in own))
            if users[nic] == 1 and not isinstance(rate, Unknown):
                found[process.gpus[0], nic] = rate
    return found
