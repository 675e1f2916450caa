"""What the live view tells about simulated jobs: each fault, the healthy node, and a blind test of both."""

import random

import pytest

from probes.base.evidence import Severity
from probes.live.model.sample import EventKind, LiveSample, OddOne, PathWord, Role
from probes.simulation.faults.catalogue import FAULTS
from probes.simulation.faults.live import (
    FLAPPING_RANK,
    LOST_RANK,
    RETRAINED_RANK,
    SLOW_RANK,
    STAGED_RANK,
    STOPPED_RANK,
)
from probes.simulation.node.model.names import SIMULATED_NAMES
from tests.support.simulated_jobs import (
    TOLD,
    SimulatedWatch,
    events,
    line_of,
    matches,
    odd_sentences,
    processes,
    ranks,
    watched,
)
from tests.support.tiers import USUAL_FAULTS, usual

LIVE = tuple(fault.name for fault in FAULTS.values() if fault.is_live)
NODES = ("hgx-h100", "dgx-a100", "gb200", "cloud-vm")  # with NICs enough to compare


def hgx(fault: str) -> tuple[LiveSample, ...]:
    return watched(f"hgx-h100+{fault}" if fault else "hgx-h100")


@pytest.fixture(
    params=usual(TOLD, ("", "job-rank-staged", "job-tcp", "nic-slow")), ids=lambda name: name or "healthy"
)
def fault(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_every_live_fault_says_what_it_must_tell() -> None:
    assert set(LIVE) == set(TOLD) - {""}


@pytest.mark.slow
def test_the_path_of_each_rank(fault: str) -> None:
    told, last = TOLD[fault], hgx(fault)[-1]
    paths = {rank: process.path.text for rank, process in ranks(last).items()}
    assert len(paths) == told.ranks
    for rank, text in paths.items():
        assert matches(f"^{told.paths.get(rank, told.path)}$", text), (rank, text)
    assert all(process.path.evidence for process in processes(last))


@pytest.mark.slow
def test_what_is_odd(fault: str) -> None:
    told, found = TOLD[fault], odd_sentences(hgx(fault)[-1])
    assert len(found) == bool(told.odd)
    assert all(matches(told.odd, sentence) for sentence in found)


def test_the_events(fault: str) -> None:
    told, found = TOLD[fault], events(hgx(fault))
    lines = [line_of(event) for event in found]
    for pattern in told.events:
        assert any(matches(pattern, line) for line in lines), (pattern, lines)
    for event, line in zip(found, lines, strict=True):
        allowed = (*told.events, *([told.besides] if told.besides else []))
        assert event.severity is Severity.NOTE or any(matches(pattern, line) for pattern in allowed), line
        assert event.explanation


def test_the_jobs(fault: str) -> None:
    jobs = [job.name for job in hgx(fault)[-1].jobs]
    assert len(jobs) == len(TOLD[fault].jobs)
    for pattern, name in zip(TOLD[fault].jobs, jobs, strict=True):
        assert matches(pattern, name)


@pytest.mark.slow
def test_a_storage_client_is_named_and_makes_the_jobs_rate_unknown() -> None:
    last = hgx("storage-traffic")[-1]
    (client,) = (process for process in processes(last) if process.role is Role.STORAGE)
    assert client.path.text == "host memory"
    assert client.ready_nics == ("mlx5_0",)
    assert not isinstance(last.jobs[0].sent_gbps, float)


@pytest.mark.slow
@pytest.mark.parametrize("name", usual(SIMULATED_NAMES, {"hgx-h100"}))
def test_a_healthy_job_causes_no_event(name: str) -> None:
    samples = watched(name, 130)  # with a checkpoint
    assert events(samples) == []
    assert not odd_sentences(samples[-1])
    assert len(samples[-1].jobs) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", usual(FAULTS, USUAL_FAULTS))
def test_no_fault_of_a_node_makes_the_live_view_fail(name: str) -> None:
    samples = tuple(SimulatedWatch(f"{FAULTS[name].on}+{name}").samples(6))
    assert not [limit for sample in samples for limit in sample.limits if "error in gdrtop" in limit]


def judge(samples: tuple[LiveSample, ...]) -> tuple[str, int | None]:
    """Name the fault from what the live view shows, and the rank that has it."""
    kinds = {event.kind: event for event in reversed(events(samples))}
    last = samples[-1]
    jobs = [job for job in last.jobs if job.role is Role.NCCL]
    by_rank = ranks(last)
    words = {rank: process.path.word for rank, process in by_rank.items()}
    if EventKind.XID in kinds:
        return "gpu-off-bus-live", rank_with(samples[0], kinds[EventKind.XID].subject)
    if EventKind.PORT_STATE in kinds:
        return "nic-flapping", rank_with(samples[0], kinds[EventKind.PORT_STATE].subject)
    if EventKind.LINK_RETRAINED in kinds:
        return "nic-link-retrained", rank_with(samples[0], kinds[EventKind.LINK_RETRAINED].subject)
    if EventKind.PROCESS_STOPPED in kinds:
        return "rank-stopped", rank_of(samples[0], kinds[EventKind.PROCESS_STOPPED].subject)
    if EventKind.PATH_CHANGED in kinds:
        return "job-restarted-staged", None
    if any(process.role is Role.STORAGE for process in processes(last)):
        return "storage-traffic", None
    if len(jobs) > 1:
        return "two-jobs-two-users", None
    if set(words.values()) == {PathWord.TCP}:
        return "job-tcp", None
    if EventKind.THROTTLED in kinds:
        return "gpu-throttled-live", rank_with(samples[0], kinds[EventKind.THROTTLED].subject)
    if EventKind.ERRORS_RISING in kinds and kinds[EventKind.ERRORS_RISING].severity is Severity.WARNING:
        return "packets-lost-live", rank_with(samples[0], kinds[EventKind.ERRORS_RISING].subject)
    odd: list[OddOne] = [odd for job in jobs for odd in job.odd]
    if any(odd.pid is not None for odd in odd):
        return "job-rank-staged", next(rank for rank, word in words.items() if word is PathWord.STAGED)
    if odd:
        return "nic-slow", rank_with(last, odd[0].device)
    waits = [port.counters.get("port_xmit_wait", 0.0) for port in last.ports]
    if EventKind.PAUSE in kinds or any(isinstance(wait, float) and wait > 0 for wait in waits):
        return "congestion", None
    return "", None


def rank_with(sample: LiveSample, device: str) -> int:
    """Return the rank on a GPU or NIC."""
    return next(
        rank
        for rank, process in ranks(sample).items()
        if device in process.gpus or device in process.ready_nics
    )


def rank_of(sample: LiveSample, pid: str) -> int:
    """Return the rank of "pid 4716"."""
    return next(rank for rank, process in ranks(sample).items() if f"pid {process.pid}" == pid)


_RANKS = {
    "job-rank-staged": STAGED_RANK,
    "nic-slow": SLOW_RANK,
    "nic-flapping": FLAPPING_RANK,
    "nic-link-retrained": RETRAINED_RANK,
    "rank-stopped": STOPPED_RANK,
    "gpu-off-bus-live": LOST_RANK,
    "gpu-throttled-live": 0,
    "packets-lost-live": 0,
}
_CASES = 60
_OFTEN = 3  # of them in `make test`


def hidden_case(number: int) -> tuple[str, str, int]:
    """Return a node, a fault and a seed that the judge does not know."""
    chance = random.Random(number)
    # Only RAS and dumps tell a rank that is behind, or was from the start, from a network that has stopped.
    # An uneven spread takes minutes. A collision and planes need RoCE.
    unseen = {"rank-behind", "job-hung", "nic-uneven"}
    unseen |= {"ecmp-collision", "plane-unused", "adaptive-routing-seen"}
    faults = tuple(name for name in LIVE if name not in unseen)
    node, fault, seed = chance.choice(NODES), chance.choice(("", *faults)), chance.randrange(1000)
    # Where ranks use nvidia_peermem, its count does not show which of them copies through host memory.
    return ("hgx-h100" if (node, fault) == ("dgx-a100", "job-rank-staged") else node), fault, seed


@pytest.mark.parametrize("number", usual(range(_CASES), range(_OFTEN)))
def test_a_blind_judge_names_the_fault(number: int) -> None:
    node, fault, seed = hidden_case(number)
    samples = tuple(SimulatedWatch(f"{node}+{fault}", seed).samples(75))
    gpus = len(samples[0].gpus)
    rank = (_RANKS[fault] + seed) % gpus if fault in _RANKS else None
    assert judge(samples) == (fault, rank), (node, seed)
