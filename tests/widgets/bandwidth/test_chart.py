"""The chart of a bandwidth test: its bars, its limits, its axes."""

import re
from itertools import pairwise

import pytest

from probes.bandwidth.model.limits import Bound, Limit
from probes.bandwidth.model.samples import Latency, Sample
from probes.base.unknown import Reason, Unknown
from widgets.bandwidth.chart import Curve, XAxis, curve_of, draw_chart, is_latency, x_axis_of
from widgets.base.lines import Tone, plain, width_of

PORT = Bound("port 1 of mlx5_0", 400.0, 392.0, "", ())
NIC_LINK = Bound("PCIe link of mlx5_0", 504.0, 480.0, "", (), True)
GPU_LINK = Bound("PCIe link of GPU0", 504.0, 480.0, "", (), True)
LIMIT = Limit((PORT, NIC_LINK, GPU_LINK))


def sample(gbps: float | None, size: int | None = 1 << 20, variant: str = "") -> Sample:
    return Sample("RDMA_Write", "", size_bytes=size, gbps=gbps, variant=variant)


def over_time(*gbps: float) -> Curve:
    return curve_of("DMA-BUF", [sample(gbp) for gbp in gbps], XAxis.TIME)


def text(lines: object) -> str:
    assert isinstance(lines, list)
    return "\n".join(plain(line) for line in lines)


def heights(lines: str, column: int) -> int:
    """Rows in which a bar stands at a column."""
    return sum(len(line) > column and line[column] in "▁▂▃▄▅▆▇█" for line in lines.splitlines())


def test_the_least_limit_is_named_and_drawn_apart_from_the_others() -> None:
    drawn = text(draw_chart([over_time(386.0, 388.0)], LIMIT, 76, 12, span=(1, 10)))
    assert "at most 400 Gb/s: port 1 of mlx5_0" in drawn
    emphasised = next(line for line in drawn.splitlines() if "━" in line)
    assert "port 1 of mlx5_0 400" in emphasised
    other = next(line for line in drawn.splitlines() if "╌" in line)
    assert "PCIe link of mlx5_0, of GPU0 504" in other
    assert drawn.index(other) < drawn.index(emphasised)


def test_a_slower_second_is_a_lower_bar() -> None:
    drawn = text(draw_chart([over_time(390.0, 100.0)], LIMIT, 76, 14, span=(1, 10)))
    assert heights(drawn, 6) > heights(drawn, 14) > 0
    assert heights(drawn, 20) == 0


def test_all_sizes_have_their_place_before_they_are_measured() -> None:
    sizes = [1 << power for power in range(1, 24)]
    whole = [sample(min(400.0, size / 164), size) for size in sizes]
    for count in (1, 12, 23):
        curve = curve_of("", whole[:count], XAxis.SIZE)
        drawn = text(draw_chart([curve], LIMIT, 76, 12, XAxis.SIZE, span=(2, 8 << 20)))
        assert "by message size" in drawn
        assert drawn.splitlines()[-1].split()[:2] == ["2", "B"]
        assert "4 MiB" in drawn
        assert heights(drawn, 6)
        assert bool(heights(drawn, 6 + 22 * 3)) == (count == 23)


def test_three_ways_to_memory_stand_side_by_side_with_their_letters() -> None:
    curves = [
        curve_of(name, [sample(gbps)] * 5, XAxis.TIME)
        for name, gbps in (("host memory", 390.0), ("nvidia-peermem", 200.0), ("DMA-BUF", 385.0))
    ]
    drawn = text(draw_chart(curves, LIMIT, 100, 14, span=(1, 10)))
    assert "A host memory  B nvidia-peermem  C DMA-BUF" in drawn
    assert len(re.findall("A─*B─*C", drawn.splitlines()[-2])) == 10
    assert heights(drawn, 6) > heights(drawn, 8) < heights(drawn, 10)


def test_a_letter_stays_its_tests_where_another_has_no_row() -> None:
    curves = [over_time(390.0), Curve("nvidia-peermem", ()), over_time(380.0)]
    drawn = text(draw_chart(curves, LIMIT, 100, 14, span=(1, 10)))
    assert "A DMA-BUF  C DMA-BUF" in drawn
    assert "B nvidia-peermem" not in drawn


def test_many_rows_are_merged_and_all_seen() -> None:
    drawn = text(draw_chart([over_time(*([390.0] * 200 + [10.0] * 200))], LIMIT, 76, 12))
    assert heights(drawn, 7) > heights(drawn, 60) > 0


