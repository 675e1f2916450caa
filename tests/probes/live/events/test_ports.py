"""Events of ports and of their error counters; the false alarms that other monitors had are no events."""

from __future__ import annotations

from typing import Any

import pytest

from probes.base.evidence import Severity
from probes.base.unknown import Reason, Unknown
from probes.live.model.sample import EventKind, LiveSample
from probes.snapshot.condition import ERRORS_RISING, PAUSED
from tests.support.event_runs import Following, lasting, texts
from tests.support.live_samples import a_port, a_sample


def with_port(number: int = 3, ranks: int = 8, **parts: Any) -> LiveSample:
    ports = tuple(a_port(n, **(parts if n == number else {})) for n in range(8))
    return a_sample(ranks=ranks, ports=ports)


def counting(ranks: int = 8, **rates: Any) -> LiveSample:
    return with_port(counters=rates, ranks=ranks)


def test_a_port_that_goes_down_and_comes_back() -> None:
    node = Following()
    node.see(a_sample(), 3)
    (down,) = node.see(with_port(state="DOWN"), 4)
    assert (down.kind, down.subject, down.text) == (EventKind.PORT_STATE, "mlx5_3", "mlx5_3 went down")
    assert down.severity is Severity.CRITICAL  # a job uses it
    (up,) = node.see(a_sample(), 4)
    assert (up.text, up.severity) == ("mlx5_3 is up again after 4 s", Severity.NOTE)


def test_a_port_without_a_job_that_goes_down_is_a_warning() -> None:
    node = Following()
    node.see(a_sample(ranks=0), 3)
    (down,) = node.see(with_port(state="DOWN", ranks=0), 4)
    assert down.severity is Severity.WARNING


def test_a_port_that_is_down_by_design_is_no_event() -> None:
    assert not Following().see(with_port(state="DOWN"), 100)


def test_an_unknown_state_is_no_change() -> None:
    node = Following()
    node.see(a_sample(), 3)
    assert not node.see(with_port(state=Unknown(Reason.IO_ERROR)), 10)
    assert not node.see(a_sample(), 3)


def test_a_flapping_port_is_reported_once() -> None:
    node = Following()
    node.see(a_sample(), 3)
    events = []
    for _ in range(20):
        events += node.see(with_port(state="DOWN"), 2)
        events += node.see(a_sample(), 3)
    assert texts(events) == [
        "mlx5_3 went down",
        "mlx5_3 is up again after 2 s",
        "mlx5_3 went down",
        "mlx5_3 is up again after 2 s",
        "mlx5_3 is flapping: down 3 times in 10 s",
    ]
    assert texts(node.see(a_sample(), 120)) == ["mlx5_3 has stopped flapping"]
    assert texts(node.see(with_port(state="DOWN"), 3)) == ["mlx5_3 went down"]


def test_a_flapping_port_that_stays_down_is_reported_again() -> None:
    node = Following()
    node.see(a_sample(), 3)
    for _ in range(5):
        node.see(with_port(state="DOWN"), 2)
        node.see(a_sample(), 3)
    assert texts(node.see(with_port(state="DOWN"), 120)) == ["mlx5_3 is still down"]


def test_an_infiniband_port_on_its_way_up_is_one_event() -> None:
    node = Following()
    node.see(with_port(state="DOWN"), 3)
    assert not node.see(with_port(state="INIT"), 2)
    assert not node.see(with_port(state="ARMED"), 1)
    assert texts(node.see(a_sample(), 2)) == ["mlx5_3 is up again after 6 s"]


def test_a_device_that_is_gone() -> None:
    node = Following()
    node.see(a_sample(), 3)
    ports = tuple(a_port(number) for number in range(7))
    assert texts(node.see(a_sample(ports=ports), 5)) == ["mlx5_7 is gone"]
    (gone,) = node.see(a_sample(ports=()), 5)
    assert (gone.text, gone.severity) == ("all 7 RDMA ports are gone", Severity.CRITICAL)


def test_a_changed_line_rate_is_an_event_but_not_that_of_a_port_that_is_down() -> None:
    node = Following()
    node.see(a_sample(), 3)
    (changed,) = node.see(with_port(line_rate_gbps=100.0), 4)
    assert changed.text == "the line rate of mlx5_3 changed from 400 to 100 Gb/s"
    assert (changed.kind, changed.severity) == (EventKind.PORT_RATE, Severity.WARNING)
    events = node.see(with_port(line_rate_gbps=2.5, state="DOWN"), 4)
    assert [event.kind for event in events] == [EventKind.PORT_STATE]


