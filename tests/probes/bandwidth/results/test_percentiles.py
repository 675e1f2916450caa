"""Percentiles of a test's results: only of enough of them, and only of the same test."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.bandwidth.model.planned_series import Pair
from probes.bandwidth.model.result import Result
from probes.bandwidth.model.samples import HOST_MEMORY
from probes.bandwidth.results.percentiles import LEAST, OF_TYPE, Standing, spread_of, standings
from tests.support.sample_results import MORNING, failed, latency, result


def runs(rates: Sequence[float], **changed: object) -> list[Result]:
    return [result(gbps, taken_at=MORNING + number, **changed) for number, gbps in enumerate(rates)]


def only(kept: Sequence[Result]) -> Standing:
    ((newest, found),) = standings(kept)
    assert newest is kept[-1]
    return found


def words(kept: Sequence[Result]) -> str:
    return only(kept).words(OF_TYPE)


def test_few_results_have_a_range_and_no_percentile() -> None:
    assert words(runs([180.0, 190.0, 186.0])) == "3 results: 180 to 190 Gb/s"
    assert words(runs([185.0] * (LEAST - 1))) == "19 results: 185 Gb/s"
    assert standings(runs([186.0])) == ()


def test_the_newest_of_many_results_has_its_percentile() -> None:
    rates = [190.0 + number / 10 for number in range(LEAST * 2 - 1)]
    assert (
        words(runs([*rates, 150.0]))
        == "p2 of 40 results, slower than 98 % (p5 190, median 192, p95 194 Gb/s)"
    )
    assert words(runs([*rates, 199.0])) == "p100 of 40 results (p5 190, median 192, p95 194 Gb/s)"


def test_a_node_is_compared_with_the_newest_result_of_each_node_of_its_type() -> None:
    others = [result(190.0 + number / 10, node=f"h100-{number:02}") for number in range(63)]
    slow = runs([190.0, 150.0], node="h100-99")
    other_type = result(20.0, node="a100-01", machine="Supermicro, 8 × A100")
    found = {newest.node: each.words(OF_TYPE) for newest, each in standings([*others, *slow, other_type])}
    assert found["h100-99"].startswith(
        "2 results: 150 to 190 Gb/s; p2 of 64 nodes of this machine type, slower"
    )
    assert "slower than 98 % (p5 190, median 193, p95 196 Gb/s)" in found["h100-99"]
    assert "a100-01" not in found


@pytest.mark.parametrize(
    "other",
    [
        {"tool": "ib_read_bw"},
        {"size_bytes": 65536},
        {"is_bidirectional": True},
        {"setup": "server"},
        {"memory": HOST_MEMORY},
        {"pair": Pair("0000:18:00.0", "GPU0", "mlx5_1", 1)},
        {"pair": Pair("0000:19:00.0", "GPU0", "mlx5_0", 1)},
        {"origin": "simulated hgx-h100"},
        {"node": "h100-08", "machine": "other"},
    ],
)
def test_other_tests_are_not_merged(other: dict[str, object]) -> None:
    assert standings([result(186.0), replace(result(20.0), **other)]) == ()  # type: ignore[arg-type]


def test_what_has_no_bandwidth_does_not_count() -> None:
    other_memory = result(150.0, facts=())
    assert standings([result(186.0), failed(), latency(2.0), latency(2.1)]) == ()
    assert only([result(186.0), other_memory]).on_node.count == 2


@given(st.lists(st.floats(min_value=0.1, max_value=1e4), min_size=1, max_size=100))
def test_percentiles_are_in_order(values: list[float]) -> None:
    spread = spread_of(values, values[-1])
    assert (spread.p5 is None) == (len(values) < LEAST)
    if spread.p5 is not None and spread.p95 is not None:
        assert spread.low <= spread.p5 <= spread.median <= spread.p95 <= spread.high
    assert spread.percentile is None or 0 < spread.percentile <= 100
