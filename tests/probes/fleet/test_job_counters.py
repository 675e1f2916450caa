"""The port counters before and after a job, and what their difference means."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.base.unknown import Maybe, Reason, Unknown
from probes.fleet.job_counters import (
    CountersError,
    JobCounters,
    JobDifference,
    PortCounts,
    compare,
    decimal_bytes,
    from_text,
    read_counters,
    to_text,
)
from probes.host.machine.local import LocalHost
from probes.simulation.host import SimulatedHost

TB = 10**12
HOUR = 3600.0


def moment(
    at: float, counters: Mapping[str, int] | None = None, boot: Maybe[str] = "boot", **sent: int
) -> JobCounters:
    """Return the counters of eight ports; `counters`: of the first, `sent`: the bytes of single ports."""
    ports = {
        f"mlx5_{number}": PortCounts(
            octets := sent.get(f"mlx5_{number}", int(at * 1e9)), octets, 200.0, {}, {}
        )
        for number in range(8)
    }
    ports["mlx5_0"] = replace(ports["mlx5_0"], counters=dict(counters or {}))
    return JobCounters("4711", 1.7e9 + at, boot, ports)


def after(
    before: Mapping[str, int], later: Mapping[str, int], seconds: float = HOUR, **sent: int
) -> JobDifference:
    return compare(moment(0.0, before), moment(seconds, later, **sent))


def grown(difference: JobDifference) -> dict[str, tuple[int, bool]]:
    return {row.name: (row.by, row.is_high) for row in difference.ports[0].grown}


def test_symbol_errors_at_400_gbps_have_nvidias_limit_for_ndr() -> None:
    """5E-15 of the bits, which are 7.2 errors an hour."""
    begin, end = moment(0.0, {"symbol_error": 5}), moment(HOUR, {"symbol_error": 13})
    assert not grown(compare(begin, end))["symbol_error"][1]
    faster = replace(end.ports["mlx5_0"], line_rate_gbps=400.0)
    end = replace(end, ports={**end.ports, "mlx5_0": faster})
    assert grown(compare(begin, end)) == {"symbol_error": (8, True)}


def test_a_job_without_errors_has_no_problem_and_the_bytes_of_each_port() -> None:
    difference = after({"symbol_error": 7}, {"symbol_error": 7})
    assert difference.problems == 0
    assert difference.seconds == HOUR
    assert [port.sent_bytes for port in difference.ports] == [3600 * 10**9] * 8


def test_counters_that_grew_more_than_is_normal_are_problems() -> None:
    names = ("link_downed", "packet_seq_err", "symbol_error", "np_cnp_sent", "out_of_sequence")
    before = dict.fromkeys(names, 5)
    later = {
        "link_downed": 6,
        "packet_seq_err": 50_005,
        "symbol_error": 125,
        "np_cnp_sent": 500_000,
        "out_of_sequence": 5,
    }
    assert grown(after(before, later)) == {
        "link_downed": (1, True),
        "packet_seq_err": (50_000, True),
        "symbol_error": (120, False),
        "np_cnp_sent": (499_995, False),
    }
    assert grown(after({"symbol_error": 5}, {"symbol_error": 126}))["symbol_error"] == (121, True)
    (port, *_) = after(before, later).ports
    assert [row.is_high for row in port.grown] == [True, True, False, False]
    assert port.grown[0].sentence == "mlx5_0 lost its link"
    assert port.grown[0].explanation


def test_packets_out_of_order_are_a_problem_only_beside_a_loss() -> None:
    before, later = (
        {"out_of_sequence": 0, "packet_seq_err": 0},
        {"out_of_sequence": 90_000, "packet_seq_err": 0},
    )
    assert grown(after(before, later))["out_of_sequence"] == (90_000, False)
    assert grown(after(before, {**later, "packet_seq_err": 1}))["out_of_sequence"] == (90_000, True)


def test_a_counter_that_wrapped_or_is_full_is_a_lower_bound() -> None:
    rows = after({"packet_seq_err": 2**32 - 10}, {"packet_seq_err": 90}).ports[0].grown
    assert [(row.by, row.is_lower_bound) for row in rows] == [(100, True)]
    rows = after({"link_downed": 250}, {"link_downed": 255}).ports[0].grown
    assert [(row.by, row.is_lower_bound) for row in rows] == [(5, True)]


def test_a_reset_is_said_and_never_negative() -> None:
    (port, *others) = compare(moment(10.0), moment(HOUR, mlx5_0=5)).ports
    assert isinstance(port.sent_bytes, Unknown)
    assert "were reset during the job" in port.note
    assert not any(other.note for other in others)
    assert "reset" in after({"symbol_error": 9}, {"symbol_error": 3}).ports[0].note
    partly = after({"packet_seq_err": 9, "link_downed": 0}, {"packet_seq_err": 3, "link_downed": 2})
    assert grown(partly) == {"link_downed": (2, True)}
    assert (
        partly.ports[0].note == "has counters that cannot be compared: packet_seq_err (the counter was reset)"
    )


def test_after_a_reboot_nothing_is_compared() -> None:
    difference = compare(moment(0.0, boot="one"), moment(HOUR, boot="two"))
    assert "was rebooted" in difference.note
    assert not difference.ports
    unknown = Unknown(Reason.NOT_THERE)
    assert not compare(moment(0.0, boot=unknown), moment(HOUR, boot="two")).note


def test_a_clock_that_was_set_back_leaves_the_duration_unknown() -> None:
    difference = compare(moment(HOUR), replace(moment(2 * HOUR), at=0.0))
    assert isinstance(difference.seconds, Unknown)
    assert difference.ports[0].sent_bytes == 3600 * 10**9


def test_a_port_that_carried_far_less_than_the_others_is_a_problem() -> None:
    difference = after({}, {}, mlx5_5=TB)
    assert [port.low for port in difference.ports if port.low] == [
        "mlx5_5 carried 1.0 TB; the other 7 ports of its rate carried 3.6 TB (median)"
    ]
    assert difference.problems == 1
    idle = {f"mlx5_{number}": 0 for number in range(4)}
    assert not after({}, {}, **idle).problems  # a job on half of the node
    assert not after({}, {}, seconds=0.1, mlx5_5=0).problems


def test_ports_that_came_or_went_are_said() -> None:
    begin, end = moment(0.0), moment(HOUR)
    ports = dict(end.ports)
    ports["mlx5_9"] = ports.pop("mlx5_3")
    notes = {port.port: port.note for port in compare(begin, replace(end, ports=ports)).ports if port.note}
    assert set(notes) == {"mlx5_3", "mlx5_9"}
    assert "is gone now" in notes["mlx5_3"]


def test_saved_counters_are_read_back_exactly() -> None:
    counters = read_counters(SimulatedHost("hgx-h100", clock=lambda: 5000.0), "4711")
    assert from_text(to_text(counters).encode(), "4711") == counters
    assert len(counters.ports) == 10
    with pytest.raises(CountersError, match="of job 4711"):
        from_text(to_text(counters).encode(), "4712")


def test_a_node_without_rdma_has_no_ports(tmp_path: Path) -> None:
    counters = read_counters(LocalHost(str(tmp_path)), "1")
    assert not counters.ports
    assert from_text(to_text(counters).encode(), "1").boot_id == counters.boot_id


def test_the_counters_of_a_simulated_job() -> None:
    now = [5000.0]
    host = SimulatedHost("oci-h100+congestion,nic-flapping", clock=lambda: now[0])
    begin = read_counters(host, "4711")
    now[0] += 600.0
    difference = compare(begin, read_counters(host, "4711"))
    names = {row.name for port in difference.ports for row in port.grown if row.is_high}
    assert {"port_xmit_wait", "link_downed", "np_cnp_sent"} <= names
    paused = [port.pause_percent for port in difference.ports if not isinstance(port.pause_percent, Unknown)]
    assert max(paused) == pytest.approx(12, abs=0.5)


@given(st.binary(max_size=300))
def test_no_file_is_too_strange(content: bytes) -> None:
    with pytest.raises(CountersError):
        from_text(content, "4711")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["sent_bytes", "counters", "x"]), inner)
    ),
)


@settings(max_examples=50)
@given(VALUES, VALUES)
def test_no_value_is_too_strange(ports: object, at: object) -> None:
    text = json.dumps(
        {"schema": "gdrtop/job-counters-begin/1", "job": "4711", "at": at, "boot_id": "b", "ports": ports}
    )
    try:
        counters = from_text(text.encode(), "4711")
    except CountersError:
        return
    assert compare(counters, counters).problems == 0


def test_amounts_are_short() -> None:
    assert [decimal_bytes(count) for count in (0, 999, 1000, 34 * 10**6, 999_600_000, 12 * TB)] == [
        *("0 B", "999 B", "1.0 kB", "34 MB", "1.0 GB", "12 TB")
    ]
