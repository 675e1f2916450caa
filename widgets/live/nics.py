"""The NIC ports, one row each: rates, congestion, losses, pauses, PCIe stalls, and a graph where it fits."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from probes.base.text import plural
from probes.base.unknown import Maybe, Unknown, known
from probes.host.usage import cpu_list
from probes.live.model.sample import LiveJob, LiveProcess, LiveSample, PortSample
from widgets.base.columns import Column, draw_columns
from widgets.base.figures import UNKNOWN_MARK, share, short, sparkline
from widgets.base.lines import Line, Run, Tone, line, wrapped
from widgets.live.figures import COUNTER_GROUPS, per_second, percent_of_time

PAUSE_PERCENT = 5.0  # marked above, as in the events
STALL_PERCENT = 30.0  # mlx5 counts such seconds in outbound_pci_stalled_…_events
_LEAST_GRAPH, _MOST_GRAPH = 12, 60
_OTHER_CELLS, _USERS_CELLS = 120, 8  # of the columns beside it
Graph = Sequence[float | None]


def draw(
    sample: LiveSample,
    width: int,
    selected: str = "",
    graphs: Mapping[str, Graph] | None = None,
    only: str = "",
) -> list[Line]:
    """Draw a row a port, or one port `only`.

    `graphs`: the busier direction in the last two minutes, by port.
    """
    if not sample.ports:
        return wrapped(sample.no_ports or "There is no RDMA port.", width, Tone.DIM)
    ports = [port for port in sample.ports if not only or port.name == only]
    users = _users(sample)

    def cells(of: Sequence[Run]) -> list[Line]:
        return [line(run) for run in of]

    columns = [
        Column("NIC", cells([Run(port.name, Tone.NIC) for port in ports]), 1, least=6),
        Column("state", cells([_state(port.state) for port in ports]), 9, least=6),
        Column("line", cells([_line_rate(port) for port in ports]), 6, True, least=4),
        Column("↑Gb/s", [_rate(port.sent_gbps, port) for port in ports], 2, True, least=9),
        Column("↓Gb/s", [_rate(port.received_gbps, port) for port in ports], 2, True, least=9),
    ]
    order = {"CNP": 3, "retrans": 3, "RNR": 7, "discards": 7, "errors": 4, "wait": 8}
    for group in COUNTER_GROUPS:
        values = [group.rate(port.counters) for port in ports]
        if group.title == "wait" and all(isinstance(value, Unknown) for value in values):
            continue
        figures = cells([per_second(value, group.tone) for value in values])
        columns.append(Column(f"{group.title}/s", figures, order[group.title], True, least=5))
    pauses = cells([percent_of_time(port.pause_percent, PAUSE_PERCENT) for port in ports])
    stalls = cells([percent_of_time(port.pcie_stall_percent, STALL_PERCENT) for port in ports])
    columns.append(Column("pause", pauses, 3, True))
    columns.append(Column("PCIe stall", stalls, 5, True))
    columns.append(
        Column("used by", cells([Run(users.get(port.device, ""), Tone.DIM) for port in ports]), 10)
    )
    if graphs:
        blocks = cells([_graph(graphs.get(port.name, ()), port) for port in ports])
        columns.append(Column("2 min, █ = line rate", blocks, 11, least=_LEAST_GRAPH))
    return draw_columns(columns, [port.name for port in ports], width, selected)


def graph_cells(sample: LiveSample, width: int) -> int:
    """Return how many values of a graph there is room for; 0 on a narrow screen."""
    users = max(map(len, _users(sample).values()), default=0)
    room = min(_MOST_GRAPH, width - _OTHER_CELLS - max(_USERS_CELLS, users))
    return room if width >= 150 and room >= _LEAST_GRAPH else 0


def _users(sample: LiveSample) -> dict[str, str]:
    """Return which ranks have connected queue pairs on each NIC: "ranks 0,4 of train.py (alice)".

    The job is left out if there is only one.
    """
    users: dict[str, dict[str, list[LiveProcess]]] = {}  # by NIC and job
    for process in known(sample.processes, ()):
        for nic in process.ready_nics:
            users.setdefault(nic, {}).setdefault(process.job, []).append(process)
    names = _job_names([job for job in sample.jobs if job.nics])
    return {
        nic: ", ".join(_members(members, names.get(job, "")) for job, members in jobs.items())
        for nic, jobs in users.items()
    }


def _members(processes: Sequence[LiveProcess], job: str) -> str:
    """Return "ranks 0,4 and 1 process of train.py"."""
    ranks = [process.rank for process in processes if not isinstance(process.rank, Unknown)]
    others = len(processes) - len(ranks)
    parts = [f"rank{'s' * (len(ranks) > 1)} {cpu_list(ranks)}"] if ranks else []
    if others:
        parts.append(plural(others, "process", "processes"))
    return " and ".join(parts) + (f" of {job}" if job else "")


def _job_names(jobs: Sequence[LiveJob]) -> dict[str, str]:
    """Return the shortest names that differ, by job: program, program and user, all; none for one job."""
    if len(jobs) < 2:
        return {}
    programs = {job.id: job.name.partition(" (")[0] for job in jobs}
    users = {
        job.id: re.sub(r" \(([^,)]*),.*\)$", r" (\1)", job.name)  # "train.py (alice)"
        for job in jobs
    }
    for names in (programs, users):
        if len(set(names.values())) == len(jobs):
            return names
    return {job.id: job.name for job in jobs}


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
