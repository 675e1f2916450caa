"""The one figure of a test: the mean of what went through, the worse direction, the fastest row."""

from collections.abc import Sequence

import pytest

from probes.bandwidth.model.rating import headline, stalls
from probes.bandwidth.model.samples import Latency, Sample
from probes.bandwidth.tools.nccl_tests import NcclSettings
from probes.bandwidth.tools.nvbandwidth import NvbandwidthSettings
from probes.bandwidth.tools.perftest_command import PerftestSettings

ENDLESS = PerftestSettings("ib_write_bw", "mlx5_0", is_endless=True)
ALL_SIZES = PerftestSettings("ib_write_bw", "mlx5_0", all_sizes=True)


def rows(figures: Sequence[float]) -> list[Sample]:
    return [
        Sample("RDMA_Write", "", size_bytes=1 << 20, gbps=figure, messages_per_second=figure)
        for figure in figures
    ]


@pytest.mark.parametrize(
    ("figures", "gbps", "told"),
    [
        ([390.0] * 10, 390.0, ""),
        ([100.0, *[390.0] * 9], 390.0, ""),  # the first row is the beginning
        ([0.0, 0.0, 100.0, *[390.0] * 7], 353.75, "in 1 of 8 seconds"),
        ([390.0, 0.0, 0.0, 390.0, 0.0, 390.0, 0.0, 390.0, 0.0, 390.0], 173.3, "in 5 of 9 seconds"),
        ([0.0, 0.0, 0.0, 0.0, 0.0, 0.16], 0.04, "in 3 of 4 seconds"),
        ([0.0] * 6, 0.0, ""),
        ([250.0], 250.0, ""),
    ],
)
def test_seconds_in_which_nothing_went_count(figures: list[float], gbps: float, told: str) -> None:
    figure = headline(rows(figures), ENDLESS)
    assert figure is not None
    assert figure.gbps == pytest.approx(gbps, abs=0.1)
    assert figure.messages_per_second == pytest.approx(gbps, abs=0.1)
    assert stalls(rows(figures), ENDLESS.is_endless).startswith(told)
    assert bool(stalls(rows(figures), ENDLESS.is_endless)) == bool(told)


def test_a_gpus_link_is_as_good_as_its_worse_direction() -> None:
    both = [
        Sample("host_to_device_memcpy_ce", "", gbps=444.8),
        Sample("device_to_host_memcpy_ce", "", gbps=24.8),
        Sample("device_to_host_memcpy_ce", "", variant="sum", gbps=24.9),
    ]
    figure = headline(both, NvbandwidthSettings())
    assert figure is not None
    assert (figure.what, figure.gbps) == ("device_to_host_memcpy_ce", 24.9)


def test_of_all_sizes_the_fastest_row_of_collectives_the_bus() -> None:
    sizes = [Sample("RDMA_Write", "", size_bytes=size, gbps=gbps) for size, gbps in ((2, 0.1), (4096, 190.0))]
    assert headline(sizes, ALL_SIZES) == sizes[1]
    assert not stalls(sizes, ALL_SIZES)
    collective = [Sample("all_reduce", "", gbps=100.0, bus_gbps=gbps) for gbps in (175.0, 170.0)]
    assert headline(collective, NcclSettings((0, 1))) == collective[0]
    latencies = [
        Sample("RDMA_Write", "", size_bytes=size, latencies=(Latency("min", 2.0),)) for size in (4, 2)
    ]
    assert headline(latencies, ALL_SIZES) == latencies[1]
    assert headline([], ENDLESS) is None
