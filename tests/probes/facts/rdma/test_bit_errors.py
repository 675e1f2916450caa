"""Rates of bit errors from counters, and the limits as numbers of errors."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Reason, Unknown
from probes.facts.rdma.bit_errors import (
    CORRECTED,
    NDR_GBPS,
    RECEIVED,
    SYMBOL,
    Counts,
    per_hour,
    rate_since,
    rate_since_load,
    rate_text,
)

GONE = Unknown(Reason.NOT_THERE)


def counts(corrected: int, received: int | None = None) -> Counts:
    return {CORRECTED: corrected} if received is None else {CORRECTED: corrected, RECEIVED: received}


def test_an_idle_link_receives_as_many_bits_as_its_line_rate() -> None:
    assert rate_since(counts(640), counts(400), 60.0, 400.0) == 240 / (400e9 * 60)
    assert rate_since(counts(640, 5 * 10**9), counts(400, 10**9), 60.0, 400.0) == 240 / 4e9
    assert rate_since_load(counts(5, 10**9)) == 5e-9


def test_what_cannot_be_known() -> None:
    unknown = (
        rate_since(counts(1), counts(2), 60.0, 400.0),  # reset
        rate_since(counts(2), counts(1), 60.0, GONE),
        rate_since(counts(2), counts(1), 60.0, 0.0),
        rate_since({}, counts(1), 60.0, 400.0),
        rate_since_load(counts(2)),
        rate_since_load(counts(2, 0)),
    )
    assert all(isinstance(rate, Unknown) for rate in unknown)


@pytest.mark.parametrize(
    ("rate", "text"), [(0.0, "0"), (2.44e-10, "2.4E-10"), (1e-6, "1E-6"), (3.04e-9, "3E-9"), (0.5, "5E-1")]
)
def test_rates_are_written_as_mlxlink_writes_them(rate: float, text: str) -> None:
    assert rate_text(rate) == text


@given(st.floats(1e-300, 1.0))
def test_a_written_rate_is_the_rate(rate: float) -> None:
    assert float(rate_text(rate)) == pytest.approx(rate, rel=0.06)


def test_nvidias_limits_for_ndr_are_7_and_14_errors_an_hour() -> None:
    assert per_hour(SYMBOL.warning, NDR_GBPS) == pytest.approx(7.2)
    assert per_hour(SYMBOL.error, NDR_GBPS) == pytest.approx(14.4)
