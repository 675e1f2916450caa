"""Events of processes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from probes.base.evidence import Severity
from probes.base.unknown import Reason, Unknown
from probes.live.model.sample import EventKind, LiveSample, NicUse, PathJudgment, PathWord
from probes.snapshot.condition import RANK_ENDED
from tests.support.event_runs import Following, lasting, texts
from tests.support.live_samples import a_process, a_sample

UNKNOWN = PathJudgment(PathWord.UNKNOWN, why="needs root")
STAGED = PathJudgment(PathWord.STAGED, is_likely=True)


def with_rank(rank: int, **parts: Any) -> LiveSample:
    sample = a_sample()
    assert isinstance(sample.processes, tuple)
    changed = (replace(process, **parts) if process.rank == rank else process for process in sample.processes)
    return replace(sample, processes=tuple(changed))


def test_processes_that_are_there_at_the_start_are_no_events() -> None:
    assert not Following().see(a_sample(), 10)


def test_a_process_with_queue_pairs_comes_and_goes() -> None:
    node = Following()
    node.see(a_sample(ranks=2), 3)
    (started,) = node.see(a_sample(ranks=3), 3)
    assert started.kind is EventKind.PROCESS_STARTED
    assert started.text == "pid 4713 (train.py, rank 2) uses RDMA on mlx5_2"
    assert started.subject == "pid 4713"
    assert started.explanation
    (ended,) = node.see(a_sample(ranks=2), 3)
    assert (ended.kind, ended.text) == (EventKind.PROCESS_ENDED, "pid 4713 (train.py, rank 2) ended")


def test_a_process_that_is_missing_in_one_sample_has_not_ended() -> None:
    node = Following()
    node.see(a_sample(ranks=3), 3)
    assert not node.see(a_sample(ranks=2), 1)
    assert not node.see(a_sample(ranks=3), 3)


def test_a_process_without_queue_pairs_is_no_event_until_it_has_some() -> None:
    node = Following()
    node.see(a_sample(ranks=2), 3)
    without = a_sample(processes=(a_process(0), a_process(1), a_process(2, nics=())))
    assert not node.see(without, 3)
    assert texts(node.see(a_sample(ranks=3), 3)) == ["pid 4713 (train.py, rank 2) uses RDMA on mlx5_2"]
    assert texts(node.see(without, 3)) == ["pid 4713 (train.py, rank 2) has closed its queue pairs"]
    assert not node.see(a_sample(ranks=2), 3)


def test_unknown_processes_have_not_ended() -> None:
    node = Following()
    node.see(a_sample(), 3)
    assert not node.see(a_sample(processes=Unknown(Reason.TIMED_OUT, "RDMA netlink")), 20)
    assert not node.see(a_sample(), 3)


def test_a_process_whose_queue_pairs_could_not_be_listed_has_not_closed_them() -> None:
    node = Following()
    node.see(a_sample(ranks=2), 3)
    unlisted = tuple(a_process(rank, nics=(), is_listed=False) for rank in range(2))
    assert not node.see(a_sample(processes=unlisted), 20)
    assert not node.see(a_sample(ranks=2), 3)


def test_a_stopped_process_shows_within_three_samples() -> None:
    node = Following()
    node.see(a_sample(), 3)
    (stopped,) = node.see(with_rank(5, state="T"), 3)
    assert (stopped.kind, stopped.severity) == (EventKind.PROCESS_STOPPED, Severity.WARNING)
    assert stopped.text == "pid 4716 (train.py, rank 5) is stopped"
    (resumed,) = node.see(a_sample(), 3)
    assert (resumed.kind, resumed.text) == (
        EventKind.PROCESS_RESUMED,
        "pid 4716 (train.py, rank 5) is running again",
    )


def test_a_process_that_a_profiler_stops_for_a_moment_is_no_event() -> None:
    node = Following()
    node.see(a_sample(), 3)
    for _ in range(5):
        assert not node.see(with_rank(5, state="t"), 1)
        assert not node.see(a_sample(), 1)


def test_a_path_that_changes_for_good_is_an_event() -> None:
    node = Following()
    node.see(a_sample(), 5)
    (changed,) = node.see(with_rank(5, path=STAGED), 5)
    assert (changed.kind, changed.severity) == (EventKind.PATH_CHANGED, Severity.WARNING)
    said = "now likely copies through host memory (staged), previously GDR (DMA-BUF)"
    assert changed.text == f"pid 4716 (train.py, rank 5) {said}"


def test_an_unknown_path_in_between_is_no_change() -> None:
    node = Following()
    node.see(a_sample(), 5)
    assert not node.see(with_rank(5, path=UNKNOWN), 10)
    assert not node.see(a_sample(), 5)


def test_a_path_that_flickers_is_no_change() -> None:
    node = Following()
    node.see(a_sample(), 5)
    for _ in range(5):
        assert not node.see(with_rank(5, path=STAGED), 2)
        assert not node.see(a_sample(), 1)


def test_a_path_that_becomes_proof_is_no_change() -> None:
    node = Following()
    node.see(a_sample(), 5)
    assert not node.see(with_rank(5, path=PathJudgment(PathWord.DMABUF)), 10)


def test_ranks_that_are_staged_after_a_restart_are_one_event() -> None:
    node = Following()
    node.see(a_sample(), 5)
    node.see(a_sample(ranks=0), 5)
    restarted = tuple(
        replace(a_process(rank), pid=5000 + rank, path=STAGED, nics=(NicUse(f"mlx5_{rank}", 1, 1, 1, 1),))
        for rank in range(2)
    )
    events = node.see(a_sample(processes=restarted), 5)
    changed = [event.text for event in events if event.kind is EventKind.PATH_CHANGED]
    assert changed == [
        "ranks 0-1 of train.py (alice) restarted and now likely copy through host memory (staged), "
        "previously GDR (DMA-BUF)"
    ]


def test_a_restarted_rank_has_not_ended() -> None:
    node = Following()
    node.see(a_sample(), 20)
    node.see(with_rank(3, gpus=()))  # NVML no longer lists a process that ends
    rest = tuple(a_process(number) for number in range(8) if number != 3)
    node.see(a_sample(processes=rest), 20)
    assert lasting(node, RANK_ENDED) == [
        "rank 3 of train.py (alice) has exited, and the other ranks are waiting"
    ]
    node.see(a_sample(processes=(*rest, a_process(3, pid=9999))))
    assert not lasting(node, RANK_ENDED)


def test_a_rank_has_ended_also_after_a_sample_without_processes() -> None:
    node = Following()
    node.see(a_sample(), 20)
    rest = a_sample(processes=tuple(a_process(number) for number in range(7)))
    node.see(rest, 20)
    node.see(replace(rest, processes=Unknown(Reason.TIMED_OUT), jobs=()))
    node.see(rest)
    assert lasting(node, RANK_ENDED) == [
        "rank 7 of train.py (alice) has exited, and the other ranks are waiting"
    ]
