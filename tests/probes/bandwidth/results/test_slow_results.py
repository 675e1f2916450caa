"""Which saved results count as a problem of the node, and what the finding shows."""

from dataclasses import replace

import pytest

from probes.bandwidth.model.planned_series import Pair
from probes.bandwidth.model.rating import Rating
from probes.bandwidth.model.result import Ending, Result
from probes.bandwidth.model.samples import BY_PEERMEM, HOST_MEMORY, STAGED, About, Fact, Latency, Sample
from probes.bandwidth.results.slow_results import open_findings, slow_results, slow_tail
from probes.base.origin import Origin, Source
from probes.base.unknown import Reason, Unknown
from probes.checks.judgment import Judgment, judge
from probes.queries.finding import Status
from probes.snapshot.condition import BELOW_LIMIT, Condition, Watched
from probes.snapshot.verdict import State
from tests.support.doctor import examination_of
from tests.support.sample_results import MORNING, judged
from tests.support.slow_results import NODE, measured

BOOTED = MORNING - 3600.0


def slow(*results: Result) -> tuple[Condition, ...]:
    return slow_results(results, examination_of(NODE).topology, Origin(Source.SIMULATED, NODE), BOOTED)


def judgment_with(node: str, *results: Result) -> Judgment:
    examination = examination_of(node)
    watched = examination.watched
    assert isinstance(watched, Watched)
    conditions = slow_results(results, examination.topology, Origin(Source.SIMULATED, node), BOOTED)
    assert conditions
    return judge(
        replace(examination, watched=replace(watched, conditions=(*watched.conditions, *conditions)))
    )


def test_a_slow_result_names_figure_limit_devices_and_time() -> None:
    slow_result = measured()
    (condition,) = slow(slow_result)
    assert condition.check == BELOW_LIMIT
    reached = "reached 121 of 200 Gb/s (60 % of the limit) with DMA-BUF"
    assert condition.text == f"GPU0 to {slow_result.pair.nic} {reached}"
    assert condition.devices == (slow_result.pair.gpu, slow_result.pair.nic)
    assert condition.since == slow_result.taken_at
    (evidence,) = condition.evidence
    assert evidence.source.startswith("ib_write_bw, 20")
    assert "121 of 200 Gb/s" in evidence.value


def test_only_the_newest_result_of_a_test_counts() -> None:
    good = measured(190.0, taken_at=MORNING + 60)
    assert slow(measured())
    assert not slow(measured(), good)
    assert not slow(good, measured())
    assert slow(good, measured(taken_at=MORNING + 120))


@pytest.mark.parametrize(
    "other",
    [{"memory": BY_PEERMEM}, {"tool": "ib_read_bw"}, {"is_bidirectional": True}, {"number": 1}],
    ids=str,
)
def test_a_good_result_of_another_test_does_not_hide_a_slow_one(other: dict[str, object]) -> None:
    assert slow(measured(), measured(190.0, taken_at=MORNING + 60, **other))  # type: ignore[arg-type]


def test_a_result_that_says_nothing_about_the_path_does_not_hide_a_slow_one() -> None:
    small = judged(measured(3.0, taken_at=MORNING + 60), Rating.UNKNOWN)
    failed = measured(190.0, taken_at=MORNING + 60, ending=Ending.FAILED)
    assert slow(measured(), small, failed)


@pytest.mark.parametrize(
    "changed",
    [
        {"memory": HOST_MEMORY},
        {"memory": STAGED},
        {"memory": ""},
        {"ending": Ending.CANCELED},
        {"facts": (Fact(About.MEMORY, HOST_MEMORY, ""),)},  # other memory than requested
        {"pair": Pair(nic="mlx5_0")},
        {"pair": Pair("0000:18:00.0", "GPU0")},
        {"taken_at": BOOTED - 1},
        {"node": "another-node"},
        {"origin": "live"},
        {"origin": "simulated dgx-a100"},
        {"gbps": 190.0},
    ],
    ids=str,
)
def test_what_does_not_count(changed: dict[str, object]) -> None:
    assert slow(measured())
    assert not slow(measured(**changed))  # type: ignore[arg-type]


def test_a_result_of_a_simulated_node_never_counts_on_a_real_one() -> None:
    topology = examination_of(NODE).topology
    assert not slow_results([measured()], topology, Origin(Source.LIVE), BOOTED)
    assert slow_results([measured(origin="live")], topology, Origin(Source.LIVE), BOOTED)


def test_a_path_through_the_cpu_is_slow_by_design() -> None:
    topology = examination_of(NODE).topology
    far = next(nic.id for nic in topology.nics if nic.id not in topology.near_nics[topology.gpus[0].id])
    assert not slow(measured(nic=far))


