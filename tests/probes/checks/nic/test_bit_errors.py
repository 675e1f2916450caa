"""Checks of bit errors: what is normal, what is not, and what cannot be known."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from probes.base.evidence import Severity
from probes.base.unknown import Reason, Unknown
from probes.facts.rdma.bit_errors import CORRECTED, LOST, RECEIVED
from probes.facts.rdma.port_health import PortHealth
from probes.host.fec import CORRECTED_BITS, UNCORRECTABLE, FecState
from probes.queries.finding import Finding, Status
from probes.snapshot.examination import Examination
from tests.support.changed_facts import said, status, two_examinations, with_health
from tests.support.doctor import examination_of

HGX = examination_of("hgx-h100")
BEFORE_FEC, GONE = "bit-errors-before-fec", Unknown(Reason.NOT_THERE)
HOUR, BITS_A_SECOND = 3600.0, 400e9


def counting(**counters: int) -> Callable[[PortHealth], PortHealth]:
    return lambda port: replace(port, ethtool=counters, fec=GONE)


def later(rates: dict[str, float], seconds: float = HOUR, lost: int = 0) -> Examination:
    """Return a check `seconds` after another, with error rates of ports, of Linux' own driver; else 1E-10."""
    before = with_health(HGX, counting(**{CORRECTED: 10**6, LOST: 5}))
    usual = round(1e-10 * BITS_A_SECOND * seconds)
    now = with_health(HGX, counting(**{CORRECTED: 10**6 + usual, LOST: 5}))
    for name, rate in rates.items():
        counts = {CORRECTED: 10**6 + round(rate * BITS_A_SECOND * seconds), LOST: 5 + lost}
        now = with_health(now, counting(**counts), name)
    at = HGX.reading.at - seconds
    return replace(now, earlier_port_health=before.port_health, earlier_at=at)


def before_fec(rates: dict[str, float], seconds: float = HOUR) -> Finding:
    return said(BEFORE_FEC, later(rates, seconds))


@pytest.mark.parametrize(
    ("rate", "severity"),
    [(9e-9, None), (2e-8, Severity.NOTE), (2e-7, Severity.NOTE), (2e-6, Severity.WARNING)],
)
def test_a_port_is_compared_with_its_sisters_and_with_the_limits(
    rate: float, severity: Severity | None
) -> None:
    """Up to 1E-8 any rate is normal, however much lower those of the other ports are."""
    finding = before_fec({"mlx5_3": rate})
    assert finding.status is (Status.PASSED if severity is None else Status.FOUND)
    if severity is not None:
        assert finding.severity is severity
        assert finding.devices == ("mlx5_3",)
        assert f"{rate / 1e-10:,.0f} times as many as on the other ports of its speed" in finding.cause
        assert ("gdrtop's own limit" in finding.cause) is (severity is Severity.WARNING)


def test_what_all_ports_have_is_not_odd() -> None:
    every = {f"mlx5_{number}": 2e-8 for number in range(10)}
    assert before_fec(every).status is Status.PASSED


def test_a_port_of_another_speed_is_no_sister() -> None:
    assert before_fec({"mlx5_4": 2e-8}).status is Status.PASSED  # 100 Gb/s, as only mlx5_9 has


@pytest.mark.parametrize(
    "change",
    [
        lambda port: replace(port, carrier_changes=3),
        lambda port: replace(port, ethtool={**port.ethtool, "link_down_events_phy": 1}),
    ],
)
def test_a_link_that_was_trained_in_between_is_not_judged(change: Callable[[PortHealth], PortHealth]) -> None:
    trained = with_health(later({"mlx5_3": 1e-5}), change, "mlx5_3")
    assert status(BEFORE_FEC, trained) is Status.UNKNOWN


def test_a_reset_or_a_short_time_says_nothing() -> None:
    assert before_fec({"mlx5_3": 1e-5}, seconds=20.0).status is Status.UNKNOWN
    assert "60 s apart" in before_fec({"mlx5_3": 1e-5}, seconds=20.0).cause
    assert "of watching" in said(BEFORE_FEC, replace(later({}), earlier_port_health=None)).cause
    reset = with_health(later({}), counting(**{CORRECTED: 5, LOST: 0}), "mlx5_3")
    assert status(BEFORE_FEC, reset) is Status.UNKNOWN


