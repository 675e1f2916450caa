"""Who would be affected by a test: jobs that use its GPUs, and users of its NICs.

A training job that computes, and storage between two bursts, send nothing for seconds. So a process with a
NIC's verbs device open (/dev/infiniband/uverbsN in /proc/PID/fd) counts as its user, whatever the traffic.
Kernel users such as NVMe over RDMA and Lustre open no such file and show only by their traffic.

Functions of one PCI device (same domain, bus and device) share one link to the host, which a loopback fills
in both directions; a virtual function's link is that of its physical function. The two connections of a
Socket Direct card are devices of their own with a link each, and the functions of a multi-host card's other
hosts are not visible here: neither counts as the same card.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from probes.bandwidth.model.planned_series import PlannedTest
from probes.base.frozen import frozen
from probes.base.text import join_limited
from probes.base.unknown import Unknown, known
from probes.facts.gpu.gpus import Gpu
from probes.facts.gpudirect import hardware_of
from probes.facts.jobs.processes import Process, ProcessFacts, names_of
from probes.facts.rdma.devices import RdmaFacts
from probes.queries.jobs import is_watcher
from probes.queries.pcie_paths import functions_of
from probes.snapshot.examination import Examination
from probes.snapshot.rates import PortRate, Reading, port_rates

BUSY_PERCENT = 5
"""GPU utilization at which a GPU counts as in use; an idle GPU shows 0."""
HELD_BYTES = 2 << 30
"""GPU memory at which it counts as in use; the driver itself takes less than 1 GiB."""
_MOST_LINES = 8
BUSY_GBPS = 0.1
"""More than a subnet manager or a routing protocol sends; a job sends a thousand times as much."""
_MOST_NAMED = 3
_NO_TRAFFIC = "though no traffic flows now"
Port = tuple[str, int]  # (RDMA device, port)


def affected_by(
    examination: Examination, tests: Iterable[PlannedTest], before: Reading | None = None
) -> tuple[str, ...]:
    """Return who would be affected by these tests, a line each.

    `before` is a reading some time before the examination's. What cannot be read has a line too: a job
    that gdrtop cannot see is not taken for idle.
    """
    tests = tuple(tests)
    peers = dict.fromkeys(process.host for test in tests for process in test.processes if process.host)
    lines = (
        *(f"{peer}: gdrtop does not check which jobs would be affected there" for peer in peers),
        *_on_gpus(examination, tests),
        *affected_on_nics(examination, tests, before),
    )
    if len(lines) <= _MOST_LINES:
        return lines
    return (*lines[: _MOST_LINES - 1], f"and {len(lines) - _MOST_LINES + 1} more")


def _on_gpus(examination: Examination, tests: tuple[PlannedTest, ...]) -> list[str]:
    live = examination.reading.gpus
    ends = [end for test in tests for end in (test.settings, test.far) if end is not None]
    indices = {index for end in ends for index in end.gpu_indices}
    used = [gpu for gpu in examination.node.known_gpus if gpu.index in indices]
    if used and isinstance(live, Unknown):
        return [f"cannot tell which jobs use the GPUs: {live}"]
    found = [(gpu, users_of_gpu(examination, gpu)) for gpu in used]
    return [f"GPU{gpu.index}: {text}" for gpu, text in found if text]


def users_of_gpu(examination: Examination, gpu: Gpu) -> str:
    """Return who uses a GPU, or why that is unknown; "": no process."""
    live = examination.reading.gpus
    if isinstance(live, Unknown):
        return f"cannot tell which jobs use it: {live}"
    now = live.get(gpu.bdf)
    if now is None:
        return "NVML does not list it"
    if isinstance(now.processes, Unknown):
        return f"cannot tell which jobs use it: {now.processes}"
    busy = known(now.utilization_percent, 0)
    utilization = f"{busy} % busy" if busy >= BUSY_PERCENT else ""
    if now.processes:
        users = summary_of(now.processes, processes_by_pid(examination))
        return ", ".join(filter(None, (f"used by {users}", utilization)))
    held = known(now.memory_used_bytes, 0)
    if not utilization and held >= HELD_BYTES:
        # A job between two steps, in another container whose processes are not visible here.
        return f"{held / (1 << 30):.0f} GiB of its memory is in use by a process that is not visible here"
    return utilization


def affected_on_nics(
    examination: Examination, tests: Iterable[PlannedTest], before: Reading | None
) -> list[str]:
    """Return who would be affected, a line each; `before`: a reading some time before the examination's."""
    rates = {} if before is None else port_rates(before, examination.reading)
    traffic = {port: _traffic(rates.get(port)) for port in examination.reading.ports}
    used = _used_ports(examination, tests)
    users_of = _users_by_nic(examination)
    processes = processes_by_pid(examination)
    lines: list[str] = []
    unseen: list[str] = []
    for nic, port in used:
        gbps = traffic.get((nic, port))
        if gbps is None:
            unseen.append(f"port {port} of {nic}")
        elif gbps >= BUSY_GBPS:
            lines.append(f"port {port} of {nic}: carries {_gbps(gbps)}")
    neighbors = _neighbors(examination, used)
    for neighbor in neighbors:
        gbps = traffic.get((neighbor.nic, neighbor.port))
        if gbps is not None and gbps >= BUSY_GBPS:
            lines.append(f"{neighbor.name}, on the same card as {neighbor.used_name}, carries {_gbps(gbps)}")
    if unseen:
        # Without counters, as in some virtual machines, only the possible users can be listed.
        listed = join_limited(unseen, _MOST_NAMED)
        lines += [f"{listed}: {text}" for text in _possible_users(examination, processes)]
    # Ports with traffic, and ports whose possible users are listed, have their line already.
    for nic in dict.fromkeys(nic for nic, _ in used):
        own = [traffic.get(port) for port in used if port[0] == nic]
        if all(gbps is not None and gbps < BUSY_GBPS for gbps in own):
            lines += _user_lines(users_of.get(nic, ()), nic, "", _NO_TRAFFIC, processes)
    for nic, used_nic in dict.fromkeys(
        (neighbor.nic, neighbor.used_nic) for neighbor in neighbors if neighbor.nic != neighbor.used_nic
    ):
        other = [traffic.get((neighbor.nic, neighbor.port)) for neighbor in neighbors if neighbor.nic == nic]
        if any(gbps is not None and gbps >= BUSY_GBPS for gbps in other):
            continue
        pids = tuple(pid for pid in users_of.get(nic, ()) if pid not in users_of.get(used_nic, ()))
        state = "its traffic is unknown" if None in other else _NO_TRAFFIC
        lines += _user_lines(pids, nic, f", on the same card as {used_nic},", state, processes)
    return lines


