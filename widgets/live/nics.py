"""The NIC ports, one row each: rates, congestion, losses, pauses, PCIe stalls, and a graph where it fits."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache

from probes.base.text import plural
from probes.base.unknown import Maybe, Unknown, known
from probes.host.usage import cpu_list
from probes.live.model.sample import LiveSample, PortSample
from widgets.base.columns import Column, ColumnWidths, cells_of, draw_columns
from widgets.base.figures import UNKNOWN_MARK, share, short, sparkline
from widgets.base.lines import LazyLines, Line, Run, Tone, wrapped
from widgets.live.figures import COUNTER_GROUPS, CounterGroup, per_second, percent_of_time

PAUSE_PERCENT = 5.0  # marked above, as in the events
STALL_PERCENT = 30.0  # mlx5 counts such seconds in outbound_pci_stalled_…_events
_LEAST_GRAPH, _MOST_GRAPH = 12, 60
_OTHER_CELLS, _USERS_CELLS = 120, 8  # of the columns beside it
Graph = Sequence[float | None]


def draw(
    sample: LiveSample,
    width: int,
    selected: str = "",
    graph: Callable[[str], Graph] | None = None,
    only: str = "",
    widths: ColumnWidths | None = None,
    hidden: Collection[str] = (),
) -> Sequence[Line]:
    """Draw a row a port, or one port `only`.

    `graph`: returns the busier direction of a port in the last two minutes; `widths`: of the drawing before;
    `hidden`: titles of columns.
    """
    if not sample.ports:
        return wrapped(sample.no_ports or "There is no RDMA port.", width, Tone.DIM)
    ports = [port for port in sample.ports if not only or port.name == only]
    users = _users(sample)

    def cells(cell: Callable[[PortSample], Run]) -> LazyLines:
        return cells_of(ports, cell)

    def rates(rate: Callable[[PortSample], Maybe[float]]) -> LazyLines:
        return LazyLines(len(ports), lambda row: _rate(rate(ports[row]), ports[row]))

    def events(group: CounterGroup) -> LazyLines:
        return cells(lambda port: per_second(group.rate(port.counters), group.tone))

    columns = [
        Column("NIC", cells(lambda port: Run(port.name, Tone.NIC)), 1, least=6),
        Column("state", cells(lambda port: _state(port.state)), 9, least=6),
        Column("line", cells(_line_rate), 6, True, least=4),
        Column("↑Gb/s", rates(lambda port: port.sent_gbps), 2, True, least=9),
        Column("↓Gb/s", rates(lambda port: port.received_gbps), 2, True, least=9),
    ]
    order = {"CNP": 3, "retrans": 3, "RNR": 7, "discards": 7, "errors": 4, "wait": 8}
    for group in COUNTER_GROUPS:
        is_wait = group.title == "wait"
        if is_wait and all(isinstance(group.rate(port.counters), Unknown) for port in ports):
            continue
        columns.append(Column(f"{group.title}/s", events(group), order[group.title], True, least=5))
    columns += [
        Column("pause", cells(lambda port: percent_of_time(port.pause_percent, PAUSE_PERCENT)), 3, True),
        Column(
            "PCIe stall", cells(lambda port: percent_of_time(port.pcie_stall_percent, STALL_PERCENT)), 5, True
        ),
        Column("used by", cells(lambda port: Run(users.get(port.device, ""), Tone.DIM)), 10),
    ]
    if graph is not None:
        blocks = cells(lambda port: _graph(graph(port.name), port))
        columns.append(Column("2 min, █ = line rate", blocks, 11, least=_LEAST_GRAPH))
    return draw_columns(columns, [port.name for port in ports], width, selected, widths, hidden)


def graph_cells(sample: LiveSample, width: int) -> int:
    """Return how many values of a graph there is room for; 0 on a narrow screen."""
    users = max(map(len, _users(sample).values()), default=0)
    room = min(_MOST_GRAPH, width - _OTHER_CELLS - max(_USERS_CELLS, users))
    return room if width >= 150 and room >= _LEAST_GRAPH else 0


def _users(sample: LiveSample) -> dict[str, str]:
    """Return which ranks have connected queue pairs on each NIC: "ranks 0,4 of train.py (alice)".

    The job is left out if there is only one.
    """
    members = tuple(
        (process.job, known(process.rank, None), process.ready_nics)
        for process in known(sample.processes, ())
    )
    return _users_of(members, tuple((job.id, job.name) for job in sample.jobs if job.nics))


@lru_cache(maxsize=2)
def _users_of(
    processes: tuple[tuple[str, int | None, tuple[str, ...]], ...], jobs: tuple[tuple[str, str], ...]
) -> dict[str, str]:
    """Return the text by NIC, the same one as before: `processes` (job, rank, NICs) seldom change."""
    users: dict[str, dict[str, list[int | None]]] = {}  # ranks by NIC and job
    for job, rank, nics in processes:
        for nic in nics:
            users.setdefault(nic, {}).setdefault(job, []).append(rank)
    names = _job_names(jobs)
    return {
        nic: ", ".join(_members(members, names.get(job, "")) for job, members in by_job.items())
        for nic, by_job in users.items()
    }


def _members(members: Sequence[int | None], job: str) -> str:
    """Return "ranks 0,4 and 1 process of train.py". `members`: their ranks; None: unknown."""
    ranks = [rank for rank in members if rank is not None]
    others = len(members) - len(ranks)
    parts = [f"rank{'s' * (len(ranks) > 1)} {cpu_list(ranks)}"] if ranks else []
    if others:
        parts.append(plural(others, "process", "processes"))
    return " and ".join(parts) + (f" of {job}" if job else "")


def _job_names(jobs: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return the shortest names that differ, by job: program, program and user, all; none for one job."""
    if len(jobs) < 2:
        return {}
    programs = {job: name.partition(" (")[0] for job, name in jobs}
    users = {job: re.sub(r" \(([^,)]*),.*\)$", r" (\1)", name) for job, name in jobs}  # "train.py (alice)"
    for names in (programs, users):
        if len(set(names.values())) == len(jobs):
            return names
    return dict(jobs)


def _state(state: Maybe[str]) -> Run:
    if isinstance(state, Unknown):
        return Run(UNKNOWN_MARK, Tone.DIM)
    return Run(state, Tone.PLAIN if state == "ACTIVE" else Tone.BAD)


def _line_rate(port: PortSample) -> Run:
    rate = port.line_rate_gbps
    return Run(UNKNOWN_MARK if isinstance(rate, Unknown) else f"{short(rate)}G", Tone.DIM)


def _rate(value: Maybe[float], port: PortSample) -> Line:
    if not isinstance(port.state, Unknown) and port.state != "ACTIVE":
        return (Run("–", Tone.DIM),)
    if isinstance(value, Unknown):
        return (Run(UNKNOWN_MARK, Tone.DIM),)
    percent = share(value, port.line_rate_gbps)
    return (Run(short(value)), Run(f" {percent:>4}" if percent else "", Tone.DIM))


def _graph(values: Graph, port: PortSample) -> Run:
    top = port.line_rate_gbps
    return Run(sparkline(values, None if isinstance(top, Unknown) else top), Tone.NIC)
