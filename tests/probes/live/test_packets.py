"""Packet numbers of queue pairs: a job's own traffic, apart from what else its NICs carry."""

from dataclasses import replace
from typing import Any

import pytest

from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.jobs.process_files import MappedLibrary
from probes.host.rdma_resources import PacketNumbers
from probes.live.hang.diagnosis import Diagnosis, Motion
from probes.live.hang.ranks import HangWatch
from probes.live.silence import PairMotion, motions
from tests.support.hung_job import diagnosed, rank
from tests.support.live_samples import ABSENT, a_process, sample_of
from widgets.base.lines import plain
from widgets.nccl.hang import draw_hang

MLX5 = frozenset(("mlx5_0",))
STILL = {100 + number: PairMotion(8, 0) for number in range(8)}
NO_RATES = Unknown(Reason.NEEDS_ROOT, "rates")


def pair(number: int, sent: int = 5, received: int = 7, **values: Any) -> PacketNumbers:
    return replace(PacketNumbers("mlx5_0", number, sent, received, 5000), **values)


def test_a_queue_pair_moves_if_it_sent_or_received_and_wraps() -> None:
    before = (pair(1), pair(2), pair(3), pair(4, sent=(1 << 24) - 1))
    after = (pair(1, sent=6), pair(2, received=8), pair(3), pair(4, sent=0))
    assert motions(before, after, {5000: 100}, MLX5) == {100: PairMotion(4, 3)}


def test_numbers_that_stand_still_say_nothing_with_other_drivers() -> None:
    before = (pair(1, device="rxe0"), pair(2, device="rxe0"))
    after = (pair(1, device="rxe0"), pair(2, device="rxe0", sent=6))
    assert motions(before, after, {5000: 100}, MLX5) == {100: PairMotion(1, 1)}


def test_new_queue_pairs_and_those_without_a_process_do_not_count() -> None:
    after = (pair(1), pair(2), pair(3, pid=None), pair(1, pid=6000))
    assert motions((pair(1), pair(3, pid=None)), after, {5000: 100}, MLX5) == {100: PairMotion(1, 0)}


def seen(silence: Maybe[float], packets: dict[int, PairMotion], seconds: float = 12.0) -> Diagnosis:
    return diagnosed(silence, seconds=seconds, packets=packets)


def test_a_job_whose_nics_carry_only_other_traffic_is_silent() -> None:
    page = seen(0.0, STILL)
    assert (page.facts.motion, page.exit_status) == (Motion.SILENT, 1)
    assert page.headline == (
        "none of its 64 queue pairs has sent or received a packet for 12 s, although its NICs carry traffic"
    )


def test_without_rates_the_packet_numbers_decide() -> None:
    assert seen(NO_RATES, STILL).headline.endswith("a packet for 12 s")
    moving = seen(NO_RATES, {**STILL, 103: PairMotion(8, 2)})
    assert (moving.facts.motion, moving.exit_status) == (Motion.MOVES, 0)
    assert moving.headline == "it moves data, so it does not hang in the network now"


def test_still_queue_pairs_prove_nothing_if_some_are_unknown_or_the_time_is_short() -> None:
    some = {pid: motion for pid, motion in STILL.items() if pid != 104}
    assert seen(0.0, some).facts.motion is Motion.MOVES
    assert seen(0.0, STILL, seconds=6.0).facts.motion is Motion.MOVES
    assert diagnosed(0.0, ranks=(rank(0, ready=0),), packets=STILL).facts.motion is Motion.MOVES


def test_still_queue_pairs_prove_nothing_if_a_gpu_may_post_to_others() -> None:
    ranks = tuple(rank(number, unlisted="GIN" if number == 3 else "") for number in range(8))
    page = diagnosed(0.0, ranks=ranks, packets=STILL, seconds=12.0)
    assert page.facts.motion is Motion.MOVES
    assert not any("counters prove nothing" in clue.text for clue in page.clues)


def test_clean_counters_prove_nothing_of_gpu_posted_queues() -> None:
    """NVIDIA/nccl issue 2383: kernels wait forever, and hw_counters stay clean."""
    posting = tuple(rank(number, unlisted="not counted for GPU-posted queues (GIN)") for number in range(8))
    page = diagnosed(30.0, ranks=posting, seconds=30.0)
    (clue,) = [clue for clue in page.clues if clue.source == "queue pairs"]
    assert "not counted for GPU-posted queues (GIN), so clean counters prove nothing" in clue.text
    assert not page.suspects
    assert "tx_prio0_bytes" in " ".join(page.next_steps)
    assert " 8/8+ " in " ".join(map(plain, draw_hang(page, 120)))
    assert "8/8+" not in " ".join(map(plain, draw_hang(diagnosed(30.0, seconds=30.0), 120)))
    assert not [clue for clue in diagnosed(30.0, seconds=30.0).clues if clue.source == "queue pairs"]


@pytest.mark.parametrize(
    ("thread", "library", "may"),
    [
        ("NCCL GIN Progress", "libnccl", True),
        ("NCCL IbAsync", "libnvshmem_host", False),  # PyTorch links it
        ("NCCL IbAsync", "nvshmem_transport_ibgda", True),
    ],
)
def test_a_rank_may_post_from_its_gpu(thread: str, library: str, may: bool) -> None:
    """Live and hang have one rule, whatever the role of the process."""
    process = a_process(0, threads=(thread,))
    libraries = (MappedLibrary(library, f"/usr/lib/{library}.so", ABSENT),)
    process = replace(process, process=replace(process.process, libraries=libraries))
    sample = sample_of(process)
    watch = HangWatch(sample.jobs[0].id)
    watch.add(sample)
    assert [(state.gpu_may_post, bool(state.unlisted)) for state in watch.ranks()] == [(may, may)]