def test_the_bits_received_are_the_denominator_where_they_are_counted() -> None:
    """Only NVIDIA's driver counts them; they make a rate since the driver was loaded, which is a note."""
    whole = with_health(HGX, counting(**{CORRECTED: 10**9, RECEIVED: 10**14}), "mlx5_3")
    finding = said(BEFORE_FEC, whole)
    assert (finding.status, finding.severity) == (Status.FOUND, Severity.NOTE)
    assert "The next check shows" in finding.cause


def test_what_is_not_counted_is_unknown_and_never_good() -> None:
    for absent in (GONE, {}):
        unread = with_health(HGX, lambda port, absent=absent: replace(port, ethtool=absent, fec=GONE))
        for name in (BEFORE_FEC, "symbols-lost", "module-hot-events", "module-faulty"):
            assert status(name, unread) is Status.UNKNOWN
    no_mode = with_health(HGX, lambda port: replace(port, fec=FecState(GONE, {})))
    assert status("fec-off", no_mode) is Status.UNKNOWN


def test_without_ib_ipoib_the_text_says_what_would_show_bit_errors() -> None:
    without = examination_of("hgx-h100+ipoib-missing")
    assert "ib_ipoib would show bit errors" in said(BEFORE_FEC, without).cause
    assert status("symbols-lost", without) is Status.UNKNOWN


def test_other_drivers_count_with_the_fec_mode() -> None:
    def fec(bits: int, blocks: int) -> Callable[[PortHealth], PortHealth]:
        counts = {CORRECTED_BITS: bits, UNCORRECTABLE: blocks}
        return lambda port: replace(port, ethtool=GONE, fec=FecState("RS", counts))

    before, now = with_health(HGX, fec(0, 3)), with_health(HGX, fec(1000, 903), "mlx5_9")
    now = replace(with_health(now, fec(10, 3), *(f"mlx5_{number}" for number in range(9))))
    now = replace(now, earlier_port_health=before.port_health, earlier_at=HGX.reading.at - HOUR)
    lost = said("symbols-lost", now)
    assert (lost.severity, lost.devices) == (Severity.WARNING, ("mlx5_9",))
    assert lost.evidence[0].source == "ethtool -I --show-fec ens9np0: uncorrectable_blocks"
    assert status(BEFORE_FEC, now) is Status.PASSED


@pytest.mark.parametrize(
    ("name", "lost", "seconds", "severity"),
    [
        ("mlx5_3", 1, 60.0, Severity.NOTE),  # a single one says nothing about the rate
        ("mlx5_3", 7, HOUR, Severity.NOTE),
        ("mlx5_3", 8, HOUR, Severity.WARNING),  # 400 Gb/s: NVIDIA's limit for NDR is 7.2 an hour
        ("mlx5_9", 8, HOUR, Severity.NOTE),  # 100 Gb/s: for other speeds, NVIDIA states none
        ("mlx5_9", 130, HOUR, Severity.WARNING),
    ],
)
def test_lost_symbols_are_a_warning_above_a_rate(
    name: str, lost: int, seconds: float, severity: Severity
) -> None:
    finding = said("symbols-lost", later({name: 1e-10}, seconds, lost))
    assert (finding.status, finding.severity, finding.devices) == (Status.FOUND, severity, (name,))


def test_lost_symbols_of_a_training_are_a_note() -> None:
    lost = later({"mlx5_3": 1e-10}, lost=5000)
    assert said("symbols-lost", lost).severity is Severity.WARNING
    trained = with_health(lost, lambda port: replace(port, carrier_changes=4), "mlx5_3")
    assert said("symbols-lost", trained).severity is Severity.NOTE


def test_a_module_that_gets_hot_now_is_critical() -> None:
    def hot(count: int) -> Examination:
        return with_health(HGX, counting(module_high_temp=count), "mlx5_2")

    assert said("module-hot-events", hot(1)).severity is Severity.WARNING
    now = replace(hot(3), earlier_port_health=hot(1).port_health, earlier_at=HGX.reading.at - 60)
    assert said("module-hot-events", now).severity is Severity.CRITICAL


def test_fec_is_off_only_where_others_of_the_speed_have_it() -> None:
    off = FecState("off", {})
    assert said("fec-off", with_health(HGX, lambda port: replace(port, fec=off), "mlx5_9")).devices == (
        "mlx5_9",
    )
    every = with_health(HGX, lambda port: replace(port, fec=off))
    assert status("fec-off", every) is Status.PASSED


@pytest.mark.slow
def test_simulated_faults_are_worse_in_the_second_check() -> None:
    for fault, check in (("ber-rising", BEFORE_FEC), ("symbols-lost", "symbols-lost")):
        assert said(check, two_examinations(f"hgx-h100+{fault}")).severity is Severity.WARNING
