"""The rank that differs from an otherwise uniform job: path, NICs, PCIe link, CPU affinity, stopped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import TypeVar

from probes.base.evidence import Evidence
from probes.base.frozen import frozen
from probes.base.text import plural
from probes.base.unknown import Unknown, known, map_known
from probes.facts.node import Node
from probes.facts.pci.functions import PciFacts, PciFunction, words
from probes.facts.system.numa import parse_list
from probes.live.events.gpus import FULL_SPEED_PERCENT
from probes.live.model.sample import GpuSample, LiveJob, LiveProcess, OddOne, PathWord, path_phrase

LEAST = 3  # members; of two, neither is the odd one
_PART = 4  # at most one in four may be odd
H = TypeVar("H", bound=Hashable)
T = TypeVar("T")


@frozen
class Places:
    """Where the GPUs and NICs of a node are."""

    functions: Mapping[str, PciFunction]  # by BDF
    nics: Mapping[str, str]  # RDMA device -> BDF
    gpu_nodes: Mapping[str, int]  # BDF -> NUMA node
    cpus: Mapping[int, frozenset[int]]  # NUMA node -> CPUs


def places_of(node: Node) -> Places:
    """Return what is known of the places; the rest is left out."""
    devices, gpus = node.rdma_devices, node.known_gpus
    nodes = () if isinstance(node.numa, Unknown) else node.numa.nodes
    return Places(
        node.pci.functions if isinstance(node.pci, PciFacts) else {},
        {device.name: device.bdf for device in devices if not isinstance(device.bdf, Unknown)},
        {gpu.bdf: gpu.numa_node for gpu in gpus if not isinstance(gpu.numa_node, Unknown)},
        {numa.number: _cpus(numa.cpulist) for numa in nodes if not isinstance(numa.cpulist, Unknown)},
    )


@lru_cache(maxsize=256)
def _cpus(text: str) -> frozenset[int]:
    return frozenset(parse_list(text) or ())


def odd_members(members: Sequence[T], value: Callable[[T], H | None]) -> tuple[list[T], H] | None:
    """Return the few members whose value differs from that of all others, and the others' value.

    None: all are alike, there is no uniform majority, or a value is unknown (None).
    """
    values = [value(member) for member in members]
    # Nearly always all are alike.
    if len(values) < LEAST or values.count(values[0]) == len(values) or None in values:
        return None
    usual = Counter(values).most_common(1)[0][0]
    odd = [member for member, value in zip(members, values, strict=True) if value != usual]
    if usual is None or len(odd) > max(1, len(members) // _PART):
        return None
    return odd, usual


def members_of(job: LiveJob, processes: Iterable[LiveProcess]) -> list[LiveProcess]:
    """Return the processes of a job that use a GPU or a NIC: not its launcher and its data loaders."""
    pids = frozenset(job.pids)
    return [process for process in processes if process.pid in pids and (process.gpus or process.ready_nics)]


def what_counts(process: LiveProcess) -> tuple[object, ...]:
    """Return everything of a member that may be odd."""
    path = process.path.word
    return process.pid, process.process, process.state, path, process.gpus, process.ready_nics


def odd_ranks(members: Sequence[LiveProcess], places: Places) -> dict[tuple[str, str], OddOne]:
    """Return the odd ranks of a job by aspect and subject."""
    found: dict[tuple[str, str], OddOne] = {}

    def add(aspect: str, process: LiveProcess, said: str, *evidence: Evidence) -> None:
        subject = subject_of(process)
        found[aspect, subject] = OddOne(subject, f"{subject} {said}", evidence, process.pid, aspect=aspect)

    stopped = odd_members(members, attrgetter("is_stopped"))
    for process in stopped[0] if stopped else ():
        others = _others(members, stopped, "are waiting for it" if process.is_stopped else "are stopped")
        add("state", process, f"{'is stopped' if process.is_stopped else 'is running'}; {others}")
    paths = odd_members(members, lambda each: None if each.path.word is PathWord.UNKNOWN else each.path.word)
    if paths:
        others = _others(members, paths, path_phrase(paths[1], of_many=True))
        for process in paths[0]:
            path = process.path
            if path.word is not PathWord.NO_NIC:
                said = f"{'likely ' * path.is_likely}{path_phrase(path.word)}; {others}"
                add("path", process, said, *path.evidence)
    if nics := odd_members(members, lambda process: len(process.ready_nics)):
        usual = f"use {plural(nics[1], 'NIC')} each"
        for process in nics[0]:
            add("nics", process, f"{_said_nics(process)}; {_others(members, nics, usual)}")
    near = None if nics else odd_members(members, lambda process: _place(process, places))
    for process in near[0] if near else ():
        place = _place(process, places)
        if near and place is not None and place > near[1]:
            said = f"uses {', '.join(process.ready_nics[:3])} {_PLACES[place][0]}"
            add("place", process, f"{said}; {_others(members, near, f'use a NIC {_PLACES[near[1]][1]}')}")
    cpus = odd_members(members, lambda process: _cpus_are_near(process, places))
    for process in cpus[0] if cpus and cpus[1] else ():
        said = "is limited to CPUs on a different NUMA node than its GPU"
        allowed = Evidence(f"/proc/{process.pid}/status", f"Cpus_allowed_list: {_allowed_cpus(process)}")
        add("cpus", process, f"{said}; {_others(members, cpus, 'run near theirs')}", allowed)
    return found


def odd_nic_links(names: Sequence[str], places: Places) -> dict[tuple[str, str], OddOne]:
    """Return the NICs of a job whose PCIe link differs from the others'."""

    def link(name: str) -> str | None:
        function = places.functions.get(places.nics.get(name, ""))
        return None if function is None else words(function.link.speed_gtps, function.link.width) or None

    found = {}
    if odd := odd_members(names, link):
        others = f"the other {len(names) - len(odd[0])} NICs of this job have {odd[1]}"
        for name in odd[0]:
            source = f"/sys/bus/pci/devices/{places.nics[name]}/current_link_speed"
            sentence = f"{name} has a PCIe link of {link(name)}; {others}"
            evidence = (Evidence(source, link(name) or ""),)
            found["link", name] = OddOne(name, sentence, evidence, None, name, "link")
    return found


