"""What tests measure on a simulated node, and what they add to the counters of ports.

Shares: perftest's READMEs and runs of azurehpc-health-checks, 97 to 99 % of a port and 88 to 92 % of a PCIe
link. Through the CPU and between sockets the host bridges carry less, which NVIDIA's GPUDirect RDMA manual
("Supported systems") says without figures; the shares used here are typical of user reports.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from probes.bandwidth.model.limits import (
    Bound,
    limit_of_gpu_copies,
    limit_of_host_memory,
    limit_of_pair,
    payload_share,
)
from probes.base.frozen import frozen
from probes.base.unknown import Unknown, known
from probes.facts.gpu.generations import AMPERE, generation_of
from probes.facts.gpu.gpus import Gpu
from probes.facts.pci.functions import link_gbps
from probes.facts.rdma.devices import RdmaDevice
from probes.facts.rdma.port_health import RECEIVED, SENT
from probes.queries.pcie_paths import (
    acs_exemption,
    config_of,
    express_of,
    functions_of,
    is_guest,
    redirects_of,
    turning_ports,
)
from probes.simulation.bandwidth.playback import NEVER
from probes.simulation.node.devices.ports import port_of
from probes.simulation.node.model.tree import PlacedNic, Tree
from probes.simulation.node.model.workload import angle_of
from probes.snapshot.examination import Examination
from probes.topology.nccl_paths import NEAR, Nccl
from probes.topology.paths import Path

PORT_SHARE, PCIE_SHARE = 0.982, 0.905
_THROUGH_CPU, _BETWEEN_SOCKETS = 0.52, 0.33
_READ_THROUGH_CPU = 0.8  # the root complex forwards reads of peers even slower
_REDIRECTED, _TRANSLATED_IN_GUEST = 0.46, 0.42
_BETWEEN_GRACES = 0.62
_OF_READ_REQUEST = {128: 0.5, 256: 0.66, 512: 0.84, 1024: 0.94}
_USUAL_PAYLOAD = 256
_UNKNOWN_GBPS = 80.0
_JOB_TAKES = 0.02  # share that a busy job takes from a test
_JITTER = 0.004
_MESSAGES_PER_SECOND = 4.2e6  # of one queue pair
_MOST_QUEUE_PAIRS = 6  # beyond these the NIC's own rate limits
_SHARPNESS = 4  # of the bend between both limits
C2C_GBPS = 2900.0  # what CUDA copies over Grace's chip-to-chip link


@frozen
class Place:
    """One end of a test: a port, and whose memory it uses."""

    examination: Examination
    nic: str
    port: int
    gpu: str | None  # BDF; None: host memory
    queue_pairs: int = 1
    data_direct: bool = True  # the program uses the NIC's Data Direct function, if it has one


def sustained(place: Place, nic_reads: bool, is_loopback: bool) -> float:
    """Return Gb/s of large messages at this end, one way; `nic_reads`: the NIC reads from the memory."""
    examination, nic, port, pairs = place.examination, place.nic, place.port, place.queue_pairs
    limit = (
        limit_of_host_memory(examination, nic, port, is_loopback, pairs)
        if place.gpu is None
        else limit_of_pair(examination, place.gpu, nic, port, is_loopback, pairs, place.data_direct)
    )
    ports = _least(bound for bound in limit.bounds if not bound.is_pcie) * PORT_SHARE
    links = _least(bound for bound in limit.bounds if bound.is_pcie)
    links = (links if math.isfinite(links) else _own_links(place)) * PCIE_SHARE
    if nic_reads:
        links *= _of_read_requests(examination, nic)
    if place.gpu is not None:
        links *= path_share(examination, place.gpu, nic, nic_reads)
    least = min(ports, links)
    return least if math.isfinite(least) else _UNKNOWN_GBPS


def _least(bounds: Iterable[Bound]) -> float:
    return min((bound.gbps for bound in bounds if not isinstance(bound.gbps, Unknown)), default=math.inf)


def _own_links(place: Place) -> float:
    """Return what the devices' own links carry: on a root bus, as in a guest, there are no others."""
    functions = functions_of(place.examination)
    device = device_of(place.examination, place.nic)
    ends = ("" if device is None else known(device.bdf, ""), place.gpu or "")
    links = [functions[bdf].link for bdf in ends if bdf in functions]
    return min(
        (
            link_gbps(link.max_speed_gtps, link.max_width) * payload_share(_USUAL_PAYLOAD)
            for link in links
            if not isinstance(link.max_speed_gtps, Unknown) and not isinstance(link.max_width, Unknown)
        ),
        default=math.inf,
    )


