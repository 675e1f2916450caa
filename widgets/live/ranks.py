"""The ranks on this node, one row each: path, NICs, rate, registered memory, NCCL's threads, state."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence

from rich.cells import cell_len

from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.checks.statements import rank_health
from probes.host.usage import cpu_list
from probes.live.model.sample import STOPPED_STATES, LiveEvent, LiveProcess, LiveSample, Role
from probes.queries.queue_pair_makers import unlisted
from widgets.base.columns import Column, ColumnWidths, cells_of, draw_columns
from widgets.base.figures import UNKNOWN_MARK, figure_run, gibibytes, local_time, short
from widgets.base.health import TONES
from widgets.base.lines import LazyLines, Line, Run, Tone, wrapped
from widgets.live import engines
from widgets.live.columns import sorted_title
from widgets.live.figures import RankRate, gpu_labels, medians, rank_rates
from widgets.live.order import Badness, SortKeys, badness_of_process, falling, sorted_by_column

_HALF = 0.5  # of the median: marked
_PATH_CELLS = 22  # at least: "likely GDR (DMA-BUF)"
_ENGINE_CELLS = 39  # "likely RDMA, staged through host memory"
_NAME_CELLS = 16  # of the NICs of a rank
_STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "I/O wait",
    "T": "stopped",
    "t": "traced",
    "Z": "zombie",
    "I": "idle",
}
_BROKEN_STATES = (*STOPPED_STATES, "Z")


def draw(
    sample: LiveSample,
    width: int,
    selected: str = "",
    events: Sequence[LiveEvent] = (),
    only: int | None = None,
    widths: ColumnWidths | None = None,
    hidden: Collection[str] = (),
    sort: str | None = None,
) -> Sequence[Line]:
    """Draw a row a process in the order of jobs and ranks, or one process `only`.

    `events`: those so far, oldest first; `widths`: of the drawing before; `hidden`: titles of columns;
    `sort`: the order of `sorted_rows`, which a click on a head changes; None: by job and rank.
    """
    if isinstance(sample.processes, Unknown):
        return wrapped(f"Processes are unknown ({sample.processes}).", width, Tone.WARNING)
    rows = in_order(sample) if sort is None else sorted_rows(sample, sort, events)
    processes = [process for process in rows if only is None or process.pid == only]
    if not processes and only is not None:
        return [(Run("The process does not exist at this moment.", Tone.DIM),)]
    if not processes:
        return [(Run("No process uses an RDMA NIC or a GPU.", Tone.DIM),)]
    labels, rates = gpu_labels(sample), rank_rates(sample)
    middle = medians(sample, rates)
    newest = _last_events(events)
    several = len({process.job for process in processes}) > 1
    has_engine = any(process.serving is not None for process in processes)
    has_rank = not has_engine or any(not isinstance(process.rank, Unknown) for process in processes)
    has_bus = any(not isinstance(process.bus_gbps, Unknown) for process in processes)

    def cells(cell: Callable[[LiveProcess], Run]) -> LazyLines:
        return cells_of(processes, cell)

    def path(process: LiveProcess) -> Run:
        return Run(process.path_text, TONES[rank_health(process, sample)])

    def cpu(process: LiveProcess) -> Run:
        return figure_run(process.cpu_percent, "{:.0f}%".format)

    def bus(process: LiveProcess) -> Run:
        return figure_run(process.bus_gbps, short)

    def share(process: LiveProcess) -> Run:
        return _share(share_of_median(process, rates.get(process.pid), middle))

    badness = _badness(sample, rates, middle)
    usual: dict[str, tuple[Badness, float]] = {}  # of the best one of each job
    for process in processes:
        usual[process.job] = max(badness(process), usual.get(process.job, badness(process)))

    def rank(process: LiveProcess) -> Run:
        is_odd = badness(process) < usual[process.job]
        number = figure_run(process.rank)
        return number._replace(tone=Tone.WARNING) if is_odd else number

    wanted = _ENGINE_CELLS if has_engine else _PATH_CELLS
    most = max(map(cell_len, {process.path_text for process in processes}))
    columns = [
        Column("GPU", cells(lambda process: _gpus(process, labels)), 1, least=4),
        *([Column("rank", cells(rank), 4, to_right=True)] if has_rank else []),
        Column("pid", cells(lambda process: Run(str(process.pid))), 3, to_right=True),
        Column("program", cells(_program), 7 if several else 13, least=8),
        *([Column("role", cells(engines.engine_role), 2, least=8)] if has_engine else []),
        Column("path", cells(path), 2, least=min(wanted, most), grows=True),
        *([Column("peer", cells(engines.engine_peer), 4, least=9)] if has_engine else []),
        Column("NICs", cells(_nics), 5, least=6),
        Column("Gb/s", cells(lambda process: _rate(rates.get(process.pid))), 3, True, least=5),
        Column("share", cells(share), 6, True, least=5),
        Column("registered", cells(_registered), 8, True, least=10),
        Column("NCCL", cells(_threads), 10, least=4),
        Column("state", cells(_state), 7, least=7),
        Column("CPU", cells(cpu), 9, True, least=5),
        *([Column("bus GB/s", cells(bus), 11, to_right=True)] if has_bus else []),
        Column(
            "last event", cells(lambda process: _event(newest.get(process.pid))), 12, least=16, grows=True
        ),
    ]
    ids = [str(process.pid) for process in processes]
    marked = None if sort is None else sorted_title("ranks", sort)
    return draw_columns(columns, ids, width, selected, widths, hidden, marked)


def in_order(sample: LiveSample) -> list[LiveProcess]:
    """Return the processes in the order of jobs, and of ranks within a job; those without a job last."""
    jobs = {job.id: number for number, job in enumerate(sample.jobs)}
    return sorted(
        known(sample.processes, ()),
        key=lambda process: (jobs.get(process.job, len(jobs)), known(process.rank, 1 << 30), process.pid),
    )


def sorted_rows(sample: LiveSample, sort: str, events: Sequence[LiveEvent] = ()) -> list[LiveProcess]:
    """Return the processes by a column, or for "" the worst first; `events`: oldest first."""
    rates = rank_rates(sample)
    middle = medians(sample, rates)
    worst_first = sorted(in_order(sample), key=_badness(sample, rates, middle))
    if not sort:
        return worst_first
    newest = _last_events(events)
    places = {port.device: float(place) for place, port in reversed([*enumerate(sample.ports)])}
    indexes = {gpu.bdf: float(place) for place, gpu in enumerate(sample.gpus)}
    absent = Unknown(Reason.NOT_THERE)

    def share(process: LiveProcess) -> Maybe[float]:
        part = share_of_median(process, rates.get(process.pid), middle)
        return absent if part is None else part

    def threads(process: LiveProcess) -> Maybe[float]:
        names = process.threads
        return names if isinstance(names, Unknown) else -float(sum(name.startswith("NCCL") for name in names))

    keys: SortKeys[LiveProcess] = {
        "GPU": lambda process: min((indexes.get(gpu, 1e9) for gpu in process.gpus), default=absent),
        "rank": lambda process: process.rank,
        "pid": lambda process: float(process.pid),
        "program": lambda process: _program(process).text,
        "role": lambda process: engines.role_text(process.serving) or absent,
        "peer": lambda process: engines.peers_text(process.transfer) or absent,
        "path": lambda process: process.path_text,
        "NICs": lambda process: min((places.get(nic, 1e9) for nic in process.ready_nics), default=absent),
        "Gb/s": lambda process: falling(rates[process.pid].gbps) if process.pid in rates else absent,
        "share": share,
        "registered": lambda process: -float(process.registered_bytes),
        "NCCL": threads,
        "state": lambda process: state_word(process.state),
        "CPU": lambda process: falling(process.cpu_percent),
        "bus GB/s": lambda process: falling(process.bus_gbps),
        "last event": lambda process: -newest[process.pid].at if process.pid in newest else absent,
    }
    return sorted_by_column(worst_first, keys, sort)


def _badness(
    sample: LiveSample, rates: dict[int, RankRate], middle: dict[str, float]
) -> Callable[[LiveProcess], tuple[Badness, float]]:
    """Return how bad a process is: its worst problem, then a share that is marked.

    Other shares are all 1: they would change the places each second.
    """
    badness = badness_of_process(sample)

    def key(process: LiveProcess) -> tuple[Badness, float]:
        part = share_of_median(process, rates.get(process.pid), middle)
        return badness(process), 1.0 if part is None or part >= _HALF else part

    return key


def share_of_median(process: LiveProcess, rate: RankRate | None, middle: dict[str, float]) -> float | None:
    """Return the rate of a process as a share of the median of its job; None if there is none."""
    if rate is None or rate.shared_with or isinstance(rate.gbps, Unknown):
        return None
    return rate.gbps / middle[process.job] if middle.get(process.job, 0.0) >= 1.0 else None


def state_word(state: Maybe[str]) -> str:
    """Return the state of a process in a word: "running", "stopped"."""
    return UNKNOWN_MARK if isinstance(state, Unknown) else _STATES.get(state, state)


def threads_word(process: LiveProcess) -> str:
    """Return how many NCCL threads have different names, and the transport that they show: "5 IB"."""
    if isinstance(process.threads, Unknown):
        return UNKNOWN_MARK
    names = [name for name in process.threads if name.startswith("NCCL")]
    if not names:
        return "none"
    transports = [
        word
        for word, pattern in (("IB", r"NCCL IbAsync"), ("socket", r"NCCL Sock"))
        if any(re.match(pattern, name) for name in names)
    ]
    return " ".join([str(len(names)), "+".join(transports)]).rstrip()


def _last_events(events: Sequence[LiveEvent]) -> dict[int, LiveEvent]:
    """Return the newest event of each process, by pid."""
    found: dict[int, LiveEvent] = {}
    for event in events:
        match = re.search(r"\bpid (\d{1,10})\b", event.subject)
        if match is not None:
            found[int(match[1])] = event
    return found


def _gpus(process: LiveProcess, labels: dict[str, str]) -> Run:
    names = [labels.get(bdf, bdf) for bdf in process.gpus]
    if not names:
        return Run("–", Tone.DIM)
    return Run(names[0] if len(names) == 1 else f"{names[0]}+{len(names) - 1}", Tone.GPU)


def _program(process: LiveProcess) -> Run:
    program = known(process.process.program, "") or known(process.process.comm, "") or UNKNOWN_MARK
    return Run(program[:20])


def _nics(process: LiveProcess) -> Run:
    """Return "mlx5_0-3 32 QPs": the NICs and the number of connected queue pairs; "32+": of those listed."""
    is_partial = bool(unlisted(process.own_queues))
    if not process.ready_nics:
        return Run("unlisted" if is_partial and process.nics else "–", Tone.DIM)
    names = short_names(process.ready_nics)
    cut = names if len(names) <= _NAME_CELLS else f"{names[: _NAME_CELLS - 1]}…"
    count = sum(nic.ready + (nic.open_driver if nic.is_used else 0) for nic in process.nics)
    if not count:  # UCX's connected ones are not listed, and its open ones carry nothing
        return Run(cut, Tone.NIC)
    return Run(f"{cut} {count}{'+' * is_partial} QP{'s' * (count != 1 or is_partial)}", Tone.NIC)


def short_names(devices: Sequence[str]) -> str:
    """Return "mlx5_0", "mlx5_0,1", "mlx5_0-3,6"."""
    matches = [re.fullmatch(r"(.*?)(\d+)", device) for device in devices]
    stems = {match[1] for match in matches if match is not None}
    if len(devices) < 2 or None in matches or len(stems) != 1:
        return ", ".join(devices)
    numbers = [int(match[2]) for match in matches if match is not None]
    return f"{stems.pop()}{cpu_list(numbers)}"


def _rate(rate: RankRate | None) -> Run:
    if rate is None:
        return Run("–", Tone.DIM)
    return figure_run(rate.gbps, lambda gbps: f"{'≤' if rate.shared_with else ''}{short(gbps)}")


def _share(share: float | None) -> Run:
    if share is None:
        return Run("")
    return Run(f"{share * 100:.0f}%", Tone.WARNING if share < _HALF else Tone.PLAIN)


def _registered(process: LiveProcess) -> Run:
    return Run(gibibytes(process.registered_bytes) if process.nics else "–")


def _threads(process: LiveProcess) -> Run:
    if process.role is not Role.NCCL:
        return Run("–", Tone.DIM)
    word = threads_word(process)
    return Run(word, Tone.DIM if word == UNKNOWN_MARK else Tone.PLAIN)


def _state(process: LiveProcess) -> Run:
    broken = not isinstance(process.state, Unknown) and process.state in _BROKEN_STATES
    tone = Tone.BAD if broken else Tone.DIM if isinstance(process.state, Unknown) else Tone.PLAIN
    return Run(state_word(process.state), tone)


def _event(event: LiveEvent | None) -> Run:
    return Run("") if event is None else Run(f"{local_time(event.at, '%H:%M:%S')} {event.text}", Tone.DIM)
