"""A job over four nodes: its ranks, what differs, and what cannot be seen."""

from dataclasses import replace

import pytest

from probes.base.unknown import Reason, Unknown
from probes.fleet.job import JobWatch, is_wanted
from probes.fleet.job_model import NodeSample
from probes.live.model.sample import NicUse, OddOne, PathJudgment, PathWord, Standstill
from tests.support.fleet_samples import (
    NODES,
    RAILS,
    Rate,
    a_node,
    changed,
    no_job,
    ranks_of,
    sentences,
    watch,
    watched,
)
from tests.support.live_samples import a_gpu, a_job, a_process

DENIED = Unknown(Reason.NEEDS_ROOT, "/proc/1/environ")
STAGED = PathJudgment(PathWord.STAGED)


def test_every_rank_of_every_node_is_shown_in_order_and_nothing_differs() -> None:
    job = watched()
    assert [rank.process.rank for rank in job.ranks] == list(range(32))
    assert [rank.node for rank in job.ranks[::8]] == list(NODES)
    assert job.ranks[11].name == "rank 11 on gpu2"
    assert job.ranks[11].gpus == ("GPU3",)
    assert job.ranks[11].rails == (3,)
    assert job.ranks[11].gbps == pytest.approx(370.0)
    assert (job.id, job.world_size, job.missing_ranks) == ("slurm:4711", 32, "")
    assert job.gbps == pytest.approx(32 * 370.0)
    assert (job.differences, job.silence, job.absent, job.notes) == ((), None, {}, ())


def test_the_rank_with_another_path_is_named_with_its_node() -> None:
    job = watched(1, parts=changed("gpu3", 2, path=STAGED))
    assert sentences(job) == [
        "rank 18 on gpu3 copies through host memory (staged); "
        "the other 31 ranks of this job use GPUDirect RDMA"
    ]
    assert job.differences[0].ranks == (("gpu3", 4713),)


def test_both_kinds_of_gpudirect_rdma_are_compared_too() -> None:
    assert sentences(watched(1, parts=changed("gpu3", 2, path=PathJudgment(PathWord.PEERMEM)))) == [
        "rank 18 on gpu3 uses GPUDirect RDMA (peermem); "
        "the other 31 ranks of this job use GPUDirect RDMA (DMA-BUF)"
    ]


def test_a_node_all_of_whose_ranks_differ_is_one_difference() -> None:
    ranks = tuple(replace(rank, path=PathJudgment(PathWord.TCP), nics=()) for rank in ranks_of("gpu2"))
    for nodes in (NODES, NODES[:3]):
        parts = {"gpu2": {"processes": ranks}}
        (sentence,) = sentences(watched(1, nodes=nodes, parts=parts))
        assert sentence.startswith(f"all 8 ranks on gpu2 use TCP; the other {8 * len(nodes) - 8} ranks")


def test_two_halves_are_two_paths_and_none_is_called_different() -> None:
    parts = {
        node: {"processes": tuple(replace(rank, path=STAGED) for rank in ranks_of(node))}
        for node in NODES[:2]
    }
    assert not watched(1, parts=parts).differences


def test_a_stopped_rank_and_one_with_fewer_nics_differ() -> None:
    assert sentences(watched(1, parts=changed("gpu4", 7, state="T"))) == [
        "rank 31 on gpu4 is stopped; the other 31 ranks of this job are running"
    ]
    two = (NicUse("mlx5_0", 2, 2, 1, 1), NicUse("mlx5_1", 2, 2, 1, 1))
    assert sentences(watched(1, parts=changed("gpu1", 0, nics=two))) == [
        "rank 0 on gpu1 uses 2 NICs; the other 31 ranks of this job use 1 NIC each"
    ]


def test_unknown_facts_are_left_out_of_the_comparison_and_said() -> None:
    unknown = PathJudgment(PathWord.UNKNOWN, why="needs root")
    parts = changed("gpu3", 2, path=STAGED) | changed("gpu1", 0, path=unknown, rank=DENIED, state=DENIED)
    job = watched(1, parts=parts)
    (sentence,) = sentences(job)
    assert sentence.endswith("the other 30 ranks of this job use GPUDirect RDMA")
    assert job.notes == ("The rank of 1 process is unknown.",)
    assert job.missing_ranks == ""
    assert job.ranks[-1].name == "pid 4711 on gpu1"