def path_share(examination: Examination, gpu: str, nic: str, nic_reads: bool) -> float:
    """Return the share of the PCIe links' bandwidth that remains between a GPU and a NIC."""
    path = examination.topology.paths.get((gpu, nic))
    if path is None:
        return _THROUGH_CPU
    guest = is_guest(examination)
    device = device_of(examination, nic)
    has_own_nics = device is not None and device.driver == "efa"  # AWS shows its guests the switches
    if not isinstance(guest, Unknown) and guest and not has_own_nics:
        return _in_guest(examination, gpu, nic)
    if path.nccl is Nccl.P2C:
        return 1.0
    reading = _READ_THROUGH_CPU if nic_reads else 1.0
    if any(hop.link == "SMP" for hop in path.hops):
        card = _card_of(examination, gpu)
        by_c2c = card is not None and known(card.c2c_links, 0)
        return _BETWEEN_GRACES if by_c2c else _BETWEEN_SOCKETS * reading
    if path.crosses_host_bridge:
        return _THROUGH_CPU * reading
    return _REDIRECTED * reading if is_redirected(examination, path) else 1.0


def _in_guest(examination: Examination, gpu: str, nic: str) -> float:
    """Return the share in a guest, which sees no switches: each GPU is beside the NIC of its own number."""
    topology = examination.topology
    gpus, nics = ([end.id for end in ends] for ends in (topology.gpus, topology.nics))
    bdf = next((known(end.bdf, "") for end in topology.nics if end.id == nic), "")
    space = config_of(examination, bdf)
    if isinstance(space, Unknown) or not known(space.ats_enabled, False):
        return _TRANSLATED_IN_GUEST
    if gpu in gpus and nic in nics and gpus.index(gpu) == nics.index(nic):
        return 1.0
    return _THROUGH_CPU


def is_redirected(examination: Examination, path: Path) -> bool:
    """Return whether ACS redirects the traffic of this path to the CPU."""
    if acs_exemption(examination) is not None:
        return False
    ports = redirects_of(examination).ports
    return any(bdf in ports for bdf in turning_ports(examination, path))


def is_unreachable(examination: Examination, gpu: str, nic: str) -> bool:
    """Return whether transfers fail, because ACS redirects them to a translating IOMMU."""
    path = examination.topology.paths.get((gpu, nic))
    function = functions_of(examination).get(gpu)
    if path is None or function is None or not known(function.iommu_type, "").startswith("DMA"):
        return False
    return is_redirected(examination, path)


def _of_read_requests(examination: Examination, nic: str) -> float:
    device = device_of(examination, nic)
    express = express_of(examination, "" if device is None else known(device.bdf, ""))
    if isinstance(express, Unknown):
        return 1.0
    return _OF_READ_REQUEST.get(known(express.max_read_request_bytes, 4096), 1.0)


def devices_of(examination: Examination) -> tuple[RdmaDevice, ...]:
    """Return the RDMA devices that programs see."""
    rdma = examination.node.rdma
    return () if isinstance(rdma, Unknown) else rdma.devices


def device_of(examination: Examination, nic: str) -> RdmaDevice | None:
    """Return an RDMA device by name."""
    return next((device for device in devices_of(examination) if device.name == nic), None)


def _card_of(examination: Examination, gpu: str) -> Gpu | None:
    return next((card for card in examination.node.known_gpus if card.bdf == gpu), None)


def beside_job(gbps: float, job_gbps: float, line_gbps: float) -> float:
    """Return what remains on a port that a job keeps busy; the job sends in bursts."""
    return gbps * (1 - _JOB_TAKES * min(1.0, job_gbps / line_gbps if line_gbps else 0.0))


def of_size(size_bytes: int, sustained_gbps: float, queue_pairs: int = 1) -> float:
    """Return Gb/s of messages of one size: the message rate limits small ones."""
    rate = _MESSAGES_PER_SECOND * min(max(queue_pairs, 1), _MOST_QUEUE_PAIRS)
    by_number = rate * size_bytes * 8 / 1e9
    return float(by_number * (1 + (by_number / sustained_gbps) ** _SHARPNESS) ** (-1 / _SHARPNESS))


def latency_us(place: Place, far: Place, is_read: bool) -> float:
    """Return microseconds of the smallest message: half of the round trip, for reads the whole."""
    latency = 1.75
    for end, reads in ((place, not is_read), (far, is_read)):
        if end.gpu is not None:
            latency += 0.45 + 1.6 * (1 - path_share(end.examination, end.gpu, end.nic, reads))
    return latency * (1.7 if is_read else 1.0)


def jittered(figure: float, seed: int, what: str, at: float) -> float:
    """Return a figure with jitter below half a percent, the same for equal seeds and moments."""
    return figure * (1 + _JITTER * (angle_of(seed, f"{what} {at:.4f}") / math.pi - 1))


