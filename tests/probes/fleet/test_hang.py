"""The suspect of a job on two nodes: what one node knows, and what only both together show."""

from dataclasses import replace
from typing import Any

from probes.base.origin import Origin, Source
from probes.base.unknown import Reason, Unknown
from probes.fleet.hang import diagnose_nodes
from probes.live.hang.diagnosis import BlockedThread, Diagnosis, HangFacts, Motion
from probes.live.hang.dump_files import FoundDumps
from probes.live.hang.ranks import RankState
from probes.live.silence import PairMotion
from probes.snapshot.condition import STOPPED, Condition
from tests.support.flight_recorder_dumps import group_dump
from tests.support.hung_job import JOB, rank, stopped
from tui.commands.fleet.output import NO_NODE
from tui.commands.hang import hang_document
from widgets.base.lines import plain
from widgets.nccl.hang import draw_hang

STILL = {100 + number: PairMotion(8, 0) for number in range(8)}
NO_RATES = Unknown(Reason.NEEDS_ROOT, "rates", "no rates")


def ranks_from(first: int, **values: Any) -> tuple[RankState, ...]:
    """Eight ranks; the processes of both nodes have the same pids."""
    return tuple(
        replace(rank(number, **values), name=f"rank {first + number}", rank=first + number)
        for number in range(8)
    )


def a_node(first: int = 0, **facts: Any) -> HangFacts:
    facts.setdefault("ranks", ranks_from(first))
    return HangFacts(JOB, 12.0, facts.pop("silence", 12.0), **facts)


def page(gpu1: HangFacts | None = None, gpu2: HangFacts | None = None, **unanswered: str) -> Diagnosis:
    nodes = {"gpu1": a_node() if gpu1 is None else gpu1, "gpu2": a_node(8) if gpu2 is None else gpu2}
    return diagnose_nodes(nodes, unanswered)


def test_a_job_that_moves_data_on_one_node_does_not_hang() -> None:
    found = page(a_node(silence=0.0))
    assert (found.facts.motion, found.exit_status) == (Motion.MOVES, 0)


def test_a_stopped_rank_decides_although_another_node_has_moved_data_seconds_ago() -> None:
    found = page(a_node(silence=5.0), a_node(8, conditions=(stopped(11),)), gpu3="no route to host")
    assert (found.exit_status, found.suspects, found.is_sure) == (2, ("rank 11",), True)
    assert "does not hang" not in found.headline


def test_a_node_without_rates_leaves_it_unknown_unless_another_moves_data() -> None:
    found = page(a_node(silence=NO_RATES))
    assert found.exit_status == 3
    assert "gpu1: no rates" in found.headline


def test_a_node_whose_own_queue_pairs_stand_still_is_silent_whatever_its_nics_carry() -> None:
    """The headline does not say that its NICs are silent; both nodes have ranks with the same pids."""
    both = page(a_node(silence=0.0, packets=STILL), a_node(8, silence=0.0, packets=STILL))
    assert both.exit_status == 1
    assert both.headline == (
        "none of its 128 queue pairs has sent or received a packet for 12 s, although its NICs carry traffic"
    )
    assert both.facts.pairs == PairMotion(128, 0)
    mixed = page(a_node(silence=0.0, packets=STILL))
    assert mixed.facts.motion is Motion.SILENT
    assert mixed.headline == (
        "its NICs have moved no data for 12 s,"
        " and where they carry other traffic, its queue pairs have not either"
    )
    moving = {**STILL, 103: PairMotion(8, 1)}
    assert page(a_node(silence=0.0, packets=STILL), a_node(8, silence=0.0, packets=moving)).exit_status == 0


def test_nodes_that_have_not_answered_leave_it_unknown_without_a_sure_suspect() -> None:
    found = page(gpu3="no route to host", gpu4="no answer after 71 s")
    assert found.exit_status == 3
    assert found.headline == (
        "on 2 nodes (2 more did not answer), no NIC of this job has moved data for 12 s"
    )
    idle_3 = (*ranks_from(0)[:3], replace(ranks_from(0)[3], gpu_percent=0.0), *ranks_from(0)[4:])
    likely = page(a_node(ranks=idle_3), gpu3="no route to host")
    assert (likely.suspects, likely.exit_status) == (("rank 3",), 3)
    assert page(a_node(silence=0.0), gpu3="no route to host").exit_status == 0


