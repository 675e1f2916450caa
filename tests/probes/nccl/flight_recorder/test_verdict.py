"""Who the others wait for: known hangs, with any rank as the first."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.nccl.flight_recorder.verdict import Cause, ranks_text, verdict_of
from tests.support.flight_recorder_dumps import group_dump, several_groups

EIGHT = range(8)


def test_a_rank_that_did_not_call_the_collective_is_the_culprit() -> None:
    verdict = verdict_of([group_dump(rank, EIGHT, 100 if rank != 5 else 99, 99) for rank in EIGHT])
    (group,) = verdict.groups
    assert (group.cause, group.sequence, group.absent, group.behind) == (Cause.NOT_ARRIVED, 100, (5,), 1)
    assert verdict.culprits == (5,)
    assert group.sentence == (
        "rank 5 has not called nccl:all_reduce 100 in group 0 (default_pg), and ranks 0-4, 6-7 wait"
    )


@pytest.mark.slow
@given(st.integers(0, 7), st.integers(1, 20), st.randoms(use_true_random=False))
def test_the_culprit_is_found_whatever_rank_it_is_and_whichever_comes_first(
    culprit: int, behind: int, shuffle: random.Random
) -> None:
    dumps = [group_dump(rank, EIGHT, 30 - behind if rank == culprit else 30, 30 - behind) for rank in EIGHT]
    shuffle.shuffle(dumps)
    verdict = verdict_of(dumps)
    assert verdict.culprits == (culprit,)
    assert verdict.groups[0].behind == behind


def test_ranks_that_only_ran_ahead_are_no_sign() -> None:
    # All have called 100; some have queued more behind it.
    verdict = verdict_of([group_dump(rank, EIGHT, 100 + rank, 99) for rank in EIGHT])
    assert verdict.groups[0].cause is Cause.ALL_ARRIVED
    assert verdict.culprits == ()


def test_a_completed_collective_of_one_rank_counts_for_all() -> None:
    # The watchdog of rank 0 has not yet seen 98 and 99 complete.
    dumps = [group_dump(rank, EIGHT, 100 if rank != 5 else 99, 97 if rank == 0 else 99) for rank in EIGHT]
    assert verdict_of(dumps).culprits == (5,)


def test_another_size_is_found_by_majority_also_on_the_first_rank() -> None:
    dumps = [
        group_dump(rank, EIGHT, 100, 99, **({"input_sizes": [[7]]} if rank == 0 else {})) for rank in EIGHT
    ]
    verdict = verdict_of(dumps)
    assert verdict.groups[0].cause is Cause.MISMATCH
    assert verdict.culprits == (0,)
    assert verdict.groups[0].sentence.startswith("rank 0 calls something else than ranks 1-7")


def test_two_ranks_that_differ_have_no_majority() -> None:
    dumps = [group_dump(rank, range(2), 5, 4, input_sizes=[[rank]]) for rank in range(2)]
    verdict = verdict_of(dumps)
    assert verdict.groups[0].cause is Cause.MISMATCH
    assert verdict.culprits == ()


def test_a_rank_without_a_dump_is_suspected_and_not_accused() -> None:
    verdict = verdict_of([group_dump(rank, EIGHT, 100, 99) for rank in EIGHT if rank != 2])
    (group,) = verdict.groups
    assert (group.cause, group.without_dump) == (Cause.NO_DUMP, (2,))
    assert (verdict.culprits, verdict.suspected) == ((), (2,))
    assert group.sentence.endswith("no dump of rank 2")


def test_nobody_waits_where_all_is_completed() -> None:
    assert verdict_of([group_dump(rank, EIGHT, 100, 100) for rank in EIGHT]).groups == ()


def test_the_root_of_a_chain_of_groups_is_the_culprit() -> None:
    # Rank 3 hangs; its tensor group {2, 3} waits for it, so rank 2 is missing in {0, 2}.
    pair, other = (2, 3), (0, 2)
    dumps = [
        several_groups(0, {"2": (other, 10, 9, {})}),
        several_groups(2, {"1": (pair, 20, 19, {}), "2": (other, 9, 9, {})}),
        several_groups(3, {"1": (pair, 19, 19, {})}),
    ]
    verdict = verdict_of(dumps)
    assert len(verdict.groups) == 2
    assert verdict.culprits == (3,)


def test_two_groups_in_a_different_order_are_a_cycle() -> None:
    both = (0, 1)
    dumps = [
        several_groups(0, {"1": (both, 10, 9, {}), "2": (both, 9, 9, {})}),
        several_groups(1, {"1": (both, 9, 9, {}), "2": (both, 10, 9, {})}),
    ]
    verdict = verdict_of(dumps)
    assert verdict.is_cycle
    assert verdict.culprits == ()


def test_rings_of_different_age_are_compared_where_all_have_entries() -> None:
    dumps = [group_dump(rank, range(3), 50, 49, oldest=40 if rank else 10) for rank in range(3)]
    assert verdict_of(dumps).groups[0].cause is Cause.ALL_ARRIVED


def test_ranks_are_ranges() -> None:
    assert ranks_text([3]) == "rank 3"
    assert ranks_text([0, 1, 2, 7]) == "ranks 0-2, 7"
