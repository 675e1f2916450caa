"""The answer comes first, says what is slow and what to do, and fits any width."""

from dataclasses import replace

import pytest

from probes.base.unknown import Reason, Unknown
from probes.facts.rdma.cable_ends import CableEnd
from probes.fleet.attribution import PairEnd, PairMemory, PairResult, PairsReport, attribute
from probes.fleet.pairs import all_rounds, quick_rounds
from probes.fleet.rails import RailLeaves
from tests.support.pair_speeds import FAILED, Speed, measure, names
from widgets.base.lines import plain, width_of
from widgets.fleet.pairs import draw_pairs


def report(results: list[PairResult], nodes: int) -> PairsReport:
    return PairsReport(tuple(names(nodes)), tuple(results), attribute(results), {}, {}, ())


def text_of(found: PairsReport, width: int = 120) -> str:
    lines = draw_pairs(found, width)
    assert all(width_of(each) <= width for each in lines)
    return "\n".join(plain(each) for each in lines)


def matrix(speed: Speed, nodes: int = 6, rails: int = 2) -> PairsReport:
    return report(measure(all_rounds(names(nodes)), speed, rails), nodes)


def test_the_slow_nic_is_the_first_line() -> None:
    found = matrix(lambda a, b, rail, _: 180.0 if "gpu3" in (a, b) and rail == 1 else 390.0)
    lines = text_of(found).splitlines()
    assert lines[0] == "6 nodes, rail 1: gpu3 mlx5_1 reaches 180 of 390 Gb/s with every partner"
    assert lines[1] == "  Check cable, port and PCIe link with gdrtop check on gpu3."
    assert "Slow or failed: 10 tests" in lines
    assert any(each.split()[:3] == ["1", "390", "180"] for each in lines)


def test_only_gpu_memory_is_slow() -> None:
    def speed(a: str, b: str, rail: int, memory: PairMemory) -> float:
        return 150.0 if "gpu2" in (a, b) and memory is PairMemory.GPU else 390.0

    text = text_of(matrix(speed))
    assert text.startswith(
        "6 nodes: gpu2 reaches 150 of 390 Gb/s on most rails with every partner, only with GPU memory"
    )
    assert "Host memory is not slow there: check the path between GPU and NIC on gpu2." in text


def test_a_slow_rail_and_many_slow_pairs() -> None:
    rail = text_of(matrix(lambda a, b, rail, _: 195.0 if rail == 1 else 390.0, rails=4))
    assert rail.startswith("6 nodes: rail 1 reaches 195 of 390 Gb/s in 15 of 15 tests")
    assert "Check the leaf switch of the rail" in rail

    def crossed(a: str, b: str, rail: int, memory: PairMemory) -> float:
        return 390.0 if int(a[3:]) % 3 == int(b[3:]) % 3 else 260.0

    many = text_of(matrix(crossed, 12))
    assert "96 of 132 tests reach only 260 of 390 Gb/s, and no node, NIC or rail explains them" in many
    assert "may be over-subscribed" in many


def test_two_nodes() -> None:
    results = measure(quick_rounds(names(2)), lambda a, b, rail, _: 180.0 if rail == 1 else 390.0, 8)
    text = text_of(report(results, 2))
    assert text.startswith(
        "2 nodes, 2 tests slow or failed: with two nodes, gdrtop cannot tell which end is slow"
    )


def test_a_healthy_fleet() -> None:
    text = text_of(matrix(lambda *_: 390.0, rails=8))
    expected = "6 nodes, 8 rails: no pair is slow. The usual NIC reaches 390 Gb/s with host memory,"
    assert text.startswith(expected)
    assert "Slow" not in text


def test_failures_and_what_was_left_out_have_reasons() -> None:
    found = matrix(lambda a, b, *_: FAILED if "gpu0" in (a, b) else 390.0)
    found = replace(
        found, left_out={"gpu8": "in use: GPU0: used by train.py", "gpu9": "in use: GPU0: used by train.py"}
    )
    text = text_of(found)
    assert text.startswith("6 nodes: gpu0 fails on most rails with every partner (Couldn't connect)")
    assert "gpu8, gpu9: in use: GPU0: used by train.py" in text
    assert "nothing was measured" in text_of(report([], 2))


def test_a_swapped_cable_and_unknown_switches() -> None:
    leaves = {
        name: CableEnd(f"0c:42:a1:00:00:0{int(name == 'gpu4')}", f"leaf{int(name == 'gpu4')}")
        for name in names(6)
    }
    unknown = dict.fromkeys(names(6), Unknown(Reason.NEEDS_ROOT, "smpquery", "permission denied"))
    found = matrix(lambda *_: 390.0)
    text = text_of(replace(found, leaves=(RailLeaves(0, leaves), RailLeaves(1, unknown))))
    assert text.startswith("gpu4 rail 0 ends at switch leaf1, most other nodes at leaf0")
    assert "Check the cables of these nodes" in text
    assert "unknown for 6 ports (needs root: permission denied)" in text


@pytest.mark.parametrize("width", [40, 60, 80])
def test_narrow_terminals_and_hostile_names(width: int) -> None:
    hostile = PairEnd("g\x1b[31mpu" * 30, "mlx5_0\n" * 9)
    bad = PairResult(hostile, hostile, 0, PairMemory.HOST, replace(FAILED, detail="\x1b]0;x\x07" * 50))
    found = matrix(lambda *_: 390.0)
    text = text_of(replace(found, results=(*found.results, bad), left_out={"\x1b[2J": "\x1b[2J"}), width)
    assert "\x1b" not in text


def test_a_slow_nic_has_its_place_among_the_nodes_and_its_own_earlier_runs() -> None:
    slow = matrix(lambda a, b, rail, _: 180.0 if "gpu3" in (a, b) and rail == 1 else 390.0, 24)
    fast = matrix(lambda a, b, rail, _: 390.0, 24)
    text = " ".join(text_of(replace(slow, earlier=(fast.results, fast.results))).split())
    assert (
        "rail 1: gpu3 mlx5_1 host: 180 Gb/s, 3 results: 180 to 390 Gb/s; p4 of 24 nodes, slower than 96 %"
        in text
    )
    assert "gpu5 mlx5_1 host:" not in text
    assert "rail host median low p5 p95 high" in text
    few = text_of(matrix(lambda a, b, rail, _: 180.0 if "gpu3" in (a, b) and rail == 1 else 390.0))
    assert "180 Gb/s, 6 nodes: 180 to 390 Gb/s" in few
    assert " p5 " not in few
    assert "best partner" not in text_of(fast)
