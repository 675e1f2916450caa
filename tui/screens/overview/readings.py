"""What was read of the node: the facts, the newest reading, rates, and their histories."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from probes.base.grouping import grouped
from probes.base.history import History
from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.gpu.gpus import Gpu, GpuFacts
from probes.facts.gpudirect import PeermemReading
from probes.facts.node import Node
from probes.facts.rdma.devices import RdmaDevice, RdmaFacts
from probes.facts.system.platform import PlatformFacts
from probes.live.model.sample import EventKind, LiveEvent, LiveSample
from probes.snapshot.nic_roles import NicRole
from probes.snapshot.rates import PortRate, Reading, netdev_rates, port_rates
from probes.topology.paths import Topology
from tui.runtime.reading_thread import Probed, Sampled
from widgets.base.figures import in_gbps
from widgets.live.changes import Change, changes_of
from widgets.live.figures import busier, rank_rates
from widgets.node import traffic
from widgets.node.endpoint_lines import NO_FIGURES, LiveFigures

_SAMPLES = 1200  # two minutes at ten a second
_EVENTS = 64  # a restart has one a rank; those that only name a finding do not count
_CHANGES = 16  # below the findings, where there is room


class Readings:
    """The newest facts of the node and the histories of its figures."""

    def __init__(self) -> None:
        self.node: Node | None = None
        self.topology: Topology | None = None
        self.roles: Mapping[str, NicRole] = {}
        self.taken_at = 0.0
        self.live_sample: LiveSample | None = None
        self.line_rates: dict[str, float] = {}  # the most that the totals can be
        self.clear()

    def clear(self) -> None:
        """Start the figures and their histories again: the next reading does not follow the newest one."""
        self.newest: Reading | None = None
        self.before: Reading | None = None
        self.rates: dict[tuple[str, int], PortRate] = {}
        self.netdev_rates: dict[str, PortRate] = {}
        self.live = NO_FIGURES  # the moving figures of the newest reading
        self.totals: dict[str, float] = {}  # the sums of all ports and GPUs, by widgets.node.traffic.TOTALS
        self.histories = {name: History() for name in ("refcnt", *traffic.TOTALS)}
        self.port_histories: dict[tuple[str, int], tuple[History, History]] = {}
        self.gpu_histories: dict[str, History] = {}  # PCIe in the busier direction, in Gb/s, by BDF
        self.rank_histories: dict[int, History] = {}  # Gb/s in the busier direction, by pid
        self._events: deque[LiveEvent] = deque(maxlen=_EVENTS)  # newest first
        self.changes: list[Change] = []  # the newest ones of these

    def apply_probe(self, report: Probed) -> None:
        """Use newly probed facts; the figures stay, because the same devices count on."""
        self.node, self.topology, self.roles = report.node, report.topology, report.roles
        self.line_rates = traffic.line_rates(report.node, report.topology, self.live)
        ports = [(device.name, port.number) for device in self.devices.values() for port in device.ports]
        self.port_histories = {port: self.port_histories.get(port, _histories()) for port in ports}

    def apply_sample(self, report: Sampled) -> None:
        """Use a new reading, with the rates since the one before."""
        before, self.newest = self.newest, report.reading
        self.before, self.taken_at = before, report.taken_at
        self.live_sample = report.live
        new = report.live.events if report.live is not None else ()
        if new:
            self._events.extendleft(event for event in new if event.kind is not EventKind.FOUND)
            self.changes = changes_of(self._events)[:_CHANGES]
        self.rates = port_rates(before, report.reading) if before else {}
        self.netdev_rates = netdev_rates(before, report.reading) if before else {}
        at = report.reading.at
        refcnt = report.reading.peermem.refcnt
        self.histories["refcnt"].add(at, refcnt if isinstance(refcnt, Unknown) else float(refcnt))
        states, self.live = self.live.states, _figures(report.reading, self.rates)
        if self.node is not None and self.topology is not None and self.live.states != states:
            self.line_rates = traffic.line_rates(self.node, self.topology, self.live)
        self.totals = traffic.totals(self.live)
        for name, total in self.totals.items():
            self.histories[name].add(at, total)
        for port, rate in self.rates.items():
            sent, received = self.port_histories.setdefault(port, _histories())
            sent.add(at, rate.sent_gbps)
            received.add(at, rate.received_gbps)
        for bdf in {**self.gpu_histories, **self.live.gpus}:
            now = self.live.gpus.get(bdf)
            pcie: Maybe[float] = Unknown(Reason.NOT_THERE)
            if now is not None:
                pcie = busier(in_gbps(now.pcie_tx_bytes_per_second), in_gbps(now.pcie_rx_bytes_per_second))
            self.gpu_histories.setdefault(bdf, _history()).add(at, pcie)
        ranks = rank_rates(report.live) if report.live is not None else {}
        self.rank_histories = {pid: self.rank_histories.get(pid) or _history() for pid in ranks}
        for pid, rank in ranks.items():
            self.rank_histories[pid].add(at, rank.gbps)

    @property
    def hostname(self) -> str:
        """The node's host name; "" while it is unknown."""
        if self.node is None or not isinstance(self.node.platform, PlatformFacts):
            return ""
        return known(self.node.platform.hostname, "")

    @property
    def devices(self) -> dict[str, RdmaDevice]:
        """The RDMA devices by name."""
        rdma = self.node.rdma if self.node is not None else None
        return {device.name: device for device in rdma.devices} if isinstance(rdma, RdmaFacts) else {}

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs."""
        gpus = self.node.gpus if self.node is not None else None
        return gpus.gpus if isinstance(gpus, GpuFacts) else ()

    @property
    def refcnts(self) -> dict[str, Maybe[int]]:
        """The reference counts of the modules."""
        return self.newest.module_refcnts if self.newest else {}

    @property
    def peermem(self) -> PeermemReading | None:
        """The state of the peer-memory module; None before the first reading."""
        return self.newest.peermem if self.newest else None

    def gpus_by_pid(self) -> dict[int, list[str]]:
        """Return which GPUs each process computes on, as NVML reports it now."""
        live = [(gpu, self.live.gpus[gpu.bdf]) for gpu in self.gpus if gpu.bdf in self.live.gpus]
        return grouped((pid, f"GPU{gpu.index}") for gpu, now in live for pid in known(now.processes, ()))


def _figures(reading: Reading, rates: dict[tuple[str, int], PortRate]) -> LiveFigures:
    ports = reading.port_states.items()
    states = {port: state for port, state in ports if not isinstance(state, Unknown)}
    return LiveFigures({} if isinstance(reading.gpus, Unknown) else reading.gpus, rates, states)


def _histories() -> tuple[History, History]:
    return _history(), _history()


def _history() -> History:
    return History(traffic.SPARK_SECONDS, _SAMPLES)