def slow(*ports: tuple[str, int]) -> Rate:
    return lambda node, number, at: 120.0 if (node, number) in ports else 370.0


def test_one_slow_port_is_named_with_its_node() -> None:
    job = watched(rate=slow(("gpu2", 5)))
    assert sentences(job) == [
        "gpu2 mlx5_5 carries 120 Gb/s; the other 31 NICs of this job carry 370 Gb/s (median)"
    ]
    assert job.differences[0].ranks == (("gpu2", 4716),)


def test_a_rail_that_is_slow_on_all_nodes_is_one_difference() -> None:
    job = watched(rate=slow(*((node, 3) for node in NODES)))
    assert sentences(job) == [
        "rail 3 (mlx5_3) on all 4 nodes carries 120 Gb/s; the other rails carry 370 Gb/s (median)"
    ]
    assert len(job.differences[0].ranks) == 4
    three = watched(rate=slow(*((node, 3) for node in NODES[:3])))
    assert "rail 3 (mlx5_3) on 3 of 4 nodes carries" in sentences(three)[0]


def test_a_node_with_a_missing_nic_counts_its_rails_as_the_others_do() -> None:
    rest = [rail for rail in RAILS if rail.number != 2]
    missing = tuple(replace(rail, number=number) for number, rail in enumerate(rest))
    job = JobWatch("4711").add(
        0.0, {"gpu1": a_node("gpu1", 0.0), "gpu2": replace(a_node("gpu2", 0.0), rails=missing)}, {}
    )
    assert [rank.rails for rank in job.ranks[8:]] == [(0,), (1,), (), *((number,) for number in range(3, 8))]


def test_a_node_all_of_whose_ports_are_slow_is_one_difference() -> None:
    (sentence,) = sentences(watched(rate=slow(*(("gpu4", port) for port in range(8)))))
    assert sentence.startswith(
        "all 8 NICs of gpu4 carry 120 Gb/s each; the NICs of other nodes carry 370 Gb/s"
    )


def test_rates_are_compared_only_after_ten_seconds() -> None:
    jobs = list(watch(12, slow(("gpu2", 5))))
    assert [bool(job.differences) for job in jobs] == [second >= 10 for second in range(12)]


def test_a_port_that_another_job_uses_too_is_not_compared() -> None:
    other = replace(a_job(), id="slurm:9", name="other", nics=("mlx5_5",), pids=(1,))
    parts = {"gpu2": {"jobs": (*a_node("gpu2", 0.0).sample.jobs, other)}}
    job = watched(rate=slow(("gpu2", 5)), parts=parts)
    assert not job.differences
    assert job.other_jobs == ("other",)


def test_an_idle_gpu_differs_only_while_the_job_moves_nothing_and_waits() -> None:
    gpus = {"gpus": (a_gpu(0, busy=0), *(a_gpu(number) for number in range(1, 8)))}

    def stops(node: str, port: int, at: float) -> float:
        return 370.0 if at < 3 else 0.0

    assert not watched(14, parts={"gpu2": gpus}).differences
    assert not watched(14, stops, parts={"gpu2": gpus}).differences  # rank 8 may write a checkpoint
    (job,) = a_node("gpu1", 0.0).sample.jobs
    still = {"jobs": (replace(job, standstill=Standstill(60.0, False, 8, 8)),)}
    nodes = {name: still | (gpus if name == "gpu2" else {}) for name in NODES}
    assert sentences(watched(14, stops, parts=nodes)) == [
        "rank 8 on gpu2 has an idle GPU; the other 31 ranks of this job have busy GPUs"
    ]