def _traffic(rate: PortRate | None) -> float | None:
    """Return the greater of a port's two directions, Gb/s; None if neither is known."""
    both = () if rate is None else (rate.sent_gbps, rate.received_gbps)
    return max((gbps for gbps in both if not isinstance(gbps, Unknown)), default=None)


def _gbps(gbps: float) -> str:
    return f"{gbps:.0f} Gb/s" if gbps >= 10 else f"{gbps:.1f} Gb/s"


# Which processes


def processes_by_pid(examination: Examination) -> dict[int, Process]:
    """Return the processes that use GPUs or RDMA, by pid."""
    facts = examination.processes
    processes = facts.processes if isinstance(facts, ProcessFacts) else ()
    return {process.pid: process for process in processes}


def summary_of(pids: Sequence[int], processes: Mapping[int, Process]) -> str:
    """Return "train.py (alice, pids 41000, 41001 and 6 more)"; unreadable processes are "pid 41000"."""
    named = names_of(processes[pid] for pid in pids if pid in processes)
    unread = join_limited((f"pid {pid}" for pid in pids if pid not in processes), _MOST_NAMED)
    return ", ".join(filter(None, (named, unread)))


def _users_by_nic(examination: Examination) -> dict[str, tuple[int, ...]]:
    """Return the pids that have a NIC's verbs device open, by RDMA device; only of readable processes."""
    facts, rdma = examination.processes, examination.node.rdma
    if not isinstance(facts, ProcessFacts) or not isinstance(rdma, RdmaFacts):
        return {}
    nics = {device.uverbs: device.name for device in rdma.devices if not isinstance(device.uverbs, Unknown)}
    found: dict[str, list[int]] = {}
    for pid, files in _verbs_users(facts):
        for file in files:
            if file in nics:
                found.setdefault(nics[file], []).append(pid)
    return {nic: tuple(pids) for nic, pids in found.items()}


