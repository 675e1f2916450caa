"""The sentence about a node: what is wrong and what that does, or whether its jobs use GPUDirect RDMA."""

from __future__ import annotations

import pytest

from probes.checks.headline import headline
from probes.simulation.faults.catalogue import FAULTS
from probes.simulation.host import SimulatedHost
from tests.support.pilot import SteppedClock
from tests.support.tiers import usual
from tui.runtime.node_monitor import NodeMonitor


def sentences(name: str, seconds: int = 1) -> list[str]:
    """The sentence of each second, after the node was checked."""
    clock = SteppedClock()
    monitor = NodeMonitor(SimulatedHost(name, clock=clock))
    said = []
    for _ in range(seconds + 2):
        monitor.read()
        if monitor.needs_check or monitor.examination is None:
            monitor.check()
        clock.now += 1.0
        assert monitor.examination is not None
        assert monitor.judgment is not None
        said.append(headline(monitor.judgment, monitor.sample, monitor.examination.topology.labels).text)
    return said[2:]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("hgx-h100", "train.py uses GPUDirect RDMA on all 8 ranks, likely"),
        ("hgx-h100+no-gdr-path", "train.py copies through host memory: nvidia_peermem is not loaded"),
        (
            "hgx-h100+nccl-net-socket",
            "train.py uses TCP instead of RDMA: NCCL_NET=Socket makes a job use TCP",
        ),
        ("hgx-h100+job-rank-staged", "Rank 5 of train.py copies through host memory"),
        ("hgx-h100+port-down", "An RDMA port has no link: mlx5_1"),
        ("hgx-h100+new-node", "No job can use GPUDirect RDMA: the nvidia driver is not loaded"),
        (
            "hgx-h100+xid-79-fell-off-bus",
            "1 of 8 GPUs is without GPUDirect RDMA: a GPU has fallen off the bus",
        ),
        ("hgx-h100+fabric-manager-down", "No new job can use GPUDirect RDMA: Fabric Manager is not running"),
        ("dgx-a100+nv-peer-mem-conflict", "GPUDirect RDMA works here; no job uses RDMA now"),
        ("dgx-spark", "GB10 (DGX Spark) does not support GPUDirect RDMA (by design)"),
    ],
)
def test_the_sentence_is_what_an_admin_would_say(name: str, sentence: str) -> None:
    assert sentences(name) == [sentence]


def test_a_job_is_named_where_a_title_names_none() -> None:
    said = sentences("hgx-h100+rank-behind", 45)
    assert said[-1] == "train.py moves far less data than before"


@pytest.mark.parametrize("fault", usual(FAULTS, {"acs-on", "job-rank-staged", "no-gdr-path"}))
def test_no_figure_of_the_sentence_moves_each_second(fault: str) -> None:
    said = sentences(f"{FAULTS[fault].on}+{fault}", 12)
    assert len(set(said)) <= 3  # events change it, seconds do not
