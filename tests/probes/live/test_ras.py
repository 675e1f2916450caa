"""When RAS is asked, whom its answer is about, and when ranks are said to wait."""

from __future__ import annotations

from dataclasses import replace

import pytest

from probes.base.evidence import Severity
from probes.base.unknown import Maybe, Reason, Unknown
from probes.host.ras import VERBOSE_STATUS
from probes.live.ras.findings import RasHistory, Stall, findings, unequal_counts
from probes.live.ras.targets import LocalProcesses, RasJob, RasUse, decide, parse_version
from probes.nccl.ras import parse_report
from probes.simulation.host import SimulatedHost
from tests.support.live_samples import FIRST_PID, a_process, gpu_bdf
from tests.support.pilot import SteppedClock
from tests.support.ras_reports import HASH, NODE, a_report

ABSENT = Unknown(Reason.NOT_THERE, "libnccl", "linked statically")


def a_job(
    version: Maybe[str] = "2.29.7", age: Maybe[float] = 3600.0, stopped: tuple[int, ...] = ()
) -> RasJob:
    return RasJob("train.py (alice)", version, age, stopped)


@pytest.mark.parametrize(
    ("version", "allowed"),
    [
        ("2.23.4", ()),
        ("2.24.3", ()),
        ("2.26.2", ()),
        ("2.27.2", ()),
        ("2.27.3", (RasUse.ONCE,)),
        ("2.28.9", (RasUse.ONCE,)),
        ("2.29.1", (RasUse.ONCE,)),
        ("2.29.2", (RasUse.ONCE, RasUse.REPEATED, RasUse.EVENTS)),
        ("2.30.7", (RasUse.ONCE, RasUse.REPEATED, RasUse.EVENTS)),
        ("2.31.2", tuple(RasUse)),
        ("2.32.3+cuda13.0", tuple(RasUse)),
        ("strange", ()),
        (ABSENT, ()),
    ],
)
def test_versions_that_crash_are_refused(version: Maybe[str], allowed: tuple[RasUse, ...]) -> None:
    decisions = {use: decide([a_job(version)], use) for use in RasUse}
    assert tuple(use for use, decision in decisions.items() if decision.is_allowed) == allowed
    assert all(decision.refusals for use, decision in decisions.items() if use not in allowed)
    if RasUse.ONCE in allowed:
        assert decisions[RasUse.ONCE].warnings


@pytest.mark.parametrize(
    ("version", "named"), [("2.31.2", "compares its GPU"), ("2.32.3", "lspci -D -vvv and rdma_topo")]
)
def test_diagnostics_say_what_they_run_in_the_job(version: str, named: str) -> None:
    assert named in decide([a_job(version)], RasUse.DIAGNOSTICS).warnings[0]
    assert not any("lspci" in text for text in decide([a_job(version)], RasUse.ONCE).warnings)


@pytest.mark.parametrize("use", RasUse)
def test_the_first_two_minutes_are_refused(use: RasUse) -> None:
    assert not decide([a_job(age=119.0)], use).is_allowed
    assert decide([a_job("2.32.3", age=120.0)], use).is_allowed
    assert not decide([a_job(age=ABSENT)], use).is_allowed


def test_it_is_never_asked_twice_within_ten_seconds() -> None:
    assert not decide([a_job()], RasUse.ONCE, 9.9).is_allowed
    assert decide([a_job()], RasUse.ONCE, 10.0).is_allowed


def test_a_stopped_rank_is_a_reason_for_versions_that_crash_on_missing_ranks() -> None:
    stopped = decide([a_job("2.27.7", stopped=(4714,))], RasUse.ONCE)
    assert "pid 4714 is stopped" in stopped.refusals[0]
    assert decide([a_job("2.29.7", stopped=(4714,))], RasUse.ONCE).is_allowed


def test_every_job_on_the_port_has_to_permit_it() -> None:
    assert not decide([a_job(), replace(a_job("2.26.2"), name="other.py")], RasUse.ONCE).is_allowed
    assert not decide([], RasUse.ONCE).is_allowed


def test_versions() -> None:
    assert parse_version("2.29") == (2, 29, 0)
    assert parse_version("v2") is None


def local(**parts: object) -> LocalProcesses:
    processes = tuple(a_process(number) for number in range(8))
    whole = LocalProcesses(
        processes,
        {process.pid: process.pid for process in processes},
        frozenset({NODE, "127.0.0.1"}),
        {gpu_bdf(number): number for number in range(8)},
    )
    return replace(whole, **parts)  # type: ignore[arg-type]


def stalls_of(*reports: tuple[float, str], is_one_job: bool = True) -> tuple[Stall, ...]:
    history = RasHistory()
    found: tuple[Stall, ...] = ()
    for at, text in reports:
        found = history.add(parse_report(text), at, is_one_job)
    return found


def counts(rank: int = 5, fewer: int = 3, last: int = 6650, operation: str = "AllReduce") -> str:
    return a_report({operation: {number: last - fewer * (number == rank) for number in range(8)}})


def test_the_rank_that_the_others_wait_for_is_named() -> None:
    text = counts()
    stalls = stalls_of((0.0, text), (32.0, text), (64.0, text))
    (found,) = findings(parse_report(text), stalls, local())
    assert (
        found.text == "rank 5 (GPU5, mlx5_5) has launched 3 fewer collectives and nothing has moved for 64 s"
    )
    assert found.pid == FIRST_PID + 5
    assert found.severity is Severity.CRITICAL


