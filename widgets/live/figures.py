"""Figures of a live sample: sums that stay unknown, names of GPUs, counters by what they mean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from probes.base.frozen import frozen
from probes.base.grouping import grouped
from probes.base.latest import Latest
from probes.base.text import join_limited, plural
from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.gpudirect import PeermemReading
from probes.facts.rdma.port_health import PORT_COUNTERS, CounterColumn
from probes.live.model.sample import LiveSample, PortSample
from widgets.base.figures import UNKNOWN_MARK, gibibytes, short
from widgets.base.lines import Run, Tone


@frozen
class CounterGroup:
    """Counters of a port that mean the same."""

    title: str  # a column's
    meaning: str
    names: tuple[str, ...]
    tone: Tone = Tone.WARNING  # of a figure other than 0

    def rate(self, counters: Mapping[str, Maybe[float]]) -> Maybe[float]:
        """Return the events a second; unknown if none of the counters could be read."""
        found = [counters[name] for name in self.names if name in counters]
        figures = [value for value in found if not isinstance(value, Unknown)]
        if figures:
            return sum(figures)
        return next(iter(found), Unknown(Reason.NOT_THERE, "", "this port has none of these counters"))


def _group(column: CounterColumn, meaning: str, tone: Tone = Tone.WARNING) -> CounterGroup:
    names = (counter.name for counter in PORT_COUNTERS if counter.column is column)
    return CounterGroup(column.value, meaning, tuple(dict.fromkeys(names)), tone)


COUNTER_GROUPS = (
    _group(
        CounterColumn.CONGESTION,
        "congestion notifications sent and handled, and ECN marks: the fabric asks senders to slow down",
        Tone.PLAIN,
    ),
    _group(
        CounterColumn.RETRANSMITS,
        "packets lost, out of sequence or sent again; some are normal with adaptive routing",
    ),
    _group(CounterColumn.RECEIVER, "the receiver had no buffer posted, so senders wait"),
    _group(CounterColumn.DISCARDS, "packets dropped at the port"),
    _group(CounterColumn.ERRORS, "bit errors, link errors and requests that failed", Tone.BAD),
    _group(
        CounterColumn.WAIT,
        "ticks with data to send and no credits: congestion behind the port (InfiniBand)",
        Tone.PLAIN,
    ),
)


def per_second(value: Maybe[float], tone: Tone = Tone.PLAIN) -> Run:
    """Return a count of events a second: "0", "12", "1.2k"."""
    if isinstance(value, Unknown):
        return Run(UNKNOWN_MARK, Tone.DIM)
    if value >= 999_500:
        return Run(f"{value / 1e6:.1f}M", tone)
    if value >= 999.5:
        return Run(f"{value / 1e3:.1f}k", tone)
    return Run(short(value), tone) if value else Run("0", Tone.DIM)


def percent_of_time(value: Maybe[float], threshold: float) -> Run:
    """Return a share of time in percent; a warning above the threshold; "–" where nothing counts it."""
    if isinstance(value, Unknown):
        return Run("–" if value.reason is Reason.NOT_THERE else UNKNOWN_MARK, Tone.DIM)
    return Run(f"{value:.0f}%", Tone.WARNING if value > threshold else Tone.PLAIN if value else Tone.DIM)


def busier(sent: Maybe[float], received: Maybe[float]) -> Maybe[float]:
    """Return the rate of the busier direction; unknown if either is."""
    if isinstance(sent, Unknown):
        return sent
    return received if isinstance(received, Unknown) else max(sent, received)


def rate_of(port: PortSample) -> Maybe[float]:
    """Return the rate of a port in its busier direction, in Gb/s."""
    return busier(port.sent_gbps, port.received_gbps)


def added(values: Iterable[Maybe[float]]) -> Maybe[float]:
    """Return the sum; unknown if one of the values is, or if there are none."""
    sum_, count = 0.0, 0
    for value in values:
        if isinstance(value, Unknown):
            return value
        sum_, count = sum_ + value, count + 1
    return sum_ if count else Unknown(Reason.NOT_THERE, "", "no NIC")


@frozen
class RankRate:
    """What the NICs of a process carry, and which of them other processes use too."""

    sent_gbps: Maybe[float]
    received_gbps: Maybe[float]
    shared_with: tuple[str, ...] = ()  # "mlx5_0 with pid 4712 and Lustre": the rates are upper limits

    @property
    def gbps(self) -> Maybe[float]:
        """The rate in the busier direction."""
        return busier(self.sent_gbps, self.received_gbps)


_latest_rates: Latest[dict[int, RankRate]] = Latest()


def rank_rates(sample: LiveSample) -> dict[int, RankRate]:
    """Return the rate of each process with connected queue pairs, by pid; several panels ask in turn."""
    made_from = sample.processes, sample.ports, sample.kernel_clients
    return _latest_rates.get(lambda: _rank_rates(sample), objects=made_from)


def _rank_rates(sample: LiveSample) -> dict[int, RankRate]:
    processes = known(sample.processes, ())
    users = grouped((nic, process.pid) for process in processes for nic in process.ready_nics)
    ports = grouped((port.device, port) for port in sample.ports)
    rates: dict[int, RankRate] = {}
    for process in processes:
        moved = process.transfer
        if moved is not None and moved.is_moving and not process.ready_nics:  # over TCP or NVLink
            rates[process.pid] = RankRate(moved.sent_gbps, moved.received_gbps)
            continue
        own = [port for nic in process.ready_nics for port in ports.get(nic, ())]
        if process.ready_nics:
            others = grouped(
                (" and ".join(_others(users[nic], process.pid, sample.kernel_clients.get(nic, ()))), nic)
                for nic in process.ready_nics
            )
            shared = (f"{', '.join(nics)} with {who}" for who, nics in others.items() if who)
            sent = added(port.sent_gbps for port in own)
            rates[process.pid] = RankRate(sent, added(port.received_gbps for port in own), tuple(shared))
    return rates


def _others(users: Sequence[int], pid: int, clients: Sequence[str]) -> list[str]:
    """Return who else uses a NIC: "pid 4712", "Lustre"."""
    pids = [str(user) for user in users if user != pid]
    shown = [f"pid{'s' * (len(pids) > 1)} {join_limited(pids, 3)}"] if pids else []
    return [*shown, *clients]


def medians(sample: LiveSample, rates: Mapping[int, RankRate]) -> dict[str, float]:
    """Return the median rate of the ranks of each job with at least two known rates, in Gb/s."""
    found: dict[str, float] = {}
    for job in sample.jobs:
        values = [rates[pid].gbps for pid in job.pids if pid in rates]
        figures = [value for value in values if not isinstance(value, Unknown)]
        if len(figures) > 1:
            found[job.id] = median(figures)
    return found


def line_rates(sample: LiveSample) -> dict[str, float]:
    """Return the line rate of each NIC, all ports together."""
    rates: dict[str, float] = {}
    for port in sample.ports:
        rates[port.device] = rates.get(port.device, 0.0) + known(port.line_rate_gbps, 0.0)
    return rates


def memory_peers(peermem: PeermemReading) -> list[str]:
    """Return "memory_peers nv_mem: 96 memory regions, 1.2 GiB" for each client, of the whole node."""
    texts = []
    for peer in known(peermem.peers, ()):
        count = peer.live_mrs
        regions = "? memory regions" if isinstance(count, Unknown) else plural(count, "memory region")
        texts.append(f"memory_peers {peer.client}: {regions}, {gibibytes(peer.live_bytes)}")
    return texts


def gpu_labels(sample: LiveSample) -> dict[str, str]:
    """Return the names of the GPUs by BDF: "GPU0"."""
    return {gpu.bdf: f"GPU{gpu.index}" if isinstance(gpu.index, int) else gpu.bdf for gpu in sample.gpus}
