"""Who would feel a test on its NICs: traffic on their ports and on their cards, and processes that hold them.

A training job that computes and storage between two bursts send nothing for seconds: who has a NIC's verbs
device open is taken for its user, whatever flows (/dev/infiniband/uverbsN in /proc/PID/fd). The kernel's own
users, as NVMe over RDMA and Lustre, hold no such file and show by their traffic alone.

Functions of one PCI device (same domain, bus and device) have one link to the host, which a loopback fills
both ways; a virtual function's is that of its physical function. The two connections of a Socket Direct card
are devices of their own with a link each, and the functions of a multi-host card's other hosts are not seen
here: neither is taken for the same card.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from probes.bandwidth.model.planned_test import PlannedTest
from probes.bandwidth.planning.process_names import named, processes_by_pid
from probes.bandwidth.tools.nccl_tests import NcclSettings
from probes.base.unknown import Unknown, known
from probes.facts.jobs.processes import Process, ProcessFacts
from probes.facts.rdma.devices import RdmaFacts
from probes.queries.jobs import is_watcher
from probes.queries.pcie_paths import functions_of
from probes.snapshot.examination import Examination
from probes.snapshot.rates import PortRate, Reading, port_rates

BUSY_GBPS = 0.1
"""Traffic that a subnet manager or a routing protocol does not make; a job's is a thousand times this."""
_MOST_NAMED = 3
Port = tuple[str, int]  # (RDMA device, port)


def of_nics(examination: Examination, tests: tuple[PlannedTest, ...], before: Reading | None) -> list[str]:
    """Who would feel it, a line each; `before` is a reading some time before the examination's."""
    rates = {} if before is None else port_rates(before, examination.reading)
    flows = {port: _flow(rates.get(port)) for port in examination.reading.ports}
    used = _used_ports(examination, tests)
    holders = _holders(examination)
    lines: list[str] = []
    unseen: list[str] = []
    for nic, port in used:
        flow = flows.get((nic, port))
        if flow is None:
            unseen.append(f"port {port} of {nic}")
        elif flow >= BUSY_GBPS:
            lines.append(f"port {port} of {nic}: {_gbps(flow)} of traffic flow through it")
    beside = _beside(examination, used)
    for one in beside:
        flow = flows.get((one.nic, one.port))
        if flow is not None and flow >= BUSY_GBPS:
            lines.append(f"{one.name}, on the same card as {one.of}, carries {_gbps(flow)}")
    processes = processes_by_pid(examination)
    if unseen:
        # Without counters, as in some virtual machines, those who could make the traffic tell.
        listed = ", ".join(unseen[:_MOST_NAMED])
        more = f" and {len(unseen) - _MOST_NAMED} more" if len(unseen) > _MOST_NAMED else ""
        lines += [f"{listed}{more}: {one}" for one in _of_rdma_users(examination, processes)]
    # Where traffic flows, or those who could make it are named, somebody is told of already.
    for nic in dict.fromkeys(nic for nic, _ in used):
        mine = [flows.get(one) for one in used if one[0] == nic]
        if all(flow is not None and flow < BUSY_GBPS for flow in mine):
            lines += _of_holders(holders.get(nic, ()), nic, "", "though nothing flows now", processes)
    for nic, of in dict.fromkeys((one.nic, one.of_nic) for one in beside if one.nic != one.of_nic):
        theirs = [flows.get((one.nic, one.port)) for one in beside if one.nic == nic]
        if any(flow is not None and flow >= BUSY_GBPS for flow in theirs):
            continue
        others = tuple(pid for pid in holders.get(nic, ()) if pid not in holders.get(of, ()))
        still = "what flows through it is not known" if None in theirs else "though nothing flows now"
        lines += _of_holders(others, nic, f", on the same card as {of}", still, processes)
    return lines


def _flow(rate: PortRate | None) -> float | None:
    """The greater of a port's two directions, Gb/s; None where neither is known."""
    both = () if rate is None else (rate.sent_gbps, rate.received_gbps)
    return max((one for one in both if not isinstance(one, Unknown)), default=None)


def _gbps(flow: float) -> str:
    return f"{flow:.0f} Gb/s" if flow >= 10 else f"{flow:.1f} Gb/s"


# Who holds a NIC


