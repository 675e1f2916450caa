"""Who would feel a test: jobs that use its GPUs, and traffic on its ports."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probes.bandwidth.other_commands import GdrcopySettings, NcclSettings, NvbandwidthSettings
from probes.bandwidth.perftest_command import PerftestSettings
from probes.bandwidth.planned import PlannedTest
from probes.bandwidth.purpose import Settings
from probes.examination import Examination
from probes.gpus import Gpu, GpuFacts
from probes.nvml import NvmlLive
from probes.processes import ProcessFacts
from probes.rates import Reading, port_rates
from probes.unknown import Unknown, known

BUSY_PERCENT = 5
"""Utilisation from which on somebody is taken to be using a GPU; an idle one shows 0."""
BUSY_GBPS = 0.1
"""Traffic that a subnet manager or a routing protocol does not make; a job's is a thousand times this."""
HELD_BYTES = 2 << 30
"""GPU memory from which on somebody is taken to hold it: the driver itself takes less than 1 GiB."""
_MOST_NAMED = 8


def felt_by(
    examination: Examination, tests: Iterable[PlannedTest], before: Reading | None = None
) -> tuple[str, ...]:
    """Who would feel these tests, a line each; `before` is a reading some time before the examination's.

    What cannot be read is told as well: nobody may be taken for idle because it was not seen.
    """
    tests = tuple(tests)
    lines = (
        *_of_peers(tests),
        *_of_gpus(examination, tests),
        *_of_ports(examination, tests, before),
    )
    if len(lines) <= _MOST_NAMED:
        return lines
    return (*lines[: _MOST_NAMED - 1], f"and {len(lines) - _MOST_NAMED + 1} more")


def _of_peers(tests: tuple[PlannedTest, ...]) -> list[str]:
    """The nodes on which gdrtop starts an end itself."""
    peers = dict.fromkeys(end.host for test in tests for end in test.ends if end.host)
    return [
        f"whether somebody at {peer} would feel it is not known: gdrtop does not look there" for peer in peers
    ]


def _of_gpus(examination: Examination, tests: tuple[PlannedTest, ...]) -> list[str]:
    facts, live = examination.node.gpus, examination.reading.gpus
    used = [gpu for gpu in facts.gpus if _is_used(gpu, tests)] if isinstance(facts, GpuFacts) else []
    if not used:
        return []
    if isinstance(live, Unknown):
        return [f"whether somebody uses the GPUs is not known: {live}"]
    names = _names(examination)
    lines = []
    for gpu in used:
        now = live.get(gpu.bdf)
        told = "NVML does not list it" if now is None else _of_gpu(now, names)
        if told:
            lines.append(f"GPU{gpu.index}: {told}")
    return lines


def _of_gpu(now: NvmlLive, names: dict[int, str]) -> str:
    if isinstance(now.processes, Unknown):
        return f"whether somebody uses it is not known: {now.processes}"
    busy = known(now.utilisation_percent, 0)
    used = f", {busy} % busy" if busy >= BUSY_PERCENT else ""
    if now.processes:
        return f"process {_named(now.processes, names)} computes on it{used}"
    held = known(now.memory_used_bytes, 0)
    if not used and held >= HELD_BYTES:
        # A job between two steps, in another container whose processes are not seen here.
        return f"{held / (1 << 30):.0f} GiB of its memory are in use, by nobody that is seen from here"
    return used.removeprefix(", ")


def _named(pids: Sequence[int], names: dict[int, str]) -> str:
    named = ", ".join(f"{pid} {names.get(pid, '')}".rstrip() for pid in pids[:3])
    return f"{named} and {len(pids) - 3} more" if len(pids) > 3 else named


def _names(examination: Examination) -> dict[int, str]:
    facts = examination.processes
    processes = facts.processes if isinstance(facts, ProcessFacts) else ()
    return {one.pid: f"({one.comm})" for one in processes if not isinstance(one.comm, Unknown)}


def _is_used(gpu: Gpu, tests: tuple[PlannedTest, ...]) -> bool:
    ends = [test.settings for test in tests] + [test.far for test in tests if test.far is not None]
    return any(gpu.index in _indices(settings) for settings in ends)


def _indices(settings: Settings) -> tuple[int, ...]:
    if isinstance(settings, PerftestSettings):
        return () if settings.gpu is None else (settings.gpu.index,)
    if isinstance(settings, GdrcopySettings):
        return (settings.gpu_index,)
    assert isinstance(settings, NvbandwidthSettings | NcclSettings)
    return settings.gpus


def _of_ports(examination: Examination, tests: tuple[PlannedTest, ...], before: Reading | None) -> list[str]:
    rates = {} if before is None else port_rates(before, examination.reading)
    lines: list[str] = []
    unseen: list[str] = []
    for nic, port in _used_ports(examination, tests):
        rate = rates.get((nic, port))
        both = () if rate is None else (rate.sent_gbps, rate.received_gbps)
        figures = [one for one in both if not isinstance(one, Unknown)]
        if figures and max(figures) >= BUSY_GBPS:
            lines.append(f"port {port} of {nic}: {max(figures):.0f} Gb/s of traffic flow through it")
        elif not figures:
            unseen.append(f"port {port} of {nic}")
    if not unseen:
        return lines
    # Without counters, as in some virtual machines, those who could make the traffic tell.
    named = ", ".join(unseen[:3]) + (f" and {len(unseen) - 3} more" if len(unseen) > 3 else "")
    return [*lines, *(f"{named}: {one}" for one in _of_rdma_users(examination))]


def _of_rdma_users(examination: Examination) -> list[str]:
    """Who may use RDMA; nothing where nobody does."""
    facts = examination.processes
    untold = "what flows through is not known"
    if isinstance(facts, Unknown):
        return [f"{untold}, nor who uses RDMA: {facts}"]
    users = [one.pid for one in facts.processes if known(one.uverbs_files, ())]
    lines = [f"{untold}, and process {_named(users, _names(examination))} uses RDMA"] if users else []
    if isinstance(facts.hidden, Unknown) or facts.hidden:
        hidden = (
            f"{facts.hidden} processes of others" if isinstance(facts.hidden, int) else "others' processes"
        )
        lines.append(f"{untold}, and {hidden} could not be looked into: needs root")
    return lines


def _used_ports(examination: Examination, tests: tuple[PlannedTest, ...]) -> list[tuple[str, int]]:
    """(RDMA device, port) of both ends of every test here; NCCL, left to choose, may take any."""
    ports = [*examination.reading.ports]
    used: dict[tuple[str, int], None] = {}
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
