"""How a use of `gdrtop bench` ended: one status, and a sentence that says which test it is about."""

import pytest

from probes.bandwidth.planned import LeftOut
from probes.bandwidth.samples import BY_PEERMEM, HOST_MEMORY, About, Fact
from tests.probes.bandwidth.results import failed, result
from tui.bench_exit import ended

DOWN = LeftOut("GPU3 → mlx5_3 · DMA-BUF", "port 1 of mlx5_3 is down")
OTHER = LeftOut("GPU4 → mlx5_4 · DMA-BUF", "port 1 of mlx5_4 is down")


@pytest.mark.parametrize("bar", [None, 100.0])
def test_what_a_sweep_left_out_has_not_passed(bar: float | None) -> None:
    status, told = ended([result(190.0)], 1, bar, "", (DOWN,))
    assert status == 2
    assert told == "1 of 2 tests were left out: GPU3 → mlx5_3 · DMA-BUF: port 1 of mlx5_3 is down"
    status, told = ended([result(190.0)], 1, bar, "", (DOWN, OTHER))
    assert status == 2
    assert told.startswith("2 of 3 tests were left out: GPU3")
    assert told.endswith("; and 1 more")


def test_with_nothing_left_out_it_has() -> None:
    assert ended([result(190.0)], 1, 100.0, "")[0] == 0
    assert ended([result(190.0)], 1, 195.0, "")[0] == 1


def test_a_failure_is_told_first_and_an_interrupt_before_all() -> None:
    assert "failed" in ended([failed()], 1, None, "", (DOWN,))[1]
    assert ended([result()], 2, None, "interrupted", (DOWN,)) == (
        130,
        "interrupted: both ends were ended; 1 of 2 tests were measured to their end",
    )
    assert ended([], 2, None, "interrupted") == (130, "interrupted; 0 of 2 tests were measured to their end")


def test_other_memory_than_asked_for_has_not_passed() -> None:
    other = result(190.0, facts=(Fact(About.MEMORY, HOST_MEMORY, ""),))
    status, told = ended([other], 1, 100.0, "")
    assert status == 2
    assert told == (
        "1 of 1 tests had another memory than asked for: GPU0 → mlx5_0 · DMA-BUF: host memory was measured"
    )
    # In a comparison it is a finding where another path works, and makes up for no failure.
    assert ended([other, result(190.0, BY_PEERMEM)], 2, 100.0, "")[0] == 0
    assert ended([other, failed(BY_PEERMEM)], 2, 100.0, "")[0] == 2
