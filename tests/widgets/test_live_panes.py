"""What the panes of the Live screen say about jobs, interfaces, links and peer memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from probes.base.unknown import Reason, Unknown
from probes.facts.gpudirect import MemoryPeer, PeermemReading
from probes.live.model.sample import LiveSample, NicUse, PathJudgment, PathWord, Role
from tests.support.live_samples import ABSENT, BEGAN, FIRST_PID, a_job, a_port, a_process, a_sample
from tui.screens.live.state import LiveState
from widgets.base.lines import Line, plain
from widgets.live import detail, nics


def text(lines: Sequence[Line]) -> str:
    return "\n".join(plain(line) for line in lines)


def two_jobs(first: str, second: str) -> LiveSample:
    """Return ranks 0 and 1 of one job on mlx5_0 and mlx5_1, and of another on mlx5_2 and mlx5_3."""
    ranks = [a_process(number, rank=number % 2, job="ab"[number // 2]) for number in range(4)]
    jobs = (
        replace(a_job(2), id="a", name=first),
        replace(a_job(2), id="b", name=second, pids=(FIRST_PID + 2, FIRST_PID + 3)),
    )
    return a_sample(processes=tuple(ranks), jobs=jobs)


def used_by(sample: LiveSample, nic: str) -> str:
    (row,) = [line for line in text(nics.draw(sample, 400)).splitlines() if line.startswith(nic)]
    return row[text(nics.draw(sample, 400)).splitlines()[0].index("used by") :].strip()


def test_with_one_job_its_ranks_are_enough() -> None:
    assert used_by(a_sample(ranks=4), "mlx5_2") == "rank 2"


@pytest.mark.parametrize(
    ("first", "second", "shown"),
    [
        ("train.py (alice, Slurm job 4711)", "finetune.py (bob, Slurm job 4712)", "rank 0 of finetune.py"),
        ("train.py (alice, Slurm job 4711)", "train.py (bob, Slurm job 4712)", "rank 0 of train.py (bob)"),
        (
            "train.py (alice, Slurm job 4711)",
            "train.py (alice, Slurm job 4712)",
            "rank 0 of train.py (alice, Slurm job 4712)",
        ),
    ],
)
def test_with_two_jobs_the_shortest_name_that_differs_is_added(first: str, second: str, shown: str) -> None:
    assert used_by(two_jobs(first, second), "mlx5_2") == shown


def test_a_nic_of_two_jobs_names_both() -> None:
    sample = two_jobs("train.py (alice)", "mmfsd (root)")
    rank, _, *_ = sample.processes if isinstance(sample.processes, tuple) else ()
    client = replace(rank, pid=9000, job="b", role=Role.STORAGE, rank=ABSENT)
    shared = replace(sample, processes=(rank, client))
    assert used_by(shared, "mlx5_0") == "rank 0 of train.py, 1 process of mmfsd"


def test_a_node_without_rdma_says_so_instead_of_waiting_for_ports() -> None:
    sample = a_sample(ports=(), no_ports="This node has no RDMA device.")
    assert text(nics.draw(sample, 80)) == "This node has no RDMA device."


def test_rates_of_an_interface_say_that_they_are_of_all_its_traffic() -> None:
    port = a_port(0, rates_from="ens0np0")
    shown = " ".join(text(detail.of_port(port, a_sample(), 200)).split())
    assert "Rates from all traffic of interface ens0np0: software RDMA has no byte counters" in shown
    assert "Rates from" not in text(detail.of_port(a_port(0), a_sample(), 200))


def test_how_a_nic_did_in_earlier_jobs_is_in_its_details() -> None:
    past = {"mlx5_0": "mlx5_0 was the slow NIC in 7 of its last 9 jobs"}
    assert "Earlier     mlx5_0 was the slow NIC in 7 of" in text(
        detail.of_port(a_port(0), a_sample(past=past), 200)
    )
    assert "Earlier" not in text(detail.of_port(a_port(1), a_sample(past=past), 200))


def test_the_pcie_link_of_a_nic_is_in_its_details() -> None:
    linked = text(detail.of_port(a_port(0, pcie_gtps=32.0, pcie_width=16), a_sample(), 200))
    assert "PCIe link   Gen5 x16" in linked
    hidden = Unknown(Reason.NOT_THERE, "current_link_speed")
    unknown = text(detail.of_port(a_port(0, pcie_gtps=hidden, pcie_width=hidden), a_sample(), 200))
    assert "PCIe link   ? (not there)" in unknown


def test_nics_that_a_rank_does_not_use_share_one_line() -> None:
    nics = (NicUse("mlx5_0", 4, 4, 9, 1 << 30), *(NicUse(f"mlx5_{n}", 0, 0, 0, 0) for n in range(1, 9)))
    process = a_process(nics=nics)
    shown = text(detail.of_process(process, a_sample(processes=(process,)), 200))
    assert "mlx5_0: 4 queue pairs (4 connected), 9 memory regions" in shown
    assert "no queue pairs or memory regions: mlx5_1, mlx5_2, mlx5_3" in shown
    assert shown.count("mlx5_8") == 1
    assert "0 queue pairs" not in shown
    unread = replace(process, is_listed=False, nics=nics[1:])
    shown = text(detail.of_process(unread, a_sample(), 200))
    assert "queue pairs and memory regions unknown: mlx5_1" in shown


def test_a_longer_path_of_another_moment_is_not_cut() -> None:
    state = LiveState()
    long = "one of 8 processes uses nvidia_peermem"
    for at, why in ((1.0, long), (2.0, "no queue pair is connected")):
        path = PathJudgment(PathWord.UNKNOWN, why=why)
        state.add(a_sample(at, processes=tuple(a_process(rank, path=path) for rank in range(8))))
    assert long not in text(state.lines("ranks", 200))
    state.step(-1)
    assert long in text(state.lines("ranks", 200, slice(0, 20)))


def test_a_step_back_shows_the_last_sample_that_is_kept() -> None:
    state = LiveState()
    for at in (0.0, 1.0, 1.2):  # the timeline does not keep the last one
        state.add(a_sample(at))
    state.step(-1)
    assert state.shown_at == BEGAN + 1.0
    state.step(1)
    assert (state.is_past, state.shown_at) == (False, BEGAN + 1.2)


def test_regions_through_memory_peers_are_below_the_ranks_where_they_exist() -> None:
    state = LiveState()
    state.add(a_sample(1.0))
    assert "memory_peers" not in text(state.lines("ranks", 120))
    peers = (MemoryPeer("nv_mem", 96, 3 << 30), MemoryPeer("nv_mem_nc", 1, ABSENT))
    state.add(a_sample(2.0, peermem=PeermemReading(97, peers)))
    shown = text(state.lines("ranks", 120))
    assert "memory_peers nv_mem: 96 memory regions, 3.0 GiB (whole node)" in shown
    assert "memory_peers nv_mem_nc: 1 memory region, ? (whole node)" in shown


def test_at_200_columns_the_graphs_stay_beside_the_names_of_two_jobs() -> None:
    for sample in (a_sample(), two_jobs("train.py (alice)", "finetune.py (bob)")):
        cells = nics.graph_cells(sample, 196)
        heading = text(nics.draw(sample, 196, history=lambda _: [1.0] * cells)).splitlines()[0]  # noqa: B023
        assert "used by" in heading
        assert "2 min" in heading
    assert nics.graph_cells(a_sample(), 250) > 100
    assert nics.graph_cells(a_sample(), 80) == 0
