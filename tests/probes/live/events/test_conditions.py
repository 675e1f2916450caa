"""How long a job has to be watched before its checks are ok."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from probes.base.evidence import Evidence
from probes.base.unknown import Reason, Unknown
from probes.checks.registry import CHECKS, run_checks
from probes.live.events.conditions import Conditions
from probes.live.model.sample import GpuSample, LiveProcess
from probes.live.model.transfer import Certainty, Serving, TransferPath, TransferPeer, TransferWord
from probes.queries.finding import Status
from probes.snapshot import condition
from probes.snapshot.condition import (
    BELOW_LIMIT,
    CONGESTED,
    CONTRADICTED,
    ODD_RANK,
    OVER_TCP,
    PLANE_UNUSED,
    RANK_ENDED,
    RAS_PROBLEM,
    SILENT,
    SLOW_NIC,
    SPARK_DEGRADED,
    STAGED,
    STOPPED,
    TRAFFIC_FELL,
    UNEVEN,
)
from tests.support.doctor import examination_of
from tests.support.event_runs import Following, lasting
from tests.support.live_samples import BEGAN, a_job, a_port, a_process, a_sample

NEED_WATCHING = {RANK_ENDED, SLOW_NIC, TRAFFIC_FELL, CONGESTED, SILENT, UNEVEN, PLANE_UNUSED}


def unknown(node: Following) -> set[str]:
    """Return the checks of jobs that cannot say yet whether they are ok."""
    examination = replace(examination_of("hgx-h100"), watched=node.sample.watched)
    checks = [check for check in CHECKS if check.id in NEED_WATCHING | {STOPPED}]
    return {
        check.id for check, outcome in run_checks(examination, checks) if outcome.status is Status.UNKNOWN
    }


def test_a_job_that_has_just_started_was_not_watched() -> None:
    node = Following()
    node.see(a_sample(ranks=0), 120)
    assert not unknown(node)
    node.see(a_sample())
    assert unknown(node) == NEED_WATCHING
    node.see(a_sample(), 40)
    assert unknown(node) == {CONGESTED, SILENT, UNEVEN, PLANE_UNUSED}
    node.see(a_sample(), 50)
    assert not unknown(node)


@pytest.mark.parametrize("name", ["job", "other"])
def test_a_job_that_restarts_or_joins_another_is_watched_from_its_start(name: str) -> None:
    node = Following()
    node.see(a_sample(), 120)
    assert not unknown(node)
    job = replace(a_job(), id=name, pids=tuple(range(6000, 6008)))
    jobs = (job,) if name == "job" else (a_job(), job)
    node.see(a_sample(jobs=jobs))
    assert unknown(node) == NEED_WATCHING


def test_a_job_stays_watched_when_a_rank_restarts_or_processes_are_unknown_for_a_moment() -> None:
    node = Following()
    node.see(a_sample(), 120)
    node.see(a_sample(processes=Unknown(Reason.TIMED_OUT), jobs=()))
    job = a_job()
    node.see(a_sample(jobs=(replace(job, pids=(*job.pids[1:], 6000)),)))
    assert not unknown(node)


def test_one_moment_is_not_watching() -> None:
    node = Following()
    node.see(a_sample())
    assert unknown(node) == NEED_WATCHING


NOT_VISIBLE = TransferPath(
    TransferWord.DMABUF, Certainty.LIKELY, tcp_unread=Unknown(Reason.NEEDS_ROOT, "sock_diag")
)


def test_no_condition_is_ok_while_its_figures_are_unknown() -> None:
    """Its check is unknown then, and says why."""
    unread = Unknown(Reason.TIMED_OUT, "somewhere")
    port = a_port(0, unread, state=unread, pause_percent=unread, counters={"symbol_error": unread})
    gpu, process = GpuSample("0000:13:00.0", 0, unread), a_process(0, state=unread, transfer=NOT_VISIBLE)
    sample = a_sample(ports=(port,), gpus=(gpu,), processes=(process,))
    ids = {value for name, value in vars(condition).items() if name.isupper() and isinstance(value, str)}
    # Seen by the path of ranks, by processes that come and go, by RAS and by bandwidth tests.
    by_results = {BELOW_LIMIT, SPARK_DEGRADED}
    without_figures = {STAGED, OVER_TCP, CONTRADICTED, RANK_ENDED, ODD_RANK, RAS_PROBLEM, *by_results}
    missing = sorted(ids - without_figures - Conditions().update(sample).unread.keys())
    assert not missing, f"add the figures of {missing} to _unread() in probes/live/events/conditions.py"


def steps_of(check: str, *seen: condition.Condition) -> list[str]:
    """Return the fix of a check where these conditions were seen."""
    watched = condition.Watched(60.0, 1, conditions=seen)
    examination = replace(examination_of("hgx-h100"), watched=watched)
    (outcome,) = (
        outcome for _, outcome in run_checks(examination, [each for each in CHECKS if each.id == check])
    )
    assert outcome.fix is not None
    return [step.why for step in outcome.fix.steps]


def test_the_fix_of_a_stopped_process_names_it_and_knows_a_debugger() -> None:
    states = [(41003, "T"), (41004, "T"), (41005, "t")]
    lines = tuple(Evidence(f"/proc/{pid}/stat", f"rank {pid % 10}: state {state}") for pid, state in states)
    stopped = condition.Condition(STOPPED, "4711", "ranks are stopped", BEGAN, evidence=lines)
    assert steps_of(STOPPED, stopped) == [
        "Run kill -CONT 41003 41004",
        "Detach the debugger: TracerPid in /proc/41005/status",
    ]


# Inference engines that fall back


def over_tcp(pid: int = 0, **parts: Any) -> LiveProcess:
    """An engine whose KV caches are on TCP, for no visible reason."""
    peers = (TransferPeer("192.0.2.8", False, 9.0, 0.0),)
    shown = (Evidence("sock_diag", "TCP to other nodes: sent 9.00 Gb/s, received 0.00 Gb/s"),)
    path = TransferPath(TransferWord.TCP, Certainty.SEEN, evidence=shown, peers=peers, readings=2)
    return a_process(pid, transfer=replace(path, **parts), serving=Serving("NIXL over UCX", "vLLM"))


NO_FILES = ("no-device-files", Evidence("/proc/42/root/dev/infiniband", "not there"))


def test_kv_caches_over_tcp_are_a_problem_with_its_cause_and_cure() -> None:
    node = Following()
    node.see(a_sample(processes=(over_tcp(0, causes=(NO_FILES,)), over_tcp(1, causes=(NO_FILES,)))))
    (found,) = node.sample.watched.conditions
    assert found.check == condition.KV_OVER_TCP
    moves, _, cause = found.text.partition(". ")
    assert moves == "ranks 0, 1 of train.py (alice) move KV caches over TCP (192.0.2.8)"
    assert cause == "The container has no /dev/infiniband"
    assert found.effect == "train.py moves KV caches over TCP"
    assert NO_FILES[1].value in found.evidence[0].value
    steps = steps_of(condition.KV_OVER_TCP, found)
    assert steps[0] == "Pass /dev/infiniband into the container"
    assert "UCX_PROTO_EMULATION_ENABLE=n" in steps[1]
    node.see(a_sample(processes=(over_tcp(word=TransferWord.IDLE, last=TransferWord.TCP),)))
    assert lasting(node, condition.KV_OVER_TCP)  # between two transfers
    node.see(a_sample(processes=(over_tcp(word=TransferWord.DMABUF),)))
    assert not lasting(node, condition.KV_OVER_TCP)


def test_without_a_sign_the_engine_itself_has_to_say_what_it_uses() -> None:
    node = Following()
    node.see(a_sample(processes=(over_tcp(certainty=Certainty.LIKELY),)))
    (found,) = node.sample.watched.conditions
    assert "likely moves KV caches over TCP" in found.text
    assert "ucx_info -d" in steps_of(condition.KV_OVER_TCP, found)[0]


@pytest.mark.parametrize(
    "parts",
    [
        {"by_configuration": "UCX_TLS=tcp"},
        {"readings": 1},  # weights may be loaded over TCP
        {"word": TransferWord.NVLINK},
        {"word": TransferWord.UNKNOWN},
    ],
)
def test_what_is_no_fall_back(parts: dict[str, Any]) -> None:
    node = Following()
    node.see(a_sample(processes=(over_tcp(**parts),)))
    assert not node.sample.watched.conditions


def test_kv_caches_through_host_memory_are_a_problem_unless_they_are_asked_for() -> None:
    node = Following()
    node.see(a_sample(processes=(over_tcp(word=TransferWord.STAGED),)))
    assert lasting(node, condition.KV_STAGED)
    node.see(
        a_sample(processes=(over_tcp(word=TransferWord.STAGED, by_configuration="kv_buffer_device=cpu"),))
    )
    assert not lasting(node, condition.KV_STAGED)
