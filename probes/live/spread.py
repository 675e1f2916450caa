"""How the traffic of a job spreads over its NICs in minutes: unevenly, or over one plane of each NIC only.

A ConnectX-8 with two planes has a PCI function and an RDMA device for each (deepseek-ai/DeepEP pull request
650, NVIDIA/nccl pull request 2244).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
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
from probes.queries.jobs import settings_of

_BUCKET_SECONDS, _BUCKETS = 60.0, 5
_LONGEST_STEP = 3.0  # seconds between samples that follow each other
_UNEVEN = 1.2  # times the average
_UNUSED = 0.01  # of the other plane's rate
_LISTS = ("NVSHMEM_HCA_LIST", "NVSHMEM_HCA_PE_MAPPING", "UCX_NET_DEVICES")
_NAMES = re.compile(r"[\w.-]+")
_Rates = Mapping[str, tuple[float, float]]  # Gb/s sent and received, by device
_Ports = Mapping[str, PortSample]


def planes_of(node: Node) -> dict[str, str]:
    """Return the other plane of each RDMA device of a ConnectX-8 with two Ethernet functions."""
    functions = node.pci.functions if isinstance(node.pci, PciFacts) else {}
    cards: dict[str, list[str]] = {}
    for device in node.rdma_devices:
        function = functions.get(known(device.bdf, ""))
        is_ethernet = all(port.link_layer == "Ethernet" for port in device.ports)
        if is_ethernet and function and function.device_id == CONNECTX_8 and not function.physical_function:
            cards.setdefault(function.bdf.rpartition(".")[0], []).append(device.name)
    pairs = [names for names in cards.values() if len(names) == 2]
    return {name: pair[not place] for pair in pairs for place, name in enumerate(pair)}


@dataclass
class _Volume:
    """What the NICs of one job carry while its processes stay the same."""

    users: object
    began: float
    at: float
    samples: list[_Rates] = field(default_factory=list)  # since it began
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
        before, self._volumes = self._volumes, {}
        jobs = []
        for job in sample.jobs:
            own = [name for name in job.own_nics if name not in sample.kernel_clients]
            taken = {*sample.kernel_clients, *(name for each in sample.jobs for name in each.nics)}
            idle = [each for name in own if (each := self._planes.get(name, "")) and each not in taken]
            found = {name: rates_of(ports.get(name)) for name in (*own, *idle)}
            rates = {name: pair for name, pair in found.items() if pair is not None}
            users, volume = (job.pids, tuple(rates)), before.get(job.id)
            if volume is None or volume.users != users or not 0 <= sample.at - volume.at <= _LONGEST_STEP:
                volume = _Volume(users, sample.at, sample.at)
            self._volumes[job.id] = volume
            volume.at = sample.at
            volume.samples.append(rates)
            if sample.at - volume.began >= _BUCKET_SECONDS:
                volume.minutes.append(_mean(volume.samples))
                volume.began, volume.samples = sample.at, []
                pids = frozenset(job.pids)
                members = [process for process in sample.processes if process.pid in pids]
                unused = tuple(self._unused(own, volume.minutes[-1], members, ports))
                volume.odd = unused or (() if job.odd else _uneven(job, own, volume.minutes, members, ports))
            jobs.append(replace(job, odd=(*job.odd, *volume.odd)) if volume.odd else job)
        return tuple(jobs)

    def _unused(
        self, own: Sequence[str], rates: _Rates, members: Sequence[LiveProcess], ports: _Ports
    ) -> Iterator[OddOne]:
        """Yield the planes that carry nothing, if that is so on each NIC and no setting leaves them out."""
        pairs = [(name, self._planes[name]) for name in own if self._planes.get(name) in rates]
        busy = [pair for pair in pairs if max(rates.get(pair[0], (0.0,))) >= LEAST_GBPS]
        if any(max(rates[other]) >= _UNUSED * max(rates[name]) for name, other in busy):
            return
        for name, other in busy:
            if all(_may_use(process, other, ports[other].port) for process in members):
                carries = gbps_text(max(rates[name]))
                text = f"{other} carries nothing, while {name}, the other plane of its NIC, carries {carries}"
                yield _odd(other, text, f"0 Gb/s on average in {_BUCKET_SECONDS:.0f} s", "plane", ports)


def _mean(samples: Sequence[_Rates]) -> dict[str, tuple[float, float]]:
    """Return the mean rates of each device, sent and received."""
    return {
        name: (
            sum(s[name][0] for s in samples) / len(samples),
            sum(s[name][1] for s in samples) / len(samples),
        )
        for name in samples[0]
    }


def _may_use(process: LiveProcess, device: str, port: int) -> bool:
    """Return whether no setting keeps a process from a device; False if its environment is unknown."""
    settings = settings_of(process.process)
    lists = [value for name in _LISTS if (value := settings.get(name) or "all") != "all"]
    is_listed = all((device in _NAMES.findall(value)) != value.startswith("^") for value in lists)
    return (
        settings.is_read
        and is_listed
        and parse_hca_list(settings.get("NCCL_IB_HCA") or "").uses(device, port)
    )


def _uneven(
    job: LiveJob,
    names: Sequence[str],
    minutes: Sequence[_Rates],
    members: Sequence[LiveProcess],
    ports: _Ports,
) -> tuple[OddOne, ...]:
    """Return the NIC that carries the most in both directions, if all have as many queue pairs and ranks.

    Inference engines and jobs with queue pairs that the kernel does not list may share their work unequally.
    """
    is_by_design = any(each.serving is not None or each.own_queues for each in members)
    is_complete = len(minutes) == _BUCKETS and len(names) > 1 and minutes[0].keys() >= set(names)
    if job.role is not Role.NCCL or is_by_design or not is_complete:
        return ()
    uses = [[use.ready for each in members for use in each.nics if use.device == name] for name in names]
    if any(sorted(use) != sorted(uses[0]) for use in uses) or not any(uses[0]):
        return ()
    means, tops, shares = _mean(minutes), set(), []
    for way in (0, 1):
        rates = {name: means[name][way] for name in names}
        top, average = max(rates, key=rates.__getitem__), sum(rates.values()) / len(rates)
        tops.add(top)
        shares.append(rates[top] / average if average >= LEAST_GBPS else 0.0)
    if len(tops) > 1 or min(shares) <= _UNEVEN:
        return ()
    text = (
        f"{top} carries {min(shares):.1f} times the average of the {len(names)} NICs of this job, "
        f"which have {plural(sum(uses[0]), 'queue pair')} each"
    )
    shown = f"{gbps_text(rates[top])} on average in {_BUCKETS} min, all NICs {gbps_text(average)}"
    return (_odd(top, text, shown, "volume", ports),)


def _odd(name: str, text: str, shown: str, aspect: str, ports: _Ports) -> OddOne:
    counter = f"/sys/class/infiniband/{name}/ports/{ports[name].port}/counters/{SENT}"
    return OddOne(name, text, (Evidence(counter, shown),), None, name, aspect)
