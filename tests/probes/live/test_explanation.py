"""A process as its user needs to know it: its limits, and the NICs that it can open."""

from __future__ import annotations

from dataclasses import replace

import pytest

from probes.base.unknown import Reason, Unknown, known
from probes.checks.judgment import judge
from probes.facts.jobs.process_files import MappedLibrary
from probes.facts.jobs.processes import Process
from probes.live.explain import ProcessExplanation, explain_process
from probes.live.job_examination import examine_and_sample
from probes.queries.jobs import spread_of
from probes.simulation.host import SimulatedHost
from tests.support.pilot import SteppedClock

DENIED = Unknown(Reason.NEEDS_ROOT, "/proc/1/environ")


def explained(name: str) -> dict[int, ProcessExplanation]:
    examination, sample = examine_and_sample(SimulatedHost(name, clock=SteppedClock()))
    findings = judge(examination).findings
    processes = known(sample.processes, ())
    return {process.pid: explain_process(process, findings, examination) for process in processes}


def limits(name: str) -> str:
    return "; ".join(limit for process in explained(name).values() for limit in process.limits)


def test_the_nearest_nic_comes_first_with_its_distance() -> None:
    (gpu,) = explained("hgx-h100")[41001].gpus
    assert (gpu.label, gpu.nics[0].name, gpu.nics[0].word) == ("GPU1", "mlx5_1", "PIX")
    assert gpu.nics[-1].word == "NODE"


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("hgx-h100+memlock-or-ipc-lock", "locked memory: 8 MiB"),
        ("hgx-h100+rdma-cgroup-limit", "4096 of 4096 hca_object on mlx5_0 in use, the fullest of"),
        ("hgx-h100", "RDMA control group: no limit"),
    ],
)
def test_the_limits_of_a_process(name: str, limit: str) -> None:
    assert limit in limits(name)


@pytest.mark.parametrize(
    ("fault", "missing"),
    [("dev-infiniband-near-nic-missing", "mlx5_0"), ("dev-infiniband-not-in-container", "mlx5_9")],
)
def test_a_container_hides_nics_from_a_process(fault: str, missing: str) -> None:
    seen = [process.visible_nics for process in explained(f"hgx-h100+{fault}").values()]
    assert any(isinstance(names, tuple) and missing not in names for names in seen)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("hgx-h100", ["queue pairs per connection: 1 (the default of NCCL 2.27.7)"]),
        ("hgx-h100", ["adaptive routing on InfiniBand: on (the default of NCCL 2.27.7)"]),
        ("bare-roce", ["queue pairs per connection: 2, which take turns (NCCL_IB_QPS_PER_CONNECTION=2)"]),
        ("bare-roce", ["adaptive routing on Ethernet: off (the default of NCCL 2.27.7)"]),
        ("oci-h100", ["queue pairs per connection: 1 (NCCL_IB_QPS_PER_CONNECTION=1)"]),
        ("hgx-h100+adaptive-routing-seen", ["no losses are counted: adaptive routing is likely at work"]),
    ],
)
def test_how_nccl_spreads_its_traffic(name: str, said: list[str]) -> None:
    spread = "\n".join(explained(name)[41003].spread)
    assert all(words in spread for words in said), spread


def test_adaptive_routing_at_work_is_not_claimed_without_its_sign() -> None:
    for name in ("hgx-h100", "hgx-h100+out-of-sequence-rising"):
        assert "at work" not in "".join(text for each in explained(name).values() for text in each.spread)


def test_queue_pairs_of_another_users_process_are_unknown() -> None:
    process = Process(1, "python3", 1000, "S", *[DENIED] * 8)
    nccl = MappedLibrary("libnccl", "/lib/libnccl.so.2", "2.19.3")
    assert spread_of(replace(process, libraries=(nccl,))) == (
        "queue pairs per connection unknown (needs root)",
    )
    old = {"NCCL_IB_QPS_PER_CONNECTION": "4", "NCCL_IB_SL": "1", "NCCL_IB_ADAPTIVE_ROUTING": "0"}
    assert spread_of(replace(process, libraries=(nccl,), environment=old), ["InfiniBand"]) == (
        "queue pairs per connection: 4, which share each message (NCCL_IB_QPS_PER_CONNECTION=4)",
        "adaptive routing on InfiniBand: off (NCCL_IB_ADAPTIVE_ROUTING=0, NCCL_IB_SL=1)",
    )
    assert not spread_of(replace(process, libraries=()))
