"""The optional steps that need a second node."""

from __future__ import annotations

from dataclasses import replace

import pytest

from probes.bandwidth.model.command import Refused
from probes.bandwidth.model.rating import Assessment, Rating
from probes.bandwidth.model.request import Mode, Request, Scope
from probes.bandwidth.model.result import Ending, Result
from probes.bandwidth.model.samples import Sample
from probes.bandwidth.planning.series import plan_series
from probes.base.unknown import Reason, Unknown
from probes.checks.registry import findings
from probes.setup.situation import read_situation
from probes.setup.step import SetupRecord, StepState
from probes.setup.steps.guide import Guide, build_guide
from probes.simulation.host import SimulatedHost
from probes.snapshot.examination import examine

HOST = SimulatedHost("hgx-h100")
EXAMINATION = examine(HOST)
SKIPPED = dict.fromkeys(("measure-host", "measure-pair", "measure-staged", "measure-all"), "skipped")


def guide(*results: Result, has_slurm: bool = True) -> Guide:
    situation = read_situation(HOST, EXAMINATION)
    if not has_slurm:
        situation = replace(situation, slurm=Unknown(Reason.NOT_THERE, "slurmd"))
    record = SetupRecord(skipped=SKIPPED)
    return build_guide(situation, findings(EXAMINATION), results, record, "boot-1")


def state(guide: Guide, name: str) -> tuple[StepState, str]:
    step = guide.step(name)
    assert step is not None
    return step.state, step.reason


def measured(mode: Mode = Mode.BOTH_ENDS, rating: Rating = Rating.NEAR) -> list[Result]:
    """Return a result of every GPU and its NIC, with a peer."""
    series = plan_series(EXAMINATION, Request(scope=Scope.SWEEP), 18515)
    assert not isinstance(series, Refused)
    return [
        Result(
            taken_at=0.0,
            seconds=10.0,
            node="hgx-h100",
            machine="a machine",
            origin="live",
            title=f"{test.pair.gpu_label} → {test.pair.nic}",
            tool="ib_write_bw",
            setup=mode.value,
            pair=replace(test.pair, peer="node2"),
            memory=test.memory,
            size_bytes=1 << 20,
            is_bidirectional=False,
            commands=(),
            ending=Ending.DONE,
            figure=Sample("", "", gbps=380.0),
            judgment=Assessment(rating, "380 of 400 Gb/s, 95 %"),
            limit_gbps=400.0,
            limit_by="port 1 of mlx5_0",
            expected_gbps=380.0,
            expected_machine="our machines",
            facts=(),
            samples=(),
        )
        for test in series.tests
    ]


def test_a_node_is_set_up_without_a_second_one() -> None:
    shown = guide()
    assert [step.id for step in shown.steps if step.is_optional] == [
        "cable-pair",
        "cable-rails",
        "cable-nccl",
    ]
    assert not any(step.is_open for step in shown.steps if step.is_optional)
    assert state(shown, "cable-pair") == (
        StepState.TO_DO,
        "1 pair; optional; needs a second node like this one",
    )
    # As long as the reboot is left, no optional step comes next.
    assert shown.next_step is not None
    assert shown.next_step.id == "reboot"


def test_each_pair_needs_a_good_result_with_a_peer() -> None:
    first, *others = measured()
    assert state(guide(first), "cable-pair") == (StepState.DONE, "1 pair measured with node2")
    assert state(guide(first), "cable-rails") == (StepState.TO_DO, "1 of 8 pairs measured with node2")
    assert state(guide(first, *others), "cable-rails") == (StepState.DONE, "8 pairs measured with node2")
    assert state(guide(*measured(Mode.LOOPBACK)), "cable-pair")[0] is StepState.TO_DO


def test_a_slow_cable_leaves_the_step_open() -> None:
    slow = replace(measured(rating=Rating.BELOW)[3], title="GPU3 over a bad cable")
    kept, reason = state(guide(*measured(), slow), "cable-rails")
    assert (kept, reason.startswith("GPU3 over a bad cable: 380 of 400 Gb/s")) == (StepState.TO_DO, True)


def test_what_loopback_reached_is_there_to_compare_with() -> None:
    step = guide(*measured(Mode.LOOPBACK)).step("cable-pair")
    assert step is not None
    assert step.evidence[-1].source == "In loopback"
    assert "380 of 400 Gb/s, 95 %; our machines should reach 380 Gb/s" in step.evidence[-1].value


@pytest.mark.parametrize(
    ("has_slurm", "start"), [(True, "srun -N 2"), (False, "mpirun -np 16 -N 8 -H hgx-h100:8,NODE2:8")]
)
def test_the_job_on_two_nodes_is_started_as_the_node_can(has_slurm: bool, start: str) -> None:
    step = guide(has_slurm=has_slurm).step("cable-nccl")
    assert step is not None
    assert start in step.command
    assert step.command.endswith("> nccl.log; gdrtop nccl-log nccl.log")
