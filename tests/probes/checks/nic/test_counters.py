"""Checks of counters: only a rising counter is a warning."""

from dataclasses import replace

import pytest

from probes.base.evidence import Severity
from probes.base.unknown import Reason, Unknown
from probes.checks.registry import findings
from probes.facts.rdma.port_health import ErrorCounter
from probes.queries.finding import Status
from probes.snapshot.examination import Examination
from tests.support.changed_facts import said, status, two_examinations, with_health
from tests.support.doctor import examination_of, findings_on

HGX = examination_of("hgx-h100")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["symbol-errors-rising", "local-ack-timeout", "port-discards-rising"])
def test_a_value_alone_is_a_note_and_a_rise_a_warning(name: str) -> None:
    alone = said(name, examination_of(f"hgx-h100+{name}"))
    assert (alone.status, alone.severity) == (Status.FOUND, Severity.NOTE)
    assert "The next check shows" in alone.cause
    rising = said(name, two_examinations(f"hgx-h100+{name}"))
    assert (rising.status, rising.severity) == (Status.FOUND, Severity.WARNING)
    assert " in 60 s)" in rising.evidence[0].value


def test_a_counter_that_does_not_rise_stays_a_note() -> None:
    still = said("link-flaps-carrier", two_examinations("hgx-h100+link-flaps-carrier"))
    assert (still.status, still.severity) == (Status.FOUND, Severity.NOTE)
    assert "lost its link 29 times since boot" in still.cause
    before = with_health(HGX, lambda port: replace(port, errors={"symbol_error": ErrorCounter(7, False)}))
    same = replace(before, earlier_port_health=before.port_health)
    assert "None since" in said("symbol-errors-rising", same).cause


def test_a_flap_between_two_examinations_is_a_warning() -> None:
    flapped = two_examinations("hgx-h100+link-flaps", 1800.0)
    assert said("link-flaps", flapped).severity is Severity.WARNING


def test_a_few_carrier_changes_are_normal_at_boot() -> None:
    assert status("link-flaps-carrier", HGX) is Status.PASSED
    more = with_health(HGX, lambda port: replace(port, carrier_changes=4), "mlx5_0")
    rising = replace(more, earlier_port_health=HGX.port_health)
    assert said("link-flaps-carrier", rising).severity is Severity.WARNING
    assert (
        said("link-flaps-carrier", rising).title
        == "A NIC's network interface lost its link since the last check"
    )


def test_a_full_counter_does_not_count_as_quiet() -> None:
    full = two_examinations("hgx-h100+error-counter-full")
    assert status("error-counter-full", full) is Status.FOUND
    assert "is full" in said("symbol-errors-rising", full).cause
    assert said("symbol-errors-rising", full).severity is Severity.NOTE


def test_a_counter_that_was_reset_has_not_risen() -> None:
    now = with_health(HGX, lambda port: replace(port, errors={"symbol_error": ErrorCounter(3, False)}))
    before = with_health(HGX, lambda port: replace(port, errors={"symbol_error": ErrorCounter(90, False)}))
    finding = said("symbol-errors-rising", replace(now, earlier_port_health=before.port_health))
    assert finding.severity is Severity.NOTE


@pytest.mark.parametrize(
    ("counter", "rise", "seconds", "severity"),
    [
        ("symbol_error", 1, 5.0, Severity.NOTE),
        ("symbol_error", 3, 5.0, Severity.WARNING),
        ("symbol_error", 3, 3600.0, Severity.NOTE),
        ("symbol_error", 200, 3600.0, Severity.WARNING),
        ("link_error_recovery", 200, 3600.0, Severity.NOTE),
        ("port_rcv_errors", 200, 60.0, Severity.NOTE),
        ("port_rcv_errors", 6000, 60.0, Severity.WARNING),
        ("local_link_integrity_errors", 1, 3600.0, Severity.WARNING),
    ],
)
def test_signal_errors_are_judged_by_their_rate(
    counter: str, rise: int, seconds: float, severity: Severity
) -> None:
    """Some errors are normal on PAM4 links. A single error is not a bad cable."""
    finding = said("symbol-errors-rising", risen(counter, rise, seconds))
    assert (finding.status, finding.severity) == (Status.FOUND, severity)


def risen(counter: str, rise: int, seconds: float) -> Examination:
    """Return a second check, `seconds` after the first, with one risen counter of mlx5_0."""
    before = with_health(HGX, lambda port: replace(port, errors={counter: ErrorCounter(2, False)}), "mlx5_0")
    now = with_health(
        HGX, lambda port: replace(port, errors={counter: ErrorCounter(2 + rise, False)}), "mlx5_0"
    )
    at = HGX.reading.at - seconds
    return replace(now, earlier_port_health=before.port_health, earlier_at=at)


