"""The NIC ports, one row each: rates, congestion, losses, pauses, PCIe stalls, and a graph where it fits."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache, partial

from probes.base.text import plural
from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.rdma.devices import ACTIVE
from probes.facts.rdma.optics import heat_of
from probes.facts.rdma.port_health import CounterColumn
from probes.host.usage import cpu_list
from probes.live.model.sample import LiveSample, PortSample, program_of
from probes.queries.queue_pair_makers import uncounted
from probes.snapshot.condition import CONGESTED, SLOW_NIC, TRAFFIC_FELL
from widgets.base.columns import Column, ColumnWidths, cells_of, draw_columns
from widgets.base.figures import UNKNOWN_MARK, graph, share, short
from widgets.base.health import tone_of
from widgets.base.lines import LazyLines, Line, Run, Tone, wrapped
from widgets.live.columns import sorted_title
from widgets.live.figures import COUNTER_GROUPS, CounterGroup, per_second, percent_of_time, rate_of
from widgets.live.order import FINE, SortKeys, badness_of_devices, devices_with, falling, sorted_by_column

PAUSE_PERCENT = 5.0  # marked above, as in the events
_CONGESTION = (CounterColumn.CONGESTION.value, CounterColumn.WAIT.value)
_OF_QUEUES = (CounterColumn.RETRANSMITS.value, CounterColumn.RECEIVER.value)
STALL_PERCENT = 30.0  # mlx5 counts such seconds in outbound_pci_stalled_…_events
_LEAST_GRAPH, _MOST_GRAPH = 12, 120  # a second a cell
_OTHER_CELLS, _USERS_CELLS, _CELSIUS_CELLS = 120, 8, 5  # of the columns beside it
_LEAST_WIDTH = 100  # of a table with a graph
Graph = Sequence[float | None]


def draw(
    sample: LiveSample,
    width: int,
    selected: str = "",
    history: Callable[[str], Graph] | None = None,
    only: str = "",
    widths: ColumnWidths | None = None,
    hidden: Collection[str] = (),
    sort: str | None = None,
) -> Sequence[Line]:
    """Draw a row a port, or one port `only`.

    `history`: returns the busier direction of a port in the last two minutes; `widths`: of the drawing
    before; `hidden`: titles of columns; `sort`: the order of `sorted_rows`, which a click on a head changes;
    None: by name.
    """
    if not sample.ports:
        return wrapped(sample.no_ports or "There is no RDMA port.", width, Tone.DIM)
    rows = sample.ports if sort is None else sorted_rows(sample, sort)
    ports = [port for port in rows if not only or port.name == only]
    users, marked = _users(sample), devices_with(sample, SLOW_NIC, TRAFFIC_FELL, CONGESTED)
    congested = devices_with(sample, CONGESTED)
    outside = {
        nic.device
        for process in known(sample.processes, ())
        if uncounted(queues for queues in process.own_queues if queues.is_sure)
        for nic in process.nics
    }

    def cells(cell: Callable[[PortSample], Run]) -> LazyLines:
        return cells_of(ports, cell)

    def rates(rate: Callable[[PortSample], Maybe[float]]) -> LazyLines:
        return LazyLines(len(ports), lambda row: _rate(rate(ports[row]), ports[row], marked))

    def events(group: CounterGroup) -> LazyLines:
        shows_congestion, is_of_queues = group.title in _CONGESTION, group.title in _OF_QUEUES

        def cell(port: PortSample) -> Run:
            is_congested = shows_congestion and port.device in congested
            rate = group.rate(port.counters)
            if is_of_queues and port.device in outside and not isinstance(rate, Unknown) and not rate:
                return Run(UNKNOWN_MARK, Tone.DIM)  # the counters do not count all queue pairs
            return per_second(rate, Tone.WARNING if is_congested else group.tone)

        return cells(cell)

    is_down = any(port.state != ACTIVE for port in ports if not isinstance(port.state, Unknown))

    columns = [
        Column("NIC", cells(lambda port: Run(port.name, Tone.NIC)), 1, least=6),
        Column("state", cells(lambda port: _state(port.state)), 3 if is_down else 10, least=6),
        Column("line", cells(_line_rate), 7, True, least=4),
        Column("↑Gb/s", rates(lambda port: port.sent_gbps), 2, True, least=9),
        Column("↓Gb/s", rates(lambda port: port.received_gbps), 2, True, least=9),
    ]
    order = {"CNP": 3, "wait": 3, "errors": 3, "retrans": 4, "RNR": 9, "discards": 8}
    for group in COUNTER_GROUPS:
        is_wait = group.title == "wait"
        if is_wait and all(isinstance(group.rate(port.counters), Unknown) for port in ports):
            continue
        columns.append(Column(f"{group.title}/s", events(group), order[group.title], True, least=5))
    columns += [
        Column("pause", cells(lambda port: percent_of_time(port.pause_percent, PAUSE_PERCENT)), 4, True),
        Column(
            "PCIe stall", cells(lambda port: percent_of_time(port.pcie_stall_percent, STALL_PERCENT)), 5, True
        ),
        *([Column("°C", cells(_module_celsius), 9, True, least=3)] if _has_optics(sample) else []),
        Column("used by", cells(lambda port: Run(users.get(port.device, ""), Tone.DIM)), 8),
    ]
    if history is not None:
        blocks = LazyLines(len(ports), lambda row: _graph(history(ports[row].name), ports[row]))
        columns.append(Column("2 min", blocks, 6, least=_LEAST_GRAPH))
    by = None if sort is None else sorted_title("nics", sort)
    return draw_columns(columns, [port.name for port in ports], width, selected, widths, hidden, by)


def sorted_rows(sample: LiveSample, sort: str) -> list[PortSample]:
    """Return the ports by a column, or for "" the worst first."""
    badness = badness_of_devices(sample)
    worst_first = sorted(sample.ports, key=lambda port: badness.get(port.device, FINE))
    if not sort:
        return worst_first
    places = {port.name: float(place) for place, port in enumerate(sample.ports)}
    users = _users(sample) if sort.endswith("used by") else {}
    absent = Unknown(Reason.NOT_THERE)
    groups = {f"{group.title}/s": group for group in COUNTER_GROUPS}
    keys: SortKeys[PortSample] = {
        "NIC": lambda port: places[port.name],
        "state": lambda port: port.state,
        "line": lambda port: falling(port.line_rate_gbps),
        "sent": lambda port: falling(port.sent_gbps),
        "received": lambda port: falling(port.received_gbps),
        "pause": lambda port: falling(port.pause_percent),
        "PCIe stall": lambda port: falling(port.pcie_stall_percent),
        "temperature": lambda port: falling(port.module_celsius),
        "used by": lambda port: users.get(port.device, absent),
        "graph": lambda port: falling(rate_of(port)),
        **{name: partial(_events_of, group) for name, group in groups.items()},
    }
    return sorted_by_column(worst_first, keys, sort)


def _events_of(group: CounterGroup, port: PortSample) -> Maybe[float]:
    return falling(group.rate(port.counters))


def graph_cells(sample: LiveSample, width: int) -> int:
    """Return how many values of a graph there is room for; 0 on a narrow screen."""
    users = max(map(len, _users(sample).values()), default=0)
    others = _OTHER_CELLS + _CELSIUS_CELLS * _has_optics(sample)
    room = min(_MOST_GRAPH, width - others - max(_USERS_CELLS, users))
    return max(_LEAST_GRAPH, room) if width >= _LEAST_WIDTH else 0


def _users(sample: LiveSample) -> dict[str, str]:
    """Return who has connected queue pairs on each NIC: "ranks 0,4 of train.py (alice), Lustre".

    The job is left out if there is only one.
    """
    members = tuple(
        (process.job, known(process.rank, None), process.ready_nics)
        for process in known(sample.processes, ())
    )
    users = _users_of(members, tuple((job.id, job.name) for job in sample.jobs if job.nics))
    clients = {nic: ", ".join(names) for nic, names in sample.kernel_clients.items()}
    if not clients:
        return users
    return users | {nic: ", ".join(filter(None, (users.get(nic), text))) for nic, text in clients.items()}


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
    programs = {job: program_of(name) for job, name in jobs}
    users = {job: re.sub(r" \(([^,)]*),.*\)$", r" (\1)", name) for job, name in jobs}  # "train.py (alice)"
    return next((names for names in (programs, users) if len(set(names.values())) == len(jobs)), dict(jobs))


def _state(state: Maybe[str]) -> Run:
    if isinstance(state, Unknown):
        return Run(UNKNOWN_MARK, Tone.DIM)
    return Run(state, Tone.PLAIN if state == ACTIVE else Tone.BAD)


def _has_optics(sample: LiveSample) -> bool:
    """Say whether the temperature of a module is known; copper cables have none."""
    return any(not isinstance(port.module_celsius, Unknown) for port in sample.ports)


def _module_celsius(port: PortSample) -> Run:
    """Return the temperature; a copper cable has none."""
    celsius = port.module_celsius
    if isinstance(celsius, Unknown):
        return Run("–" if celsius.reason is Reason.NOT_THERE else UNKNOWN_MARK, Tone.DIM)
    return Run(f"{celsius:.0f}", tone_of(heat_of(celsius, known(port.module_limit_celsius, None))))


def _line_rate(port: PortSample) -> Run:
    rate = port.line_rate_gbps
    return Run(UNKNOWN_MARK if isinstance(rate, Unknown) else f"{short(rate)}G", Tone.DIM)


def _rate(value: Maybe[float], port: PortSample, marked: Collection[str]) -> Line:
    if not isinstance(port.state, Unknown) and port.state != ACTIVE:
        return (Run("–", Tone.DIM),)
    if isinstance(value, Unknown):
        return (Run(UNKNOWN_MARK, Tone.DIM),)
    percent = share(value, port.line_rate_gbps)
    tone = Tone.WARNING if port.device in marked else Tone.PLAIN
    return (Run(short(value), tone), Run(f" {percent:>4}" if percent else "", Tone.DIM))


def _graph(values: Graph, port: PortSample) -> Line:
    return graph(values, known(port.line_rate_gbps, None))
