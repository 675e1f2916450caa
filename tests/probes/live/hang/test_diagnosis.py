"""The suspect: which clue counts, and which rank differs from its peers."""

from __future__ import annotations

from probes.base.evidence import Severity
from probes.base.unknown import Reason, Unknown
from probes.live.hang.diagnosis import BlockedThread
from probes.live.hang.dump_files import FoundDumps
from probes.live.hang.ranks import different_rank
from probes.live.ras.findings import RasFinding
from probes.nccl.flight_recorder.verdict import verdict_of
from tests.support.flight_recorder_dumps import group_dump
from tests.support.hung_job import diagnosed, rank, stopped


def test_a_job_that_moves_data_has_no_suspect() -> None:
    page = diagnosed(0.0, ranks=(rank(0, gpu_percent=0.0), *map(rank, range(1, 8))))
    assert (page.exit_status, page.suspects, page.next_steps) == (0, (), ())


def test_what_is_dead_now_decides_whatever_moved_before() -> None:
    page = diagnosed(5.0, conditions=(stopped(3),))
    assert (page.exit_status, page.suspects, page.is_sure) == (2, ("rank 3",), True)
    assert "does not hang" not in page.headline
    thread = BlockedThread(103, 103, "python3", ("os_acquire_mutex",), "a lock of the NVIDIA driver", True)
    assert diagnosed(0.0, threads=(thread,)).exit_status == 0  # it may wait a moment at both readings


def test_silence_without_a_clue_names_nobody_and_how_to_go_on() -> None:
    page = diagnosed()
    assert (page.exit_status, page.suspects) == (1, ())
    assert "py-spy dump --pid PID" in page.next_steps[0]


def test_without_rates_and_clues_the_answer_is_unknown() -> None:
    page = diagnosed(Unknown(Reason.NEEDS_ROOT, "rates"))
    assert page.exit_status == 3
    assert "unknown (needs root" in page.headline


def test_a_stopped_rank_counts_more_than_those_that_ras_names() -> None:
    ras = RasFinding(Severity.CRITICAL, "rank 5 does not respond to RAS", 105)
    page = diagnosed(conditions=(stopped(3),), ras=(ras,))
    assert (page.suspects, page.is_sure, page.exit_status) == (("rank 3",), True, 2)
    assert page.next_steps[0] == "kill -CONT 103"
    assert [clue.source for clue in page.clues] == ["processes", "RAS"]


def test_one_report_of_unequal_counts_is_a_likely_suspect_of_a_silent_job_only() -> None:
    ras = RasFinding(Severity.NOTE, "rank 5 has launched 3 collectives fewer than the others", 105)
    silent, moving = diagnosed(ras=(ras,)), diagnosed(0.0, ras=(ras,))
    assert (silent.suspects, silent.is_sure) == (("rank 5",), False)
    assert moving.clues == ()


def test_the_flight_recorder_names_the_rank() -> None:
    dumps = [group_dump(number, range(8), 9 if number == 6 else 10, 9) for number in range(8)]
    page = diagnosed(dump_verdict=verdict_of(dumps))
    assert (page.suspects, page.is_sure) == (("rank 6",), True)
    assert page.next_steps == ("py-spy dump --pid 106",)


def test_only_a_rank_here_that_wrote_no_dump_is_suspected_for_that() -> None:
    dumps = [group_dump(number, range(16), 10, 9) for number in range(16) if number not in (3, 12)]
    verdict = verdict_of(dumps)
    assert diagnosed(dump_verdict=verdict).suspects == ()
    page = diagnosed(dump_verdict=verdict, dumps=FoundDumps(absent=(3,)))
    assert (page.suspects, page.is_sure) == (("rank 3",), False)
    here = verdict_of([group_dump(number, range(16), 10, 9) for number in range(8)])
    assert here.suspected == ()


def test_a_culprit_on_another_node_is_named_without_a_pid() -> None:
    dumps = [group_dump(number, range(16), 9 if number == 12 else 10, 9) for number in range(16)]
    page = diagnosed(dump_verdict=verdict_of(dumps))
    assert page.suspects == ("rank 12",)
    assert page.next_steps == ("Look at that rank on its own node",)


def test_a_thread_in_the_driver_is_surer_than_one_that_waits_for_storage() -> None:
    driver = BlockedThread(102, 202, "python3", ("os_acquire_mutex",), "a lock of the NVIDIA driver", True)
    storage = BlockedThread(104, 204, "python3", ("folio_wait_bit",), "storage", False)
    page = diagnosed(threads=(storage, driver))
    assert (page.suspects, page.is_sure) == (("rank 2",), True)
    assert diagnosed(threads=(storage,)).is_sure is False


def test_the_rank_with_an_idle_gpu_differs_from_those_that_spin() -> None:
    ranks = (*map(rank, range(7)), rank(7, gpu_percent=0.0))
    found = different_rank(ranks)
    assert found is not None
    assert found[0].name == "rank 7"
    assert diagnosed(ranks=ranks).suspects == ("rank 7",)


def test_two_idle_ranks_or_unknown_figures_are_no_sign() -> None:
    two = (*map(rank, range(6)), rank(6, gpu_percent=0.0), rank(7, gpu_percent=0.0))
    unknown = tuple(rank(number, gpu_percent=Unknown(Reason.NOT_THERE)) for number in range(8))
    assert different_rank(two) is None
    assert different_rank((*unknown[:7], rank(7, gpu_percent=0.0))) is None


def test_a_rank_without_a_process_among_its_neighbors_is_suspected() -> None:
    page = diagnosed(ranks=tuple(rank(number) for number in range(8) if number != 4))
    assert page.suspects == ("rank 4",)
    spread = diagnosed(ranks=tuple(rank(number) for number in range(0, 16, 2)))
    assert spread.suspects == ()


def test_a_rank_without_a_connected_queue_pair_stands_out() -> None:
    assert diagnosed(ranks=(*map(rank, range(7)), rank(7, ready=0))).suspects == ("rank 7",)
    assert diagnosed(ranks=tuple(rank(number, ready=0) for number in range(8))).suspects == ()
