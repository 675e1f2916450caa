"""Tables of what machines reach: what is accepted, what is refused and why, and what a row expects."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.bandwidth.model.expected import (
    MAX_TABLE_BYTES,
    Expectation,
    ExpectedPair,
    TableError,
    parse_table,
)
from probes.bandwidth.model.limits import Bound, Limit
from probes.bandwidth.model.rating import Rating, rate
from probes.bandwidth.model.samples import Sample
from probes.bandwidth.planning.series import builtin_table

NAME = '[[pair]]\nname = "ours"\n'
EXPECTED = Expectation(380.0, "our nodes", "")


def limit_of(gbps: float) -> Limit:
    return Limit((Bound("port 1 of mlx5_0", gbps, gbps, "4X NDR", ()),))


def sample(gbps: float, size_bytes: int = 1 << 20) -> Sample:
    return Sample("write", "GPU0", size_bytes=size_bytes, gbps=gbps)


def test_a_row_with_a_threshold_expects_it() -> None:
    (row,) = parse_table(f"{NAME}at_least_gbps = 300\nport_gbps = 400\n").rows
    assert row.expected_gbps == 300.0
    assert row.tests == ("write",)


def test_a_port_alone_expects_90_percent() -> None:
    (row,) = parse_table(f"{NAME}port_gbps = 400\n").rows
    assert row.expected_gbps == 360.0


def test_a_slower_pcie_link_limits_what_is_expected() -> None:
    (row,) = parse_table(f"{NAME}port_gbps = 400\npcie_gtps = 16\npcie_lanes = 16\n").rows
    assert row.expected_gbps == pytest.approx(0.82 * 252.06 * 256 / 280, abs=0.1)


def test_zero_expects_nothing() -> None:
    (row,) = parse_table(f"{NAME}at_least_gbps = 0\n").rows
    assert row.expected_gbps == 0.0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("pair = 1", "must be a list"),
        ("pair = [1]", "pair 1 is not a table"),
        ("[[pair]]\nport_gbps = 1\n", "has no name"),
        (f"{NAME}prot_gbps = 1\n", "unknown field prot_gbps"),
        (NAME, "has no expected rate"),
        (f"{NAME}port_gbps = -1\n", "port_gbps must be a number"),
        (f"{NAME}port_gbps = nan\n", "port_gbps must be a number"),
        (f"{NAME}port_gbps = true\n", "port_gbps must be a number"),
        (f'{NAME}port_gbps = "400"\n', "port_gbps must be a number"),
        (f"{NAME}pcie_lanes = 3\nport_gbps = 1\n", "pcie_lanes must be"),
        (f'{NAME}tests = ["latency"]\nport_gbps = 1\n', "tests must be a list"),
        (f"{NAME}tests = [[]]\nport_gbps = 1\n", "tests must be a list"),
        (f'{NAME}gpu = "*a*a*a*a*a*a*a*a*a*"\nport_gbps = 1\n', "more than 8 stars"),
        (f'[[pair]]\nname = "{"x" * 201}"\n', "at most 200 characters"),
        ("pairs = []", "unknown field pairs"),
        ('builtin = "no"', "builtin must be"),
        ("[[pair", "not valid TOML"),
        pytest.param("a = " + "[" * 5000, "nested too deeply|not valid", id="nested"),
        pytest.param("#" * (MAX_TABLE_BYTES + 1), "larger than", id="large"),
        pytest.param(NAME * 501, "at most 500", id="many rows"),
    ],
)
def test_a_wrong_table_is_refused_with_the_reason(text: str, words: str) -> None:
    with pytest.raises(TableError, match=words):
        parse_table(text)


@given(st.text(max_size=300) | st.text(max_size=80).map(lambda text: f"[[pair]]\nname = {text}"))
def test_any_text_is_a_table_or_refused(text: str) -> None:
    reason = ""
    try:
        parse_table(text)
    except TableError as error:
        reason = str(error)
    assert reason.isprintable()


@given(st.text(alphabet="*?[]!ab-", max_size=40), st.text(alphabet="ab", max_size=80))
def test_any_pattern_can_be_compared(pattern: str, text: str) -> None:
    if pattern.count("*") <= 8:
        assert ExpectedPair("any", gpu=pattern).fits("", text, "") in (True, False)


def test_patterns_ignore_case_and_leave_open_what_is_not_given() -> None:
    row = ExpectedPair("any", product="nvidia *", gpu="*h100*")
    assert row.fits("NVIDIA DGXH100", "NVIDIA H100 80GB HBM3", "Mellanox ConnectX-7")
    assert not row.fits("Supermicro SYS-821GE-TNHR", "NVIDIA H100 80GB HBM3", "")


def test_every_row_of_gdrtop_names_its_source() -> None:
    rows = builtin_table().rows
    assert len(rows) >= 8
    for row in rows:
        assert "https://" in row.source
        assert row.product
        assert 0 < row.expected_gbps <= row.port_gbps


def test_what_is_expected_decides_before_the_limit() -> None:
    below = rate(sample(370.0), limit_of(400.0), None, EXPECTED)
    assert below.verdict is Rating.BELOW
    assert "at least 380 Gb/s is expected for our nodes" in below.why
    assert rate(sample(370.0), limit_of(400.0)).verdict is Rating.NEAR


def test_a_pair_that_reaches_what_is_expected_is_fine_far_from_the_limit() -> None:
    judged = rate(sample(390.0), limit_of(800.0), None, EXPECTED)
    assert judged.verdict is Rating.NEAR
    assert "our nodes" in judged.why


def test_small_messages_are_not_compared() -> None:
    assert rate(sample(10.0, 64), limit_of(400.0), None, EXPECTED).verdict is Rating.UNKNOWN


def test_as_slow_as_host_memory_stays_so() -> None:
    judged = rate(sample(200.0), limit_of(400.0), sample(201.0), EXPECTED)
    assert judged.verdict is Rating.LIKE_HOST
    assert "our nodes" in judged.why
