"""A result, its rows, a sweep and what can be measured: every word that an admin reads."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.bandwidth.model.planned_series import Pair, Purpose
from probes.bandwidth.model.rating import Rating
from probes.bandwidth.model.result import Ending, Result
from probes.bandwidth.model.samples import (
    BY_DMABUF,
    BY_PEERMEM,
    HOST_MEMORY,
    INTEGRATED_MEMORY,
    About,
    Fact,
    Latency,
    Sample,
)
from probes.bandwidth.planning.inventory import inventory
from probes.base.text import binary_size
from tests.support.bandwidth_nodes import lacking, node
from tests.support.sample_results import failed, judged, latency, result
from widgets.bandwidth.result import draw_result, mark_of, words_of
from widgets.bandwidth.series import draw_inventory
from widgets.bandwidth.table import RowTable, draw_matrix, draw_rows
from widgets.base.lines import Line, Tone, plain, width_of


def text(lines: list[Line]) -> str:
    return "\n".join(plain(line) for line in lines)


def words(lines: list[Line]) -> str:
    return " ".join(text(lines).split())


def fact(about: About, value: str) -> Fact:
    return Fact(about, value, value)


# One result


def test_a_good_result_has_its_mark_its_words_and_why() -> None:
    told = text(draw_result(result(186.0), (), 100))
    assert "✓ 186 of 200 Gb/s, 93 %" in told
    assert "port 1 limits: 4X HDR" in told


def test_below_is_marked_and_its_comparisons_are_told() -> None:
    told = text(draw_result(result(60.0), ("60 Gb/s: 69 % less than on Friday (192 Gb/s)",), 100))
    assert "▲ 60 of 200 Gb/s, 30 %" in told
    assert "69 % less than on Friday" in told


def test_a_failure_has_its_sentence_and_its_raw_line() -> None:
    told = text(draw_result(failed(failure="nvidia_peermem is not loaded", raw="error=14"), (), 100))
    assert "✗ failed" in told
    assert "nvidia_peermem is not loaded" in told
    assert "its output: error=14" in told
    assert "Gb/s" not in told


def test_cancelled_tells_what_it_had_reached() -> None:
    assert words_of(result(150.0, ending=Ending.CANCELED)) == "canceled (150 Gb/s so far)"
    assert words_of(result(None, ending=Ending.CANCELED)) == "canceled"


def test_what_the_tool_itself_said_of_the_memory() -> None:
    by_dmabuf = result(facts=(fact(About.REGISTERED, BY_DMABUF),))
    assert "the tool reports registration via DMA-BUF" in text(draw_result(by_dmabuf, (), 100))
    other = result(facts=(fact(About.REGISTERED, BY_PEERMEM),))
    assert "but DMA-BUF was requested" in words(draw_result(other, (), 100))
    assert "did not report how" in words(draw_result(result(), (), 100))
    silent = words(draw_result(result(facts=(fact(About.MEMORY, HOST_MEMORY),)), (), 100))
    assert "the tool printed no line about a GPU buffer" in silent
    assert "the tool reports" not in silent
    integrated = result(facts=(fact(About.MEMORY, INTEGRATED_MEMORY),))
    assert "the tool reports host memory: the GPU is integrated" in words(draw_result(integrated, (), 100))
    assert "nothing about the GPU" in words(draw_result(result(190.0, HOST_MEMORY), (), 100))


@pytest.mark.parametrize(
    ("about", "value", "told"),
    [
        (About.REGISTERED, BY_PEERMEM, "186 of 200 Gb/s, 93 %: nvidia-peermem, not DMA-BUF"),
        (About.MEMORY, HOST_MEMORY, "186 of 200 Gb/s, 93 %: host memory, not DMA-BUF"),
    ],
)
def test_other_memory_than_was_asked_for_is_no_good_result(about: About, value: str, told: str) -> None:
    shown = result(facts=(fact(about, value),))
    assert mark_of(shown).text == "▲"
    assert words_of(shown) == told
    assert "shows:" not in text(draw_result(shown, (), 100, Purpose("DMA-BUF works", "the cable")))
    matrix = text(draw_matrix([shown], 80))
    assert "186▲" in matrix
    assert "▲ not the requested memory" in " ".join(matrix.split())


def test_what_it_proves_is_told_where_it_is_known() -> None:
    purpose = Purpose("the NIC reaches the GPU", "the cable")
    told = text(draw_result(result(), (), 100, purpose))
    assert "shows: the NIC reaches the GPU" in told
    assert "does not show: the cable" in told


def test_a_latency_is_no_bandwidth() -> None:
    row = Sample("x", "x", size_bytes=2, latencies=(Latency("typical", 2.1), Latency("99 %", 2.9)))
    told = text(draw_result(latency(2.1, figure=row), (), 100))
    assert "2.10 µs with 2 B messages, 99 % within 2.90 µs" in told
    assert "Gb/s" not in told


def test_a_collective_has_its_bus_bandwidth_and_ncclss_way() -> None:
    figure = Sample("all_reduce", "x", size_bytes=1 << 30, gbps=210.0, bus_gbps=368.8)
    facts = tuple(fact(About.ROUTE, f"NET/IB/{number}/GDRDMA") for number in range(8))
    shown = result(tool="all_reduce_perf", memory="", figure=figure, facts=facts)
    told = words(draw_result(shown, (), 100))
    assert "bus bandwidth 369 Gb/s with 1 GiB messages" in told
    assert "GB/s" not in told
    assert "NET/IB/0/GDRDMA" in told
    assert "and 4 more" in told
    assert "accessed GPU memory directly" in told
    copied = replace(shown, facts=(fact(About.ROUTE, "NET/IB/0"),))
    assert "copied through host memory" in words(draw_result(copied, (), 100))


def test_gdrcopy_has_both_directions() -> None:
    rows = (Sample("CPU writes GPU memory", "x", gbps=80.0), Sample("CPU reads GPU memory", "x", gbps=4.4))
    copies = result(tool="gdrcopy_copybw", memory="", samples=rows, figure=rows[0])
    assert words_of(copies) == "CPU writes GPU memory 80 Gb/s · CPU reads GPU memory 4.4 Gb/s"


@pytest.mark.parametrize(
    ("size", "told"), [(1, "1 B"), (2, "2 B"), (65537, "65537 B"), (65536, "64 KiB"), (8 << 20, "8 MiB")]
)
def test_sizes(size: int, told: str) -> None:
    assert binary_size(size) == told


ODD = st.sampled_from(
    [
        result(),
        result(60.0),
        failed(),
        latency(2.0),
        judged(result(100.0), Rating.UNKNOWN, "not known"),
        result(None),
        result(tool="all_reduce_perf"),
        result(ending=Ending.CANCELED),
    ]
)


@given(ODD, st.text(max_size=200), st.integers(20, 160))
def test_no_text_breaks_a_line_or_reaches_the_terminal(shown: Result, odd: str, width: int) -> None:
    spoilt = replace(shown, title=odd, failure=odd, failure_line=odd)
    lines = draw_result(replace(spoilt, facts=(fact(About.REGISTERED, odd),)), (odd,), width)
    assert all("\x1b" not in run.text and "\n" not in run.text for line in lines for run in line)


# Rows


def test_rows_have_their_units_in_the_heading() -> None:
    rows = [
        Sample("w", "w", size_bytes=1 << 20, gbps=190.0 + shown, messages_per_second=23_000.0)
        for shown in range(3)
    ]
    heading, *lines = draw_rows(rows, 80)
    assert plain(heading).split() == ["bytes", "Gb/s", "Mmsg/s"]
    assert plain(lines[0]).split() == ["1048576", "190.0", "0.023"]
    assert len(lines) == 3


def test_latencies_have_their_own_columns() -> None:
    heading, line = draw_rows(latency(2.5).samples, 80, True)
    assert plain(heading).split() == ["bytes", "min", "µs", "typical", "µs"]
    assert plain(line).split() == ["2", "1.00", "2.50"]


def test_collectives_and_copies_are_named() -> None:
    row = Sample(
        "all_reduce", "x", variant="in-place", size_bytes=8, gbps=1.0, bus_gbps=1.75, time_us=3.0, wrong=0
    )
    heading, line = draw_rows([row], 100)
    assert plain(heading).split() == ["bytes", "Gb/s", "bus", "Gb/s", "time", "µs", "wrong"]
    assert plain(line).split() == ["8", "1.00", "1.75", "3.00", "0", "in-place"]
    copies = draw_rows([Sample("host_to_device", "x", variant="CPU 0 → GPU 0", gbps=440.0)], 100)
    assert "CPU 0 → GPU 0" in plain(copies[1])


def test_rows_can_be_drawn_as_they_come() -> None:
    table = RowTable((), 80)
    line = table.row(Sample("w", "w", size_bytes=64, gbps=0.05, messages_per_second=1e5))
    assert plain(line).split() == ["64", "0.0500", "0.100"]
    assert len(plain(table.heading())) == len(plain(line))


def test_no_rows_no_table() -> None:
    assert draw_rows((), 80) == []


@given(st.integers(10, 200))
def test_a_row_is_never_wider_than_the_pane(width: int) -> None:
    for is_latency in (False, True):
        assert all(width_of(line) <= width for line in draw_rows(latency(1.0).samples, width, is_latency))


# The matrix


def pair(gpu: int, nic: str, gbps: float = 390.0, **changed: object) -> Result:
    return result(gbps, pair=Pair(f"0000:{gpu:02x}:00.0", f"GPU{gpu}", nic, 1), **changed)


def test_a_full_matrix_fits_80_columns() -> None:
    results = [pair(gpu, f"mlx5_{nic}") for gpu in range(8) for nic in range(10)]
    lines = draw_matrix(results, 80)
    assert all(width_of(line) <= 80 for line in lines)
    rows = [plain(line).split() for line in lines if plain(line).startswith("GPU")]
    assert [row[0] for row in rows] == [f"GPU{gpu}" for gpu in range(8)]
    assert all(row[1:] == ["390"] * 10 for row in rows)
    assert "mlx5_" in text(lines)


def test_each_kind_of_cell_has_its_sign_and_the_legend_says_which() -> None:
    results = [
        pair(0, "mlx5_0"),
        pair(0, "mlx5_1", 60.0),
        pair(1, "mlx5_1", ending=Ending.FAILED, figure=None, failure="no"),
        pair(2, "mlx5_0", 100.0, ending=Ending.CANCELED),
    ]
    told = text(draw_matrix(results, 80))
    assert "GPU0    390   60▲" in told
    assert "GPU1      ·     ✗" in told
    assert "100■" in told
    for sign in ("· not measured", "▲ below", "✗ failed", "■ canceled", "at most 200 Gb/s"):
        assert sign in " ".join(told.split())


def test_what_was_not_measured_has_its_place() -> None:
    told = text(draw_matrix([pair(0, "mlx5_0")], 80, ("GPU0", "GPU1"), ("mlx5_0", "mlx5_1")))
    assert "GPU1      ·     ·" in told


def test_each_memory_has_its_table_and_host_memory_one_row() -> None:
    results = [result(390.0, HOST_MEMORY), pair(0, "mlx5_0"), pair(0, "mlx5_0", memory=BY_PEERMEM)]
    told = text(draw_matrix(results, 80))
    for memory in (HOST_MEMORY, BY_DMABUF, BY_PEERMEM):
        assert f"{memory}   Gb/s" in told
    assert "host " in told


def test_more_nics_than_fit_go_below() -> None:
    results = [pair(0, f"rocep{nic}s0f0np0") for nic in range(20)]
    lines = draw_matrix(results, 60)
    assert all(width_of(line) <= 60 for line in lines)
    assert sum(plain(line).startswith("GPU0") for line in lines) > 1


def test_tones_follow_the_verdict() -> None:
    tones = {
        run.tone for line in draw_matrix([pair(0, "mlx5_0"), pair(0, "mlx5_1", 60.0)], 80) for run in line
    }
    assert {Tone.GOOD, Tone.WARNING} <= tones


def test_no_pair_no_matrix() -> None:
    assert "No GPU–NIC pair" in text(draw_matrix([], 80))


# The inventory


def test_the_inventory_names_tool_version_and_what_it_proves() -> None:
    told = text(draw_inventory(inventory(node()), 100))
    assert "✓ ib_write_bw" in told
    assert "version 6.23" in told
    assert "no NIC is involved" in " ".join(told.split())


def test_the_inventory_tells_what_is_missing_and_how_to_get_it() -> None:
    told = draw_inventory(inventory(lacking("hgx-h100", "nvbandwidth", cuda=False, dmabuf=False)), 100)
    assert "– nvbandwidth" in text(told)
    assert "github.com/NVIDIA/nvbandwidth" in text(told)
    assert "▲ ib_write_bw" in text(told)
    assert "built without CUDA: host memory only" in words(told)
    # The same way for all of perftest is told once.
    assert words(told).count("CUDA_H_PATH") == 1


@pytest.mark.slow
@given(st.integers(40, 160))
def test_the_inventory_keeps_to_its_width(width: int) -> None:
    assert all(width_of(line) <= width for line in draw_inventory(inventory(node()), width))
