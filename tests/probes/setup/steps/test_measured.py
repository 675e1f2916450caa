"""The step of the staged path: done when measured, skipped where no tool can, and no other waits for it."""

from dataclasses import replace
from functools import lru_cache

from probes.bandwidth.model.planned_series import PlannedTest, Series
from probes.bandwidth.model.result import Result
from probes.bandwidth.model.samples import About, Fact, Sample
from probes.bandwidth.planning.series import plan_series
from probes.base.unknown import Reason, Unknown
from probes.facts.system.tools import ToolFacts
from probes.setup.step import SetupStep, StepState
from probes.setup.steps.measured import MeasuredStep
from probes.setup.steps.step_list import STEPS
from probes.simulation.host import SimulatedHost
from probes.snapshot.examination import Examination, examine
from tests.support.sample_results import result

STAGED = next(step for step in STEPS if isinstance(step, MeasuredStep) and step.id == "measure-staged")


@lru_cache(maxsize=1)
def node() -> Examination:
    return examine(SimulatedHost("hgx-h100", clock=lambda: 1000.0))


def result_of(test: PlannedTest, gbps: float, route: str) -> Result:
    load = test.settings.load
    figure = Sample("all_reduce", "", gbps=gbps, bus_gbps=gbps, time_us=30.0, size_bytes=8)
    return replace(
        result(gbps, test.memory),
        title=test.title,
        tool=test.tool,
        setup=test.setup.value,
        pair=test.pair,
        size_bytes=load.size_bytes,
        over_network=True,
        facts=(Fact(About.ROUTE, route, ""),),
        figure=figure,
        samples=(figure,),
    )


def step_after(staged_route: str) -> SetupStep:
    series = plan_series(node(), STAGED.request, 18515)
    assert isinstance(series, Series)
    direct, staged = series.tests
    results = (result_of(direct, 370.0, "NET/IB/0/GDRDMA"), result_of(staged, 150.0, staged_route))
    return STAGED.measured(node(), results)


def test_it_is_done_when_both_paths_are_measured_however_slow_the_staged_one_is() -> None:
    assert STAGED.measured(node(), ()).state is StepState.TO_DO
    step = step_after("NET/IB/0")
    assert step.state is StepState.DONE
    assert "staged 150 of 370 Gb/s, 2.5× slower" in step.reason


def test_a_staged_run_that_used_gpudirect_rdma_does_not_complete_it() -> None:
    step = step_after("NET/IB/0/GDRDMA")
    assert step.state is StepState.TO_DO
    assert "although NCCL_NET_GDR_LEVEL=LOC forbids it" in step.reason


def test_without_a_tool_it_is_skipped_with_the_reason() -> None:
    tools = node().tools
    assert isinstance(tools, ToolFacts)
    missing = dict.fromkeys(("all_reduce_perf", "nvbandwidth"), Unknown(Reason.NOT_THERE))
    bare = replace(node(), tools=replace(tools, paths={**tools.paths, **missing}))
    step = STAGED.measured(bare, ())
    assert step.state is StepState.SKIPPED
    assert "all_reduce_perf is not installed" in step.reason


def test_no_other_step_waits_for_it() -> None:
    assert STAGED.after
    assert not any(STAGED.id in step.after for step in STEPS)