def test_a_slow_result_degrades_a_green_node_by_one_finding() -> None:
    assert judge(examination_of(NODE)).verdict.state is State.ACTIVE
    judgment = judgment_with(NODE, measured(), measured(number=1))
    assert judgment.verdict.state is State.DEGRADED
    (finding,) = judgment.listed
    assert finding.id == BELOW_LIMIT
    assert {measured(number=number).pair.gpu for number in (0, 1)} <= set(finding.devices)
    assert finding.since == MORNING


def test_a_slow_result_is_part_of_the_finding_that_explains_it() -> None:
    node = "hgx-h100+acs-on"
    judgment = judgment_with(node, measured(on=node))
    assert [finding.id for finding in judgment.listed] == ["acs-redirect-enabled"]
    (finding,) = (finding for finding in judgment.found if finding.id == BELOW_LIMIT)
    assert finding.part_of == "acs-redirect-enabled"


def test_an_earlier_slow_result_is_no_reason_for_the_next_one() -> None:
    slow_result = measured()
    judgment = judgment_with(NODE, slow_result)
    assert not open_findings(examination_of(NODE), judgment.findings, slow_result.pair)


def test_settings_of_the_cpus_explain_slow_host_memory_only() -> None:
    on = examination_of(f"{NODE}+numa-balancing-on,cpu-clocks-capped")
    findings, pair = judge(on).findings, measured().pair
    assert [each.id for each in open_findings(on, findings, pair, HOST_MEMORY)] == [
        "cpu-clocks",
        "numa-balancing-on",
    ]
    assert not open_findings(on, findings, pair, BY_PEERMEM)


def latencies(typical: float, late: float) -> Sample:
    return Sample("RDMA_Write", "", latencies=(Latency("typical", typical), Latency("99 %", late)))


def test_late_messages_name_the_settings_that_may_delay_them() -> None:
    cpu = examination_of(f"{NODE}+numa-balancing-on").cpu
    text = slow_tail(latencies(2.0, 8.0), cpu)
    assert text.startswith("1 % of the messages took at least 4.0 times as long")
    assert "sleep state C6 (290 µs to wake up), automatic NUMA balancing is on" in text
    assert not slow_tail(latencies(2.0, 2.3), cpu)
    assert not slow_tail(latencies(2.0, 8.0), Unknown(Reason.TIMED_OUT, "cpu"))
    assert not slow_tail(None, cpu)
    assert not slow_tail(latencies(2.0, 8.0), examination_of("cloud-vm").cpu), (
        "nothing is known to delay them"
    )


def test_without_slow_results_the_check_is_ok_and_says_that_maybe_nothing_was_measured() -> None:
    (finding,) = (finding for finding in judge(examination_of(NODE)).findings if finding.id == BELOW_LIMIT)
    assert finding.status is Status.PASSED
    assert "nothing was measured" in finding.evidence[0].value


SPARK_NODE = "dgx-spark"


def of_spark(gbps: float, machine: str = "DGX Spark", **changed: object) -> Result:
    """A result of a function of a DGX Spark to another node, from host memory."""
    given = measured(gbps, on=SPARK_NODE, nic="rocep1s0f0")
    pair = Pair(nic="rocep1s0f0", port=1, peer="spark2")
    own = {"pair": pair, "memory": HOST_MEMORY, "setup": "client", "expected_machine": machine}
    verdict = Rating.NEAR if gbps >= 85 else Rating.BELOW
    return judged(replace(given, **{**own, "facts": (), **changed}), verdict)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("gbps", "check"),
    [
        (13.2, "spark-degraded-initialization"),
        (25.9, "spark-degraded-initialization"),
        (7.0, BELOW_LIMIT),
        (48.0, BELOW_LIMIT),
    ],
)
def test_a_slow_function_of_a_dgx_spark_is_a_problem_of_its_nic(gbps: float, check: str) -> None:
    found = {finding.id: finding for finding in judgment_with(SPARK_NODE, of_spark(gbps)).found}
    assert found[check].devices == ("rocep1s0f0",)
    assert {BELOW_LIMIT, "spark-degraded-initialization"} & set(found) == {check}


def test_two_lanes_explain_a_slow_function() -> None:
    node = f"{SPARK_NODE}+spark-pcie-lanes"
    result = of_spark(13.2, origin=f"simulated {node}", pair=Pair(nic="roceP2p1s0f0", port=1, peer="spark2"))
    found = {finding.id: finding for finding in judgment_with(node, result).findings}
    assert found["spark-degraded-initialization"].part_of == "spark-pcie-lanes"


def test_host_memory_counts_only_on_dgx_spark_and_over_the_cable() -> None:
    topology = examination_of(SPARK_NODE).topology
    origin = Origin(Source.SIMULATED, SPARK_NODE)
    assert not slow_results([of_spark(97.28)], topology, origin, BOOTED)
    assert not slow_results([of_spark(13.2, machine="")], topology, origin, BOOTED)