@pytest.mark.parametrize(
    "reports",
    [
        [(0.0, counts())],  # once
        [(0.0, counts()), (9.0, counts())],  # too soon
        [(0.0, counts()), (60.0, counts(last=6651))],  # all move
        [(0.0, counts()), (60.0, counts(fewer=2))],  # the last one moves
        [(0.0, counts()), (60.0, counts(rank=4))],  # another one is the last
        [(0.0, counts()), (30.0, a_report()), (60.0, counts())],  # equal in between
        [(0.0, a_report()), (60.0, a_report())],  # equal
        [(0.0, counts()), (60.0, counts()[:-60])],  # cut
    ],
)
def test_without_the_same_unequal_counts_twice_nothing_is_said(reports: list[tuple[float, str]]) -> None:
    assert stalls_of(*reports) == ()


@pytest.mark.parametrize("status", ["INIT", "FINALIZE", "ABORT", "UNKNOWN"])
def test_only_running_communicators_can_stall(status: str) -> None:
    text = a_report({"AllReduce": {0: 5, 1: 4, 2: 5, 3: 5}}, status=status)
    assert stalls_of((0.0, text), (60.0, text)) == ()


def test_another_job_that_answers_in_between_changes_nothing() -> None:
    other = a_report({"AllReduce": {0: 5, 1: 4, 2: 5, 3: 5}}, communicator="1" * 16)
    reports = ((0.0, counts()), (20.0, other), (40.0, counts()))
    (stall,) = stalls_of(*reports, is_one_job=False)
    assert (stall.hash, stall.seconds, stall.reports) == (HASH, 40.0, 2)
    assert stalls_of(*reports) == ()


def test_counts_of_several_types_are_added_for_each_rank() -> None:
    text = a_report({"AllReduce": {0: 9, 1: 9, 2: 9, 3: 7}, "AllGather": {0: 4, 1: 4, 2: 4, 3: 3}})
    (stall,) = stalls_of((0.0, text), (20.0, text))
    assert (stall.behind.fewer, [rank.rank for rank in stall.behind.ranks]) == (3, [3])


def test_ranks_that_ras_does_not_name_are_counted() -> None:
    text = a_report({"AllReduce": {**dict.fromkeys(range(4), 9), **dict.fromkeys(range(4, 8), 8)}})
    stalls = stalls_of((0.0, text), (20.0, text))
    (found,) = findings(parse_report(text), stalls, local())
    assert f"4 ranks of communicator {HASH} have launched 1 fewer collective" in found.text
    assert found.severity is Severity.WARNING  # a computation may take 20 s


def test_dead_and_silent_processes_are_named_with_their_devices() -> None:
    errors = [
        "INCOMPLETE",
        "  Missing communicator data from 1 job process",
        f"  Process {FIRST_PID + 3} on node {NODE} managing GPU 3",
        "",
        "DEAD",
        "  3 job processes are considered dead (unreachable via the RAS network)",
        "  Process 99 on node 10.0.0.8 managing GPU 1",
        "",
    ]
    stopped = tuple(
        replace(process, state="T") if process.pid == FIRST_PID + 3 else process
        for process in local().processes
    )
    found = findings(parse_report(a_report(errors=errors)), (), local(processes=stopped))
    texts = [report.text for report in found]
    assert "rank 3 (GPU3, mlx5_3) does not respond to RAS; it is stopped" in texts
    assert any("a process (pid 99 on node 10.0.0.8, GPU1) is considered dead" in text for text in texts)
    assert "2 more processes are considered dead by RAS" in texts
    assert {finding.severity for finding in found} == {Severity.CRITICAL}


def test_the_same_pid_on_another_node_is_another_process() -> None:
    text = a_report({"AllReduce": {number: 9 - (number == 5) for number in range(8)}}, node="10.0.0.8")
    (found,) = findings(parse_report(text), stalls_of((0.0, text), (20.0, text)), local())
    assert found.pid is None
    assert f"rank 5 of communicator {HASH} (pid {FIRST_PID + 5} on node 10.0.0.8, GPU5)" in found.text


def test_pids_of_a_container_are_found_by_the_pid_inside() -> None:
    inside = {FIRST_PID + number: 1 for number in range(8)}  # each rank is process 1 of its own container
    text = a_report(errors=["DEAD", f"  Process 1 on node {NODE} managing GPU 0 (NVML 6)", ""])
    (found,) = findings(parse_report(text), (), local(pids=inside))
    assert found.pid == FIRST_PID + 6
    assert not findings(parse_report(text), (), local(pids=inside, gpu_numbers={}))[0].pid


def test_one_report_with_unequal_counts_names_the_rank_that_is_behind() -> None:
    clock = SteppedClock()
    host = SimulatedHost("hgx-h100+job-hung", clock=clock)
    text = host.ras_answer("[::1]:28028", VERBOSE_STATUS)
    assert isinstance(text, str)
    (found,) = unequal_counts(parse_report(text), LocalProcesses())
    assert found.severity is Severity.NOTE
    assert found.text.endswith("has launched 3 collectives fewer than the others")
    assert unequal_counts(parse_report(text.partition("Warnings")[0]), LocalProcesses()) == ()
