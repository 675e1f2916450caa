"""What stands for a pair of GPU and NIC on the overview."""

from dataclasses import replace

import pytest

from probes.bandwidth.model.result import Result
from probes.bandwidth.model.samples import HOST_MEMORY, About, Fact
from probes.bandwidth.results.against_earlier import newest_by_pair
from tests.support.sample_results import failed, latency, result

PAIR = ("0000:18:00.0", "mlx5_0")


def small(gbps: float) -> Result:
    small_result = result(gbps, size_bytes=64)
    assert small_result.figure is not None
    return replace(small_result, figure=replace(small_result.figure, size_bytes=64))


def test_the_newest_stands_for_its_pair() -> None:
    kept = [result(196.0), result(98.0)]
    assert newest_by_pair(kept, "h100-07", "live")[PAIR].gbps == 98.0


@pytest.mark.parametrize(
    "other",
    [
        small(4.0),
        result(380.0, is_bidirectional=True),
        result(12.0, node="h100-08"),
        result(387.0, origin="simulated hgx-h100"),
        result(40.0, tool="nvbandwidth"),
        latency(1.9),
        failed(),
        result(386.0, facts=(Fact(About.MEMORY, HOST_MEMORY, ""),)),
    ],
    ids=[
        "small messages",
        "both ways",
        "another node",
        "simulated",
        "another tool",
        "latency",
        "failed",
        "other memory",
    ],
)
def test_what_cannot_stand_for_a_pair_does_not_take_its_place(other: Result) -> None:
    assert newest_by_pair([result(196.0), other], "h100-07", "live")[PAIR].gbps == 196.0
    assert newest_by_pair([other], "h100-07", "live") == {}


def test_of_all_sizes_the_fastest_counts() -> None:
    assert newest_by_pair([result(196.0, size_bytes=None)], "h100-07", "live")[PAIR].gbps == 196.0
