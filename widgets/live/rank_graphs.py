"""The ranks of this node beside each other: GPU, path and rate of each, with a graph of the last minutes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from probes.base.history import History
from probes.base.text import plural
from probes.base.unknown import Unknown, known
from probes.checks.statements import Health, rank_health
from probes.live.model.sample import LiveProcess, LiveSample, PortSample
from widgets.base.figures import graph, short
from widgets.base.lines import Line, Run, Tone, fit, width_of
from widgets.live.figures import added, busier, gpu_labels, line_rates, rank_rates
from widgets.live.order import FINE, badness_of_process
from widgets.live.ranks import in_order

GRAPH_SECONDS = 120.0
_LEAST_GRAPH, _MOST_GRAPH = 8, 120  # a second a cell
_FEWEST_ROWS = 5
_LEAST_CELLS = _LEAST_GRAPH + len("rank 5  GPU5    365 Gb/s ")
_GAP = 2
_INDENT = 2


def draw(sample: LiveSample, histories: Mapping[int, History], width: int, rows: int) -> list[Line]:
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
    ports: dict[str, list[PortSample]] = {}
    for port in sample.ports:
        ports.setdefault(port.device, []).append(port)
    found: dict[tuple[str, str], float] = {}
    for process in processes:
        for nic in process.ready_nics if len(process.gpus) == 1 else ():
            own = ports.get(nic, ())
            rate = busier(added(port.sent_gbps for port in own), added(port.received_gbps for port in own))
            if users[nic] == 1 and not isinstance(rate, Unknown):
                found[process.gpus[0], nic] = rate
    return found