def _holders(examination: Examination) -> dict[str, tuple[int, ...]]:
    """The pids that have a NIC's verbs device open, by RDMA device; of processes that can be looked into."""
    facts, rdma = examination.processes, examination.node.rdma
    if not isinstance(facts, ProcessFacts) or not isinstance(rdma, RdmaFacts):
        return {}
    files = {one.uverbs: one.name for one in rdma.devices if not isinstance(one.uverbs, Unknown)}
    found: dict[str, list[int]] = {}
    for pid, opened in _users(facts):
        for file in opened:
            if file in files:
                found.setdefault(files[file], []).append(pid)
    return {nic: tuple(pids) for nic, pids in found.items()}


def _users(facts: ProcessFacts) -> list[tuple[int, tuple[str, ...]]]:
    """The pids with verbs devices open, and these; not gdrtop's own, and none that no test disturbs."""
    users = [one for one in facts.processes if not one.is_ours and not is_watcher(one)]
    return [(one.pid, known(one.uverbs_files, ())) for one in users if known(one.uverbs_files, ())]


def _of_holders(
    pids: tuple[int, ...], nic: str, where: str, still: str, processes: dict[int, Process]
) -> list[str]:
    if not pids:
        return []
    if len(pids) == 1:
        return [f"{named(pids, processes)} has {nic}{where}{',' * bool(where)} open, {still}"]
    first = named(pids[:1], processes)
    return [f"{len(pids)} processes have {nic}{where}{',' * bool(where)} open ({first} …), {still}"]


def _of_rdma_users(examination: Examination, processes: dict[int, Process]) -> list[str]:
    """Who may use RDMA; nothing where nobody does."""
    facts = examination.processes
    untold = "what flows through is not known"
    if isinstance(facts, Unknown):
        return [f"{untold}, nor who uses RDMA: {facts}"]
    users = [pid for pid, _ in _users(facts)]
    lines = [f"{untold}, and RDMA is used by {named(users, processes)}"] if users else []
    if isinstance(facts.hidden, Unknown) or facts.hidden:
        hidden = (
            f"{facts.hidden} processes of others" if isinstance(facts.hidden, int) else "others' processes"
        )
        lines.append(f"{untold}, and {hidden} could not be looked into: needs root")
    return lines


# Which ports


def _used_ports(examination: Examination, tests: Iterable[PlannedTest]) -> list[Port]:
    """Both ends of every test here; NCCL, left to choose, may take any."""
    ports = [*examination.reading.ports]
    used: dict[Port, None] = {}
    for test in tests:
        settings = test.settings
        if isinstance(settings, NcclSettings):
            taken = settings.devices or (nic for nic, _ in ports)
            used.update(
                dict.fromkeys(
                    one for nic in taken for one in ports if one[0] == nic and settings.over_network
                )
            )
        elif test.pair.nic:
            used[test.pair.nic, test.pair.port] = None
            if test.pair.far_nic and not test.pair.peer:
                used.update(dict.fromkeys(one for one in ports if one[0] == test.pair.far_nic))
    return list(used)


@dataclass(frozen=True)
class _Beside:
    """A port that is not the test's own, on the card of one that is."""

    nic: str
    port: int
    name: str  # "mlx5_1", or "port 2 of mlx4_0" where the device has several
    of_nic: str
    of: str  # the test's own: its device, or its port where both are of one device


def _beside(examination: Examination, used: list[Port]) -> list[_Beside]:
    """Every such port once."""
    cards = _cards(examination)
    ports = [*examination.reading.ports]
    found: dict[Port, _Beside] = {}
    for nic, port in used:
        for other in ports:
            same = other[0] == nic or (nic in cards and cards.get(other[0]) == cards[nic])
            if same and other not in used and other not in found:
                has_several = sum(one[0] == other[0] for one in ports) > 1
                name = f"port {other[1]} of {other[0]}" if has_several else other[0]
                found[other] = _Beside(*other, name, nic, f"port {port}" if other[0] == nic else nic)
    return list(found.values())


def _cards(examination: Examination) -> dict[str, str]:
    """Domain, bus and device of each RDMA device on PCI; of a virtual function, its physical function's."""
    rdma, functions = examination.node.rdma, functions_of(examination)
    cards: dict[str, str] = {}
    for device in rdma.devices if isinstance(rdma, RdmaFacts) else ():
        if isinstance(device.bdf, Unknown):
            continue
        function = functions.get(device.bdf)
        physical = function.physical_function if function is not None else None
        cards[device.name] = (physical or device.bdf).rpartition(".")[0]
    return cards