def test_rows_that_are_not_kept_any_more_have_had_their_seconds() -> None:
    newest = curve_of("", [sample(390.0)] * 400, XAxis.TIME, first=3201)
    axis = text(draw_chart([newest], LIMIT, 76, 12, span=(3201, 3600))).splitlines()[-1].split()
    assert axis[:2] == ["3201", "s"]
    seconds = [int(word) for word in axis if word != "s"]
    assert seconds == sorted(seconds)
    assert 3201 < seconds[-1] <= 3600


def test_latencies_have_microseconds_and_no_limit() -> None:
    rows = [
        Sample("RDMA_Write", "", size_bytes=size, latencies=(Latency("max", 9.0), Latency("typical", us)))
        for size, us in ((2, 1.9), (4096, 3.1))
    ]
    assert is_latency(rows)
    drawn = text(draw_chart([curve_of("", rows, XAxis.SIZE)], LIMIT, 76, 12, XAxis.SIZE, unit="µs"))
    assert "µs by message size" in drawn
    assert "mlx5_0" not in drawn


def test_copies_by_name_are_bars_with_their_figures() -> None:
    rows = [sample(420.0, None, "CPU 0 → GPU 0"), sample(210.0, None, "GPU 0 → CPU 0")]
    across = x_axis_of(rows, False)
    assert across is XAxis.NAME
    lines = draw_chart([curve_of("", rows, across)], None, 76, 10, across)
    long, short = (line for line in text(lines).splitlines() if "→" in line)
    assert "420" in long
    assert long.count("█") > short.count("█") > 0


def test_a_collective_is_drawn_out_of_place_once_a_size() -> None:
    rows = [sample(gbps, 8, variant) for gbps, variant in ((100.0, "out-of-place"), (300.0, "in-place"))]
    rows += [sample(gbps, 16, variant) for gbps, variant in ((100.0, "out-of-place"), (300.0, "in-place"))]
    assert x_axis_of(rows, False) is XAxis.SIZE
    assert curve_of("", rows, XAxis.SIZE).points == ((8.0, 100.0), (16.0, 100.0))


def test_a_limit_far_away_is_named_and_does_not_flatten_the_bars() -> None:
    limit = Limit((Bound("port 1 of mlx5_0", 100.0, 97.0, "", ()), NIC_LINK))
    drawn = text(draw_chart([over_time(97.0)], limit, 100, 12, span=(1, 10)))
    assert "beyond: PCIe link of mlx5_0 504" in drawn
    assert heights(drawn, 6) >= 7


def test_both_directions_are_measured_against_twice_the_port() -> None:
    drawn = text(draw_chart([over_time(770.0)], LIMIT, 100, 12, directions=2, span=(1, 10)))
    assert "at most 800 Gb/s" in drawn


@pytest.mark.parametrize(("width", "height"), [(78, 8), (118, 14), (30, 6), (24, 5), (10, 3), (0, 0)])
@pytest.mark.parametrize(
    "gbps", [(), (0.0,), (1e-9,), (388.0,), (float("nan"), float("inf"), 5.0), (1e6,) * 900]
)
def test_it_never_leaves_its_room(width: int, height: int, gbps: tuple[float, ...]) -> None:
    for limit in (LIMIT, None, Limit(())):
        lines = draw_chart([over_time(*gbps)], limit, width, height)
        assert len(lines) <= height
        assert all(width_of(line) <= max(width, 8) for line in lines)
        assert "nan" not in text(lines)


def test_without_a_row_it_says_so_and_still_shows_the_limits() -> None:
    drawn = text(draw_chart([], LIMIT, 76, 10, span=(1, 10)))
    assert "No result yet" in drawn
    assert "port 1 of mlx5_0 400" in drawn


def test_a_limit_that_is_not_known_is_no_line() -> None:
    lost = Unknown(Reason.NEEDS_ROOT, "rate")
    drawn = text(draw_chart([over_time(100.0)], Limit((Bound("port", lost, lost, "", ()),)), 76, 10))
    assert "at most" not in drawn
    assert "━" not in drawn


def test_the_axis_goes_up() -> None:
    drawn = text(draw_chart([over_time(388.0)], LIMIT, 76, 20, span=(1, 10)))
    figures = [int(line[:5]) for line in drawn.splitlines() if line[5:6] in ("┤", "┼")]
    assert figures[-1] == 0
    assert all(upper > lower for upper, lower in pairwise(figures))


def test_the_tone_is_the_curves() -> None:
    lines = draw_chart([curve_of("", [sample(100.0)], XAxis.TIME, Tone.WARNING)], LIMIT, 76, 10)
    assert any(run.tone is Tone.WARNING and "█" in run.text for line in lines for run in line)