def test_what_a_node_finds_by_itself_is_said_once_for_all_nodes() -> None:
    odd = OddOne("mlx5_3", "mlx5_3 has a PCIe link of Gen4 x16; the other 7 NICs of this job have Gen5 x16")
    jobs = {
        node: {"jobs": (replace(a_node(node, 0.0).sample.jobs[0], odd=(replace(odd, aspect="link"),)),)}
        for node in ("gpu1", "gpu4")
    }
    assert sentences(watched(1, parts=jobs)) == [f"gpu1, gpu4: {odd.sentence}"]


def test_a_node_that_does_not_answer_is_left_out_with_its_reason() -> None:
    job = JobWatch("4711")
    job.add(0.0, {name: a_node(name, 0.0) for name in NODES}, {})
    late = {"gpu3": "no answer for 12 s"}
    state = job.add(1.0, {name: a_node(name, 1.0) for name in NODES if name != "gpu3"}, late)
    assert state.unanswered == late
    assert state.nodes == ("gpu1", "gpu2", "gpu4")
    assert state.missing_ranks == "16-23"
    again = job.add(2.0, {name: a_node(name, 2.0) for name in NODES}, {})
    assert (len(again.ranks), again.missing_ranks, again.unanswered) == (32, "", {})


def test_a_node_without_a_sample_in_this_second_keeps_its_ranks() -> None:
    job = JobWatch("4711")
    job.add(0.0, {name: a_node(name, 0.0) for name in NODES}, {})
    assert len(job.add(1.0, {"gpu1": a_node("gpu1", 1.0)}, {}).ranks) == 32


def test_nodes_without_the_job_say_why() -> None:
    job = JobWatch("4711")
    node = a_node("gpu1", 0.0)
    denied = replace(node.sample, processes=DENIED, jobs=())
    state = job.add(
        0.0,
        {
            "gpu1": node,
            "gpu2": NodeSample(no_job(node.sample)),
            "gpu3": NodeSample(denied),
            "gpu4": NodeSample(replace(no_job(node.sample), missing="Run as root to see all processes")),
        },
        {},
    )
    assert state.absent == {
        "gpu2": "no process of this job",
        "gpu3": "processes unknown (needs root)",
        "gpu4": "Run as root to see all processes",
    }
    assert not JobWatch("99").add(0.0, {"gpu1": node}, {}).ranks
    assert JobWatch("99").add(0.0, {"gpu1": node}, {}).name == "99"


@pytest.mark.parametrize("wanted", ["4711", "slurm:4711", "train.py", "train.py (alice, Slurm job 4711)"])
def test_a_job_is_found_by_what_a_user_calls_it(wanted: str) -> None:
    assert len(watched(1, wanted=wanted).ranks) == 32
    assert not is_wanted(replace(a_job(), id="slurm:47112", name="x"), "4711")


def test_without_a_wish_the_largest_job_is_shown_and_stays() -> None:
    small = replace(a_job(2), id="slurm:9", name="small (bob, Slurm job 9)")
    own = a_node("gpu1", 0.0)
    sample = replace(own.sample, jobs=(small, *own.sample.jobs))
    state = JobWatch().add(0.0, {"gpu1": replace(own, sample=sample)}, {})
    assert state.id == "slurm:4711"
    assert state.other_jobs == ("small (bob, Slurm job 9)",)


def test_two_jobs_of_one_name_are_noticed_by_their_ranks() -> None:
    first = a_node("gpu1", 0.0)
    state = JobWatch("4711").add(0.0, {"gpu1": first, "gpu2": first}, {})
    assert "Rank 0 occurs 2 times, on gpu1, gpu2" in state.notes[0]


def test_a_process_without_gpu_and_nic_is_no_rank() -> None:
    loader = a_process(8, gpus=(), nics=(), rank=0)
    node = a_node("gpu1", 0.0)
    jobs = (replace(node.sample.jobs[0], pids=(*node.sample.jobs[0].pids, loader.pid)),)
    sample = replace(node.sample, processes=(*ranks_of("gpu1"), loader), jobs=jobs)
    assert len(JobWatch("4711").add(0.0, {"gpu1": replace(node, sample=sample)}, {}).ranks) == 8