@pytest.mark.parametrize(
    ("counter", "severity", "word"),
    [
        ("port_xmit_discards", Severity.WARNING, "dropped instead of sent"),
        ("excessive_buffer_overrun_errors", Severity.WARNING, "receive buffer overran"),
        ("VL15_dropped", Severity.NOTE, "management packets"),
    ],
)
def test_each_kind_of_discarded_packets_has_its_own_cause(
    counter: str, severity: Severity, word: str
) -> None:
    finding = said("port-discards-rising", risen(counter, 3, 60.0))
    assert (finding.status, finding.severity) == (Status.FOUND, severity)
    assert word in finding.cause
    assert finding.impact


def test_flaps_that_the_link_counter_shows_are_not_counted_twice() -> None:
    both = two_examinations("hgx-h100+link-flaps,link-flaps-carrier", 1800.0)
    found = {finding.id: finding for finding in findings(both, only=["link-flaps", "link-flaps-carrier"])}
    assert found["link-flaps-carrier"].part_of == ""  # of another port
    flapping = with_health(
        both, lambda port: replace(port, errors={"link_downed": ErrorCounter(5, False)}), "mlx5_9"
    )
    found = {finding.id: finding for finding in findings(flapping, only=["link-flaps", "link-flaps-carrier"])}
    assert found["link-flaps-carrier"].part_of == "link-flaps"


@pytest.mark.slow
def test_out_of_order_alone_may_be_adaptive_routing() -> None:
    alone = said("out-of-sequence-rising", two_examinations("hgx-h100+out-of-sequence-rising"))
    assert alone.severity is Severity.NOTE
    assert "adaptive routing" in alone.cause
    lossy = said(
        "out-of-sequence-rising", two_examinations("hgx-h100+out-of-sequence-rising,local-ack-timeout")
    )
    assert lossy.severity is Severity.WARNING


def test_adaptive_routing_on_most_ports_is_no_finding() -> None:
    name = "hgx-h100+adaptive-routing-seen"
    for examination in (examination_of(name), two_examinations(name)):
        fine = said("out-of-sequence-rising", examination)
        assert fine.status is Status.PASSED
        assert "adaptive routing is likely at work" in fine.evidence[0].value


@pytest.mark.parametrize("counter", ["packet_seq_err", "local_ack_timeout_err", "roce_adp_retrans"])
def test_packets_out_of_order_and_losses_are_found(counter: str) -> None:
    lossy = with_health(HGX, lambda port: replace(port, hw_errors={"out_of_sequence": 900, counter: 90}))
    assert status("out-of-sequence-rising", lossy) is Status.FOUND


COUNTED = ("symbol-errors-rising", "link-flaps", "port-discards-rising", "error-counter-full")


@pytest.mark.parametrize("name", COUNTED)
def test_a_counter_that_is_refused_is_unknown(name: str) -> None:
    refused: dict[str, ErrorCounter | Unknown] = {
        counter: Unknown(Reason.IO_ERROR, counter)
        for counter in ("symbol_error", "link_downed", "port_xmit_discards")
    }
    denied = with_health(HGX, lambda port: replace(port, errors=refused), "mlx5_0")
    assert status(name, denied) is Status.UNKNOWN
    assert status("port-counters-missing", denied) is Status.FOUND


def test_in_a_pod_the_counters_of_the_driver_come_from_netlink() -> None:
    found = findings_on("hgx-h100+in-pod")
    assert found["local-ack-timeout"].status is Status.PASSED
    lost = findings_on("hgx-h100+local-ack-timeout,in-pod")["local-ack-timeout"]
    assert lost.status is Status.FOUND
    assert lost.evidence[0].source.startswith("rdma statistic mlx5_")


def test_a_driver_with_counters_of_its_own_is_not_missing_any() -> None:
    node = examination_of("pcie-l40s+nic-irdma")
    absent = Unknown(Reason.NOT_THERE, "counters")
    bare = with_health(node, lambda port: replace(port, errors=absent), "irdma0")
    assert status("port-counters-missing", bare) is Status.PASSED


def test_a_virtual_function_without_counters_is_reported_once() -> None:
    absent = Unknown(Reason.NOT_THERE, "counters")
    virtual = with_health(HGX, lambda port: replace(port, errors=absent, hw_errors=absent), "mlx5_0")
    assert said("port-counters-missing", virtual).devices == ("mlx5_0",)
    for name in COUNTED:
        assert status(name, virtual) is Status.PASSED
    slow = with_health(HGX, lambda port: replace(port, errors=Unknown(Reason.TIMED_OUT)), "mlx5_0")
    assert status("port-counters-missing", slow) is Status.UNKNOWN


@pytest.mark.parametrize(
    "name", ["symbol-errors-rising", "link-flaps", "port-discards-rising", "port-counters-missing"]
)
def test_counters_that_only_the_host_has_are_unknown_in_a_pod(name: str) -> None:
    finding = said(name, examination_of("pcie-l40s+in-pod"))
    assert finding.status is Status.UNKNOWN
    assert "host's network namespace" in finding.cause
