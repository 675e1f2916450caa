"""The order of Live's rows: the worst first, or by any column."""

from __future__ import annotations

from dataclasses import replace

import pytest

from probes.base.evidence import Severity
from probes.base.unknown import Unknown
from probes.live.model.sample import LiveSample
from probes.live.model.transfer import (
    Certainty,
    Serving,
    ServingRole,
    TransferPath,
    TransferPeer,
    TransferWord,
)
from probes.snapshot.condition import CONGESTED, SLOW_NIC, STAGED, Condition, Watched
from tests.support.live_samples import ABSENT, a_gpu, a_port, a_process, a_sample, gpu_bdf
from widgets.base.columns import HEAD
from widgets.base.lines import Line, Tone, plain
from widgets.live import gpus, nics, ranks
from widgets.live.columns import COLUMNS, changed_order, order_text, sort_clicked
from widgets.live.figures import COUNTER_GROUPS


def watched(sample: LiveSample, *conditions: Condition) -> LiveSample:
    return replace(sample, watched=Watched(60.0, 1, conditions))


def condition(check: str, *devices: str, **parts: object) -> Condition:
    return replace(Condition(check, "x", "text", 0.0, devices=devices), **parts)  # type: ignore[arg-type]


def first_cells(lines: list[Line]) -> list[str]:
    return [line[0].text for line in lines[1:]]


def test_the_nic_that_a_specific_problem_concerns_is_above_those_of_a_problem_of_all() -> None:
    everywhere = condition("mtu", *(f"mlx5_{number}" for number in range(8)))
    sample = watched(a_sample(), everywhere, condition(SLOW_NIC, "mlx5_5"))
    assert first_cells(list(nics.draw(sample, 120, sort="")))[:3] == ["mlx5_5", "mlx5_0", "mlx5_1"]
    critical = condition("down", "mlx5_6", "mlx5_7", severity=Severity.CRITICAL)
    sample = watched(sample, everywhere, condition(SLOW_NIC, "mlx5_5"), critical)
    assert first_cells(list(nics.draw(sample, 120, sort="")))[:4] == ["mlx5_6", "mlx5_7", "mlx5_5", "mlx5_0"]


def test_the_rank_with_a_problem_is_above_the_others_of_its_job_only() -> None:
    staged = condition(STAGED, ranks=("rank 3",), job="job", job_name="train.py (alice)")
    sample = watched(a_sample(ranks=4), staged)
    assert [process.rank for process in ranks.sorted_rows(sample, "")] == [3, 0, 1, 2]
    other = replace(staged, job="other", job_name="other.py")
    assert [process.rank for process in ranks.sorted_rows(watched(sample, other), "")] == [0, 1, 2, 3]


def test_the_rank_with_the_slow_nic_or_the_least_traffic_is_the_first_and_marked() -> None:
    slow = watched(a_sample(), condition(SLOW_NIC, "mlx5_5"))
    low = a_sample(ports=tuple(a_port(number, 140.0 if number == 5 else 370.0) for number in range(8)))
    for sample in (slow, low):
        rows = ranks.draw(sample, 120, sort="")[1:]
        numbers = [next(run for run in row if run.text.strip().isdigit()) for row in rows]
        assert [int(run.text) for run in numbers] == [5, 0, 1, 2, 3, 4, 6, 7]
        assert [run.tone is Tone.WARNING for run in numbers] == [True] + [False] * 7
    same = watched(a_sample(), condition("mtu", *(f"mlx5_{number}" for number in range(8))))
    assert not any(run.tone is Tone.WARNING for row in ranks.draw(same, 120, sort="") for run in row[:3])


def test_a_lost_gpu_is_the_first() -> None:
    lost = replace(a_gpu(2), live=ABSENT)
    sample = a_sample(gpus=(a_gpu(0), a_gpu(1), lost))
    assert [gpu.index for gpu in gpus.sorted_rows(sample, "")] == [2, 0, 1]


def test_a_column_sorts_the_largest_first_and_again_the_smallest_and_unknown_ones_are_last() -> None:
    ports = (a_port(0, 100.0), a_port(1, 370.0), a_port(2, ABSENT), a_port(3, 250.0))
    sample = a_sample(ports=ports)
    order = changed_order("", "sent")
    assert [port.device[-1] for port in nics.sorted_rows(sample, order)] == ["1", "3", "0", "2"]
    order = changed_order(order, "sent")
    assert [port.device[-1] for port in nics.sorted_rows(sample, order)] == ["0", "3", "1", "2"]
    assert changed_order(order, "sent") == "sent"
    assert (order_text(""), order_text(order)) == ("problems first", "by sent, reversed")


def test_the_share_of_the_median_sorts_the_slowest_rank_first() -> None:
    ports = tuple(a_port(number, 160.0 if number == 5 else 370.0) for number in range(8))
    rows = ranks.sorted_rows(a_sample(ports=ports), "share")
    assert [process.rank for process in rows][:3] == [5, 0, 1]