def host_to_gpu_gbps(examination: Examination, gpu: str) -> float:
    """Return Gb/s of copies between the host and a GPU by its copy engines."""
    limit = limit_of_gpu_copies(examination, gpu)
    if not limit.bounds:
        return C2C_GBPS
    least = _least(limit.bounds) * 0.955
    return least if math.isfinite(least) else _UNKNOWN_GBPS


# NVLink

_OVER_SWITCH, _OVER_CPU, _OVER_SOCKETS = 0.94, 0.62, 0.45


def nvlink_gbps(examination: Examination, gpu: str) -> float:
    """Return Gb/s each way of all NVLinks of a GPU that are up; 0 without any."""
    card = _card_of(examination, gpu)
    if card is None:
        return 0.0
    links = sum(count for _, count in known(card.nvlink_peers, ()))
    generation = generation_of(known(card.compute_capability, AMPERE.capability)) or AMPERE
    return links * generation.nvlink_gbps


def gpu_to_gpu_gbps(examination: Examination, a: str, b: str) -> float:
    """Return Gb/s of copies between two GPUs over PCIe."""
    path = examination.topology.paths.get((a, b))
    gbps = min(host_to_gpu_gbps(examination, gpu) for gpu in (a, b))
    if path is None or path.nccl_pcie is Nccl.SYS:
        return gbps * _OVER_SOCKETS
    return gbps * (_OVER_SWITCH if path.nccl_pcie in NEAR else _OVER_CPU)


# The counters of a simulated node's ports: what tests add, and what the running job leaves to them.

_UNITS_OF_GIGABIT = 1e9 / 32  # counters count units of four octets


@dataclass
class Flow:
    """Traffic of one test on one counter; times in seconds since the node started."""

    since: float
    gbps: float
    until: float = NEVER


@dataclass
class _Counter:
    """One counter file of a port: the job's own count, and that of the tests."""

    job: Callable[[float], int]
    line_gbps: float
    flows: list[Flow] = field(default_factory=list)
    finished: float = 0.0  # units that finished flows have added

    def total(self, seconds: float) -> int:
        return int(self.job(seconds) + self.added(seconds))

    def added(self, seconds: float) -> float:
        """Return the tests' units, minus those that the job had to give up: both share one line."""
        flows = [flow for flow in self.flows if flow.since < seconds]
        edges = {min(edge, seconds) for flow in flows for edge in (flow.since, flow.until)}
        moments = sorted(edges)
        units = self.finished
        for begin, end in pairwise(moments):
            gbps = sum(flow.gbps for flow in flows if flow.since <= begin and end <= flow.until)
            share = min(1.0, gbps / self.line_gbps) if self.line_gbps else 0.0
            units += gbps * (end - begin) * _UNITS_OF_GIGABIT
            units -= share * (self.job(end) - self.job(begin))
        return units

    def add(self, flow: Flow, now: float) -> None:
        if self.flows and all(each.until <= now for each in self.flows):
            self.finished, self.flows = self.added(now), []
        self.flows.append(flow)


class Traffic:
    """The counters of all ports of a node; `advance` does what is due between programs."""

    def __init__(self, tree: Tree, advance: Callable[[], None]) -> None:
        self._counters: dict[tuple[str, str], _Counter] = {}
        for nic in tree.nics:
            for name in (SENT, RECEIVED):
                self._replace(tree, nic, name, advance)

    def _replace(self, tree: Tree, nic: PlacedNic, name: str, advance: Callable[[], None]) -> None:
        path = f"{port_of(nic)}/counters/{name}"
        content = tree.files.get(path)
        if content is None:
            return

        def job(seconds: float) -> int:
            text = content(seconds) if callable(content) else content
            return int(text) if isinstance(text, str) and text.strip().isdecimal() else 0

        counter = _Counter(job, nic.kind.line_gbps)
        self._counters[nic.name, name] = counter

        def show(seconds: float) -> str:
            advance()
            return f"{counter.total(seconds)}\n"

        tree.add(path, show)

    def add(self, nic: str, name: str, flow: Flow, now: float) -> None:
        """Add a test's traffic, from now on at the earliest: counters never go back."""
        counter = self._counters.get((nic, name))
        if counter is not None:
            flow.since = max(flow.since, now)
            counter.add(flow, now)

    def job_gbps(self, nic: str, seconds: float) -> float:
        """Return the Gb/s that the job sends over a NIC, without the tests."""
        counter = self._counters.get((nic, SENT))
        if counter is None:
            return 0.0
        return max(0.0, counter.job(seconds) - counter.job(seconds - 1.0)) / _UNITS_OF_GIGABIT


def stop(flows: Iterable[Flow], seconds: float) -> None:
    """End the flows of a test that was stopped."""
    for flow in flows:
        flow.until = min(flow.until, seconds)