def test_a_rank_without_a_number_is_named_once() -> None:
    unnumbered = replace(ranks_from(0)[3], rank=NO_RATES, name="pid 103", state="Z")
    found = page(a_node(ranks=(*ranks_from(0)[:3], unnumbered)))
    assert "Suspect: gpu1 pid 103" in [plain(row).strip() for row in draw_hang(found, 100)]


def test_json_has_the_threads_with_their_node_and_the_queue_pairs() -> None:
    thread = BlockedThread(102, 202, "python3", ("os_acquire_mutex",), "a lock of the NVIDIA driver", True)
    found = page(a_node(threads=(thread,), packets=STILL))
    (job,) = hang_document(NO_NODE, Origin(Source.LIVE), 0.0, [found], 2)["jobs"]
    assert job["queue_pairs"] == {"connected": 64, "moving": 0}
    assert [(row["node"], row["pid"]) for row in job["threads"]] == [("gpu1", 102)]


def test_dumps_of_all_nodes_are_compared_together() -> None:
    """Each node by itself sees its own ranks wait for the other's."""
    dumps = [group_dump(number, range(16), 9 if number == 12 else 10, 9) for number in range(16)]
    found = page(a_node(dumps=FoundDumps(tuple(dumps[:8]))), a_node(8, dumps=FoundDumps(tuple(dumps[8:]))))
    assert (found.suspects, found.is_sure) == (("rank 12",), True)
    assert found.next_steps == ("gpu2: py-spy dump --pid 104",)


def test_the_rank_that_differs_does_so_from_those_of_all_nodes() -> None:
    idle_3 = (*ranks_from(0)[:3], replace(ranks_from(0)[3], gpu_percent=0.0), *ranks_from(0)[4:])
    assert page(a_node(ranks=idle_3)).suspects == ("rank 3",)
    idle_13 = (*ranks_from(8)[:5], replace(ranks_from(8)[5], gpu_percent=0.0), *ranks_from(8)[6:])
    assert page(a_node(ranks=idle_3), a_node(8, ranks=idle_13)).suspects == ()


def test_a_rank_is_missing_only_if_no_node_has_it_and_all_have_answered() -> None:
    evens = tuple(replace(each, rank=2 * at, name=f"rank {2 * at}") for at, each in enumerate(ranks_from(0)))
    odds = tuple(
        replace(each, rank=2 * at + 1, name=f"rank {2 * at + 1}") for at, each in enumerate(ranks_from(0))
    )
    assert page(a_node(ranks=evens), a_node(ranks=odds)).clues == ()
    gap = page(a_node(ranks=evens), a_node(ranks=odds[:6] + odds[7:]))
    assert gap.suspects == ("rank 13",)
    assert page(a_node(ranks=evens), a_node(ranks=odds[:6] + odds[7:]), gpu3="no route").clues == ()


def test_two_jobs_of_one_name_are_not_compared_with_each_other() -> None:
    dumps = [group_dump(number, range(8), 9 if number == 2 else 10, 9) for number in range(8)]
    found = page(a_node(dumps=FoundDumps(tuple(dumps))), a_node())
    assert found.suspects == ()
    assert any("several jobs have this name" in source.text for source in found.facts.sources)


def test_what_a_node_knows_has_its_name() -> None:
    stopped = Condition(STOPPED, JOB.id, "rank 9 is stopped", 0.0, ranks=("rank 9",), job=JOB.id)
    found = page(gpu2=a_node(8, conditions=(stopped,)), gpu3="no route to host")
    assert (found.suspects, found.is_sure, found.exit_status) == (("rank 9",), True, 2)
    assert found.clues[0].text == "gpu2: rank 9 is stopped"
    assert found.next_steps == ("gpu2: kill -CONT 101",)
    assert "not read: no route to host" in [source.text for source in found.facts.sources]