def test_pauses_above_five_percent_that_last_are_one_event() -> None:
    node = Following()
    node.see(a_sample(), 3)
    assert not node.see(with_port(pause_percent=4.9), 20)
    assert not node.see(with_port(pause_percent=60.0), 2)
    assert not node.see(a_sample(), 5)
    (pause,) = node.see(with_port(pause_percent=23.4), 30)
    assert pause.text == "mlx5_3 is paused 23 % of the time"
    for _ in range(10):
        assert not node.see(a_sample(), 5)
        assert not node.see(with_port(pause_percent=23.4), 5)


def test_unknown_pauses_are_no_event() -> None:
    absent = Unknown(Reason.NOT_THERE)
    assert not Following().see(with_port(pause_percent=absent), 10)


def test_a_paused_port_whose_pauses_become_unknown_is_not_paused_forever() -> None:
    node = Following()
    node.see(a_sample(), 3)
    node.see(with_port(pause_percent=60.0), 5)
    assert lasting(node, PAUSED) == ["mlx5_3 is paused 60 % of the time"]
    assert not node.see(with_port(pause_percent=Unknown(Reason.NOT_THERE)), 10)
    assert not lasting(node, PAUSED)
    assert not node.see(a_sample(), 5)
    assert not lasting(node, PAUSED)


@pytest.mark.parametrize(
    ("counter", "slow", "fast"),
    [
        ("symbol_error", 0.01, 11.0),
        ("port_rcv_errors", 9.0, 11.0),
        ("local_ack_timeout_err", 0.9, 1.5),
        ("port_xmit_discards", 99.0, 120.0),
        ("roce_slow_restart", 9.0, 12.0),
        ("packet_seq_err", 9.0, 50.0),
        ("rx_icrc_encapsulated", 0.5, 5.0),
        ("rnr_nak_retry_err", 0.5, 5.0),
        ("link_downed", 0.0, 0.5),
    ],
)
def test_a_counter_is_an_event_only_above_its_threshold(counter: str, slow: float, fast: float) -> None:
    node = Following()
    node.see(a_sample(), 3)
    assert not node.see(counting(**{counter: slow}), 90)
    (rising,) = node.see(counting(**{counter: fast}), 90)
    assert rising.kind is EventKind.ERRORS_RISING
    assert rising.text.startswith("mlx5_3 ")
    assert counter in rising.text
    assert rising.explanation


def test_signal_errors_that_add_up_in_an_hour_are_an_event() -> None:
    node = Following()
    slower = with_port(counters={"symbol_error": 0.5}, line_rate_gbps=200.0)
    node.see(with_port(line_rate_gbps=200.0), 3)
    assert not node.see(slower, 230)
    (rising,) = node.see(slower, 30)
    assert rising.text.endswith("(symbol_error rose by 120 in the last hour)")


@pytest.mark.parametrize("counter", ["symbol_error", "rx_pcs_symbol_err_phy"])
def test_at_400_gbps_the_limit_is_nvidias_for_ndr(counter: str) -> None:
    """5E-15 of the bits, which are 7.2 errors an hour."""
    node = Following()
    node.see(a_sample(), 3)
    assert not node.see(counting(**{counter: 0.5}), 13)
    (rising,) = node.see(counting(**{counter: 0.5}), 10)
    assert rising.text.endswith(f"({counter} rose by 8 in the last hour)")


def test_a_link_that_was_down_between_two_samples_was_trained_as_well() -> None:
    node = Following()
    node.see(a_sample(), 3)
    (lost,) = node.see(counting(link_downed=1.0, symbol_error=500.0), 2)
    assert "link_downed" in lost.text
    assert not node.see(counting(symbol_error=50.0), 10)


def test_the_training_of_a_link_makes_errors_that_are_no_event() -> None:
    node = Following()
    node.see(a_sample(), 3)
    node.see(with_port(state="DOWN"), 2)
    assert not [each for each in node.see(counting(symbol_error=50.0), 40) if "symbol" in each.text]
    assert [each for each in node.see(counting(symbol_error=50.0), 60) if "symbol" in each.text]


def test_errors_are_rising_until_they_are_quiet_for_a_minute() -> None:
    node = Following()
    node.see(a_sample(), 3)
    node.see(counting(symbol_error=100.0), 5)
    node.see(a_sample(), 55)
    assert lasting(node, ERRORS_RISING)
    node.see(a_sample(), 10)
    assert not lasting(node, ERRORS_RISING)