def _verbs_users(facts: ProcessFacts) -> list[tuple[int, tuple[str, ...]]]:
    """Return pids and their open verbs devices; not gdrtop's own, and none that a test does not disturb."""
    users = [process for process in facts.processes if not process.is_ours and not is_watcher(process)]
    files = ((user.pid, known(user.uverbs_files, ())) for user in users)
    return [(pid, opened) for pid, opened in files if opened]


def _user_lines(
    pids: tuple[int, ...], nic: str, where: str, state: str, processes: dict[int, Process]
) -> list[str]:
    if not pids:
        return []
    if len(pids) == 1:
        return [f"{summary_of(pids, processes)} has {nic}{where} open, {state}"]
    first = summary_of(pids[:1], processes)
    return [f"{len(pids)} processes have {nic}{where} open ({first} …), {state}"]


def _possible_users(examination: Examination, processes: dict[int, Process]) -> list[str]:
    facts = examination.processes
    if isinstance(facts, Unknown):
        return [f"traffic unknown, and RDMA users unknown: {facts}"]
    users = [pid for pid, _ in _verbs_users(facts)]
    lines = [f"traffic unknown, RDMA is used by {summary_of(users, processes)}"] if users else []
    if facts.not_read:
        lines.append(f"traffic unknown, and {facts.not_read}")
    return lines


# Which ports


def _used_ports(examination: Examination, tests: Iterable[PlannedTest]) -> list[Port]:
    """Return the ports of both ends of every test on this node; NCCL, if it chooses, may use any."""
    ports = [*examination.reading.ports]
    used: dict[Port, None] = {}
    for test in tests:
        if test.pair.nic:
            used[test.pair.nic, test.pair.port] = None
            far_nics: tuple[str, ...] | None = (test.pair.far_nic,) if not test.pair.peer else ()
        else:
            far_nics = test.settings.nics
        used.update(dict.fromkeys(port for port in ports if far_nics is None or port[0] in far_nics))
    return list(used)


@frozen
class _Neighbor:
    """A port that no test uses, on the card of one that is used."""

    nic: str
    port: int
    name: str  # "mlx5_1", or "port 2 of mlx4_0" if the device has several
    used_nic: str
    used_name: str  # its device, or its port if both are of one device


def _neighbors(examination: Examination, used: list[Port]) -> list[_Neighbor]:
    cards = _cards(examination)
    ports = [*examination.reading.ports]
    found: dict[Port, _Neighbor] = {}
    for nic, port in used:
        for other in ports:
            same = other[0] == nic or (nic in cards and cards.get(other[0]) == cards[nic])
            if same and other not in used and other not in found:
                has_several = sum(device == other[0] for device, _ in ports) > 1
                name = f"port {other[1]} of {other[0]}" if has_several else other[0]
                found[other] = _Neighbor(*other, name, nic, f"port {port}" if other[0] == nic else nic)
    return list(found.values())


def _cards(examination: Examination) -> dict[str, str]:
    """Return domain, bus and device of each RDMA device on PCI; a virtual function has its physical one's."""
    functions = functions_of(examination)
    cards: dict[str, str] = {}
    for device in hardware_of(examination.node.rdma):
        bdf = known(device.bdf, "")
        function = functions.get(bdf)
        physical = function.physical_function if function is not None else None
        cards[device.name] = (physical or bdf).rpartition(".")[0]
    return cards
