"""A process as its user needs to know it: its limits, and the NICs that it can open."""

from __future__ import annotations

import pytest

from probes.base.unknown import known
from probes.checks.judgment import judge
from probes.live.explain import ProcessExplanation, explain_process
from probes.live.job_examination import examine_and_sample
from probes.simulation.host import SimulatedHost
from tests.support.pilot import SteppedClock


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