@pytest.mark.parametrize("table", COLUMNS)
def test_every_column_can_sort_and_has_a_letter_of_its_own(table: str) -> None:
    """Each column but the first reverses or keeps the rows without losing one; letters move no selection."""
    sample = a_sample(
        ports=tuple(a_port(number, 10.0 * number) for number in range(8)),
        gpus=tuple(a_gpu(number, number, power_watts=float(number)) for number in range(8)),
    )
    module = {"ranks": ranks, "nics": nics, "gpus": gpus}[table]
    rows = module.sorted_rows(sample, "")  # type: ignore[attr-defined]
    for column in COLUMNS[table]:
        for order in (column.key, f"-{column.key}"):
            found = module.sorted_rows(sample, order)  # type: ignore[attr-defined]
            assert len(found) == len(rows)
            assert all(row in rows for row in found)
    letters = [column.letter for column in COLUMNS[table]]
    assert len(set(letters)) == len(letters)
    assert not set(letters) & set("jkqo?")


@pytest.mark.parametrize("table", COLUMNS)
def test_no_column_is_forgotten(table: str) -> None:
    """A column that cannot sort would leave the rows as they are, also reversed."""
    processes = tuple(
        a_process(
            number,
            threads=("NCCL a",) * number,
            cpu_percent=float(number),
            registered_bytes=number,
            bus_gbps=float(number),
            state="RS"[number],
            serving=Serving("Mooncake", role=(ServingRole.PREFILL, ServingRole.DECODE)[number]),
            transfer=TransferPath(
                (TransferWord.TCP, TransferWord.NVLINK)[number],
                Certainty.LIKELY,
                sent_gbps=float(number),
                peers=(TransferPeer(f"10.0.0.{number}", False, 1.0, 0.0),),
            ),
        )
        for number in range(2)
    )
    figures = (
        *("pcie_tx_bytes_per_second", "pcie_rx_bytes_per_second", "nvlink_tx_bytes_per_second"),
        *("nvlink_rx_bytes_per_second", "memory_used_bytes", "bar1_used_bytes", "temperature_celsius"),
        *("power_watts", "sm_clock_mhz"),
    )
    names = [name for group in COUNTER_GROUPS for name in group.names]
    of_ports = ("pause_percent", "pcie_stall_percent", "module_celsius")
    busy, idle = (
        {"counters": dict.fromkeys(names, value), **dict.fromkeys(of_ports, value)} for value in (1.0, 0.0)
    )
    sample = a_sample(
        processes=processes,
        ports=(a_port(0, 1.0, state="DOWN", line_rate_gbps=100.0, **busy), a_port(1, 2.0, **idle)),
        gpus=tuple(a_gpu(n, n, **dict.fromkeys(figures, n), throttle_reasons=(str(n),)) for n in range(2)),
    )
    module = {"ranks": ranks, "nics": nics, "gpus": gpus}[table]
    same = {
        column.key
        for column in COLUMNS[table]
        if module.sorted_rows(sample, column.key) == module.sorted_rows(sample, f"-{column.key}")  # type: ignore[attr-defined]
    }
    alike = {"program", "path", "share", "last event"} if table == "ranks" else set()  # or unknown here
    assert same <= alike


def test_a_head_knows_its_column_and_a_row_is_no_head() -> None:
    heading = nics.draw(a_sample(), 120, sort="-received")[0]
    heads = {run.id for run in heading if run.id}
    assert f"{HEAD}↓Gb/s" in heads
    assert sort_clicked("nics", f"{HEAD}↓Gb/s") == "received"
    assert sort_clicked("nics", "mlx5_0") == ""
    assert sort_clicked("nics", f"{HEAD}no such column") == ""
    assert [run.text.strip() for run in heading if run.tone is Tone.TITLE] == ["↓Gb/s"]


def test_congestion_is_marked_on_its_nics_only_and_seen_at_80_columns() -> None:
    counters = {"port_xmit_wait": 200_000.0, "np_cnp_sent": 900.0}
    ports = tuple(a_port(number, counters=counters) for number in range(4))
    sample = watched(a_sample(ports=ports), condition(CONGESTED, "mlx5_2"))
    lines = list(nics.draw(sample, 76, sort=""))
    assert {"CNP/s", "errors/s", "wait/s"} <= set(plain(lines[0]).split())
    assert lines[1][0].text == "mlx5_2"
    marked = {line[0].text: {run.text for run in line if run.tone is Tone.WARNING} for line in lines[1:]}
    assert marked["mlx5_2"] == {"370", "900", "200.0k"}
    assert not marked["mlx5_0"]


def test_a_port_that_is_down_shows_its_state_at_80_columns() -> None:
    heading = plain(nics.draw(a_sample(ports=(a_port(0), a_port(1, state="DOWN"))), 76)[0]).split()
    assert "state" in heading
    assert "state" not in plain(nics.draw(a_sample(), 76)[0]).split()[:2]


def test_ranks_of_a_gpu_that_nvml_does_not_list_are_kept() -> None:
    sample = a_sample(ranks=2, gpus=())
    assert isinstance(sample.gpus, tuple)
    assert len(ranks.sorted_rows(sample, "GPU")) == 2
    nothing = a_sample(processes=Unknown(ABSENT.reason))
    assert ranks.sorted_rows(nothing, "pid") == []
    assert gpu_bdf(0).startswith("0000:10")
