"""How the traffic of a job spreads over its NICs in minutes: unevenly, or over one plane of each NIC only.

A ConnectX-8 with two planes has a PCI function and an RDMA device for each (deepseek-ai/DeepEP pull request
650, NVIDIA/nccl pull request 2244).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from probes.base.evidence import Evidence
from probes.base.text import plural
from probes.base.unknown import Unknown, known
from probes.facts.node import Node
from probes.facts.pci.functions import PciFacts
from probes.facts.pci.nic_families import CONNECTX_8
from probes.facts.rdma.port_health import SENT
from probes.live.model.activity import LEAST_GBPS, rates_of
from probes.live.model.sample import LiveJob, LiveProcess, LiveSample, OddOne, PortSample, Role
from probes.live.odd_one_out import gbps_text
from probes.nccl.settings import parse_hca_list

_BUCKET_SECONDS, _BUCKETS = 60.0, 5
_LONGEST_STEP = 3.0  # seconds; a rate says nothing of missed samples
_UNEVEN = 1.2  # times the average
_UNUSED = 0.01  # of the other plane's rate
_HCAS = "NCCL_IB_HCA"
_LISTS = ("NVSHMEM_HCA_LIST", "NVSHMEM_HCA_PE_MAPPING", "UCX_NET_DEVICES")
_Rates = Mapping[str, tuple[float, float]]  # Gb/s sent and received, by device


def planes_of(node: Node) -> dict[str, str]:
    """Return the other plane of each RDMA device of a ConnectX-8 with two Ethernet functions."""
    functions = node.pci.functions if isinstance(node.pci, PciFacts) else {}
    cards: dict[str, list[str]] = {}
    for device in node.rdma_devices:
        function = functions.get(known(device.bdf, ""))
        is_ethernet = all(port.link_layer == "Ethernet" for port in device.ports)
        if function is None or function.device_id != CONNECTX_8 or not is_ethernet:
            continue
        if function.physical_function is None:
            cards.setdefault(function.bdf.rpartition(".")[0], []).append(device.name)
    pairs = [names for names in cards.values() if len(names) == 2]
    return {name: pair[not place] for pair in pairs for place, name in enumerate(pair)}


@dataclass
class _Volume:
    """What the NICs of one job carry while its processes stay the same."""

    users: object
    at: float
    began: float
    carried: dict[str, list[float]]  # Gb sent and received since then
    minutes: deque[_Rates] = field(default_factory=lambda: deque(maxlen=_BUCKETS))
    odd: tuple[OddOne, ...] = ()  # as of the last full minute


class Spread:
    """Compare the NICs of each job over minutes."""

    def __init__(self) -> None:
        self._volumes: dict[str, _Volume] = {}  # by job
        self._node: Node | None = None
        self._planes: dict[str, str] = {}

    def update(self, sample: LiveSample, node: Node) -> tuple[LiveJob, ...]:
        """Return the jobs, with what is odd in their spread; nothing of NICs that others use as well."""
        if node is not self._node:
            self._node, self._planes = node, planes_of(node)
        if isinstance(sample.processes, Unknown):
            return sample.jobs
        ports = {port.device: port for port in sample.ports}
        others = {name for job in sample.jobs for name in job.shared_nics} | set(sample.kernel_clients)
        before, self._volumes = self._volumes, {}
        jobs = []
        for job in sample.jobs:
            own = tuple(name for name in job.own_nics if name not in others)
            taken = others.union(*(other.nics for other in sample.jobs if other is not job))
            planes = [self._planes[name] for name in own if name in self._planes]
            rates = _rates((*own, *(name for name in planes if name not in taken)), own, ports)
            if len(rates) < 2:
                jobs.append(job)
                continue
            volume = self._volumes[job.id] = _add(before.get(job.id), job, rates, sample.at)
            if sample.at - volume.began >= _BUCKET_SECONDS:
                seconds = sample.at - volume.began
                volume.minutes.append(
                    {name: (sums[0] / seconds, sums[1] / seconds) for name, sums in volume.carried.items()}
                )
                volume.began, volume.carried = sample.at, {name: [0.0, 0.0] for name in rates}
                pids = frozenset(job.pids)
                members = [process for process in sample.processes if process.pid in pids]
                unused = tuple(self._unused(own, volume.minutes[-1], members, ports))
                uneven = () if unused or job.odd else _uneven(job, own, volume.minutes, members, ports)
                volume.odd = (*unused, *uneven)
            jobs.append(replace(job, odd=(*job.odd, *volume.odd)) if volume.odd else job)
        return tuple(jobs)

    def _unused(
        self,
        own: Sequence[str],
        rates: _Rates,
        members: Sequence[LiveProcess],
        ports: Mapping[str, PortSample],
    ) -> Iterator[OddOne]:
        """Yield the planes that carry nothing, if that is so on each NIC and no setting leaves them out."""
        pairs = [(name, self._planes[name]) for name in own if self._planes.get(name) in rates]
        busy = [pair for pair in pairs if max(rates[pair[0]]) >= LEAST_GBPS]
        if not all(max(rates[other]) < _UNUSED * max(rates[name]) for name, other in busy):
            return
        for name, other in busy:
            if all(_may_use(process, other, ports[other].port) for process in members):
                carries = gbps_text(max(rates[name]))
                text = f"{other} carries nothing, while {name}, the other plane of its NIC, carries {carries}"
                shown = f"{gbps_text(max(rates[other]))} on average in {_BUCKET_SECONDS:.0f} s"
                evidence = Evidence(_counter(ports[other]), shown)
                yield OddOne(other, text, (evidence,), None, other, "plane")


def _rates(names: Iterable[str], own: Sequence[str], ports: Mapping[str, PortSample]) -> _Rates:
    """Return the rates of active ports; {} if those of a NIC of the job are unknown."""
    found = {name: pair for name in names if (pair := rates_of(ports.get(name))) is not None}
    return found if all(name in found for name in own) else {}


def _add(volume: _Volume | None, job: LiveJob, rates: _Rates, at: float) -> _Volume:
    """Add a sample; a job whose processes or NICs are others begins again."""
    users = (job.pids, tuple(rates))
    if volume is None or volume.users != users or not 0 <= at - volume.at <= _LONGEST_STEP:
        return _Volume(users, at, at, {name: [0.0, 0.0] for name in rates})
    for name, pair in rates.items():
        for way, rate in enumerate(pair):
            volume.carried[name][way] += rate * (at - volume.at)
    volume.at = at
    return volume


def _may_use(process: LiveProcess, device: str, port: int) -> bool:
    """Return whether no setting keeps a process from a device; False if its environment is unknown."""
    facts = process.process
    if isinstance(facts.environment, Unknown):
        return False
    conf: dict[str, str] = getattr(facts.nccl_conf, "values", {})
    lists = [facts.environment[name] for name in _LISTS if name in facts.environment]
    hcas = parse_hca_list(facts.environment.get(_HCAS, conf.get(_HCAS, "")))
    return hcas.uses(device, port) and all(text == "all" or device in text for text in lists)


def _uneven(
    job: LiveJob,
    names: Sequence[str],
    minutes: Sequence[_Rates],
    members: Sequence[LiveProcess],
    ports: Mapping[str, PortSample],
) -> tuple[OddOne, ...]:
    """Return the NIC that carries the most in both directions, if all have as many queue pairs and ranks.

    Inference engines and jobs with queue pairs that the kernel does not list may share their work unequally.
    """
    is_by_design = any(each.serving is not None or each.own_queues for each in members)
    if job.role is not Role.NCCL or is_by_design or len(minutes) < _BUCKETS or len(names) < 2:
        return ()
    uses = [[use.ready for each in members for use in each.nics if use.device == name] for name in names]
    if any(sorted(use) != sorted(uses[0]) for use in uses) or not sum(uses[0]):
        return ()
    busiest, shares = set(), []
    for way in (0, 1):
        means = {name: sum(rates[name][way] for rates in minutes) / len(minutes) for name in names}
        average = sum(means.values()) / len(names)
        top = max(means, key=means.__getitem__)
        busiest.add(top)
        shares.append(means[top] / average if average >= LEAST_GBPS else 0.0)
    if len(busiest) > 1 or min(shares) <= _UNEVEN:
        return ()
    text = (
        f"{top} carries {min(shares):.1f} times the average of the {len(names)} NICs of this job, "
        f"which have {plural(sum(uses[0]), 'queue pair')} each"
    )
    shown = f"{gbps_text(means[top])} on average in {_BUCKETS} min, all NICs {gbps_text(average)}"
    return (OddOne(top, text, (Evidence(_counter(ports[top]), shown),), None, top, "volume"),)


def _counter(port: PortSample) -> str:
    return f"/sys/class/infiniband/{port.device}/ports/{port.port}/counters/{SENT}"