def test_a_counter_that_rises_again_after_a_minute_is_a_new_event() -> None:
    node = Following()
    node.see(a_sample(), 3)
    for _ in range(3):
        assert len(node.see(counting(local_ack_timeout_err=5.0), 20)) == 1
        assert not node.see(a_sample(), 30)
        assert not node.see(counting(local_ack_timeout_err=5.0), 20)
        assert not node.see(a_sample(), 120)


def test_packets_out_of_order_alone_are_no_event() -> None:
    """Adaptive routing reorders packets without losing any."""
    node = Following()
    node.see(a_sample(), 3)
    assert not node.see(counting(out_of_sequence=5000.0), 60)
    (rising,) = node.see(counting(out_of_sequence=5000.0, local_ack_timeout_err=0.5), 10)
    assert rising.text.startswith("mlx5_3 loses packets (out_of_sequence")


def test_unknown_and_missing_counters_are_no_event() -> None:
    full = Unknown(Reason.MALFORMED, "symbol_error", "the counter is full")
    assert not Following().see(counting(symbol_error=full, link_downed=Unknown(Reason.NOT_THERE)), 30)


def test_the_errors_of_a_job_that_ends_are_no_event() -> None:
    node = Following()
    node.see(a_sample(), 10)
    errors = {"local_ack_timeout_err": 500.0, "packet_seq_err": 500.0, "req_transport_retries_exceeded": 9.0}
    events = node.see(counting(ranks=0, **errors), 10)
    assert {event.kind for event in events} == {EventKind.PROCESS_ENDED}
    assert not node.see(a_sample(ranks=0), 60)


def test_rates_over_missed_samples_are_not_added_up() -> None:
    node = Following()
    node.see(a_sample(), 3)
    node.now += 600
    events = node.see(counting(local_ack_timeout_err=0.5), 3)
    assert [event.kind for event in events] == [EventKind.SAMPLES_MISSED]


def test_the_link_downed_counter_does_not_repeat_what_the_state_has_shown() -> None:
    node = Following()
    node.see(a_sample(), 3)
    assert texts(node.see(with_port(state="DOWN", counters={"link_downed": 0.5}), 4)) == ["mlx5_3 went down"]
    events = node.see(counting(link_downed=0.5, link_down_events_phy=1.0), 4)
    assert texts(events) == ["mlx5_3 is up again after 4 s"]


def test_a_link_that_goes_down_between_two_samples_is_an_event() -> None:
    node = Following()
    node.see(a_sample(), 3)
    (lost,) = node.see(counting(link_downed=0.5, link_down_events_phy=1.0), 2)
    assert lost.text.startswith("mlx5_3 lost its link")


@pytest.mark.parametrize(
    ("counter", "usual", "congested"),
    [("rp_cnp_handled", 700.0, 20_000.0), ("np_cnp_sent", 0.0, 900.0), ("port_xmit_wait", 1e5, 1e7)],
)
def test_congestion_is_an_event_only_where_it_is_new(counter: str, usual: float, congested: float) -> None:
    node = Following()
    node.see(a_sample(), 3)
    for _ in range(4):
        assert not node.see(counting(**{counter: usual}), 16)
        assert not node.see(counting(**{counter: 0.0}), 3)
    (rising,) = node.see(counting(**{counter: congested}), 90)
    assert (rising.kind, rising.severity) == (EventKind.ERRORS_RISING, Severity.NOTE)


def test_congestion_that_a_job_starts_with_is_no_event() -> None:
    assert not Following().see(counting(rp_cnp_handled=9000.0), 90)
    node = Following()
    node.see(counting(ranks=0, rp_cnp_handled=0.0), 30)
    events = node.see(counting(rp_cnp_handled=9000.0), 90)
    assert {event.kind for event in events} == {EventKind.PROCESS_STARTED}


def test_many_ports_with_the_same_trouble_are_one_event() -> None:
    node = Following()
    node.see(a_sample(), 30)
    congested = a_sample(ports=tuple(a_port(n, counters={"port_xmit_wait": 1e6}) for n in range(8)))
    (rising,) = node.see(congested, 30)
    assert rising.text == (
        "mlx5_0 waits for credits from the switch, and so do 7 more ports"
        " (port_xmit_wait rose by 2,000,000 in the last 10 s)"
    )
    assert rising.others == tuple(f"mlx5_{number}" for number in range(1, 8))