def odd_gpu_links(
    job: LiveJob, processes: Iterable[LiveProcess], gpus: Iterable[GpuSample]
) -> dict[tuple[str, str], OddOne]:
    """Return the GPUs of a job whose PCIe link differs; an idle GPU lowers its speed, but not its width."""
    pids = frozenset(job.pids)
    owners = {bdf: process for process in processes if process.pid in pids for bdf in process.gpus}
    members = [gpu for gpu in gpus if gpu.bdf in owners]
    lives = [gpu.live for gpu in members if not isinstance(gpu.live, Unknown)]
    if len({(live.link_generation, live.link_width) for live in lives}) < 2:  # nearly always
        return {}
    are_busy = all(known(live.utilization_percent, 0) >= FULL_SPEED_PERCENT for live in lives)

    def link(gpu: GpuSample) -> str | None:
        if isinstance(gpu.live, Unknown) or isinstance(gpu.live.link_width, Unknown):
            return None
        if not are_busy:
            return f"x{gpu.live.link_width}"
        speed = gpu.live.link_generation
        return None if isinstance(speed, Unknown) else f"Gen{speed} x{gpu.live.link_width}"

    found = {}
    if odd := odd_members(members, link):
        others = f"the other {len(members) - len(odd[0])} GPUs of this job have {odd[1]}"
        for gpu in odd[0]:
            name = gpu.bdf if isinstance(gpu.index, Unknown) else f"GPU {gpu.index}"
            sentence = f"{name} has a PCIe link of {link(gpu)}; {others}"
            evidence = (Evidence(f"NVML, {gpu.bdf}", link(gpu) or ""),)
            found["link", name] = OddOne(name, sentence, evidence, owners[gpu.bdf].pid, gpu.bdf, "link")
    return found


def subject_of(process: LiveProcess) -> str:
    """Return "rank 5 (pid 4716)", or "pid 4716" if the rank is unknown."""
    if isinstance(process.rank, Unknown):
        return f"pid {process.pid}"
    return f"rank {process.rank} (pid {process.pid})"


def _others(members: Sequence[LiveProcess], odd: tuple[list[LiveProcess], object] | None, what: str) -> str:
    count = len(members) - (len(odd[0]) if odd else 0)
    return f"the other {count} ranks of this job {what}"


def _said_nics(process: LiveProcess) -> str:
    if not (names := process.ready_nics):
        return "uses no NIC"
    return f"uses {len(names)} NICs" if len(names) > 3 else f"uses {', '.join(names)}"


_PLACES = (
    ("below the PCIe switch of its GPU", "below their GPU's PCIe switch"),
    ("on the NUMA node of its GPU", "on their GPU's NUMA node"),
    ("on a different NUMA node than its GPU", "on a different NUMA node than their GPU"),
)


def _place(process: LiveProcess, places: Places) -> int | None:
    """Return how near its nearest NIC is to its GPU, as an index of _PLACES."""
    if len(process.gpus) != 1 or not process.ready_nics:
        return None
    gpu = places.functions.get(process.gpus[0])
    gpu_node = places.gpu_nodes.get(process.gpus[0])
    nics = [places.functions.get(places.nics.get(name, "")) for name in process.ready_nics]
    if gpu is None or gpu_node is None:
        return None
    distances = []
    for nic in nics:
        if nic is None or isinstance(nic.numa_node, Unknown):
            return None
        # Below one switch, the chains share more than the root port.
        shared = sum(a == b for a, b in zip(gpu.chain, nic.chain, strict=False))
        distances.append(0 if shared > 1 else 1 if nic.numa_node == gpu_node else 2)
    return min(distances)


def _cpus_are_near(process: LiveProcess, places: Places) -> bool | None:
    """Return whether the process may run on a CPU near its GPU."""
    nodes = {places.gpu_nodes.get(gpu) for gpu in process.gpus}
    number = nodes.pop() if len(nodes) == 1 else None
    near = None if number is None else places.cpus.get(number)
    allowed = _cpus(_allowed_cpus(process))
    return bool(near & allowed) if near and allowed else None


def _allowed_cpus(process: LiveProcess) -> str:
    """Return the CPUs on which a process may run, as a list; "" if they are unknown."""
    return known(map_known(process.process.usage, lambda usage: usage.cpus), "")
