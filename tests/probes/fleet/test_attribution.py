"""A slow part is named by what its tests have in common, and never by one pair alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Maybe
from probes.fleet.attribution import PairEnd, PairMemory, PairResult, PairsReport, Place, attribute, suspects
from probes.fleet.pairs import all_rounds, quick_rounds, repeated_rounds
from tests.support.pair_speeds import FAILED, Speed, measure, names


def ladder(count: int, speed: Speed, rails: int = 2) -> list[PairResult]:
    """The quick round, and suspects with other nodes."""
    quick = quick_rounds(names(count))
    results = measure(quick, speed, rails)
    bad = suspects(results)
    met = {pair.key for pairs in quick for pair in pairs}
    good = [name for name in names(count) if name not in bad]
    return results + measure(repeated_rounds(bad, good, met), speed, rails)


def slow_nic(server: str, client: str, rail: int, memory: PairMemory) -> float:
    return 180.0 if "gpu3" in (server, client) and rail == 1 else 390.0


def test_a_slow_nic_is_named_after_three_partners_and_its_first_partner_is_not() -> None:
    found = attribute(ladder(8, slow_nic))
    assert len(found.culprits) == 1
    culprit = found.culprits[0]
    assert (culprit.place, culprit.node, culprit.rail, culprit.nic) == (Place.NIC, "gpu3", 1, "mlx5_1")
    assert (culprit.gbps, culprit.reference_gbps, culprit.slow, culprit.partners) == (180.0, 390.0, 3, 3)
    assert culprit.memories == tuple(PairMemory)
    assert not culprit.only_gpu_memory
    assert found.unexplained == found.crowds == found.below_limit == ()


def test_the_first_partner_of_a_slow_nic_is_a_suspect_too() -> None:
    assert suspects(measure(quick_rounds(names(8)), slow_nic)) == ("gpu3", "gpu7")


def test_after_the_quick_round_alone_no_end_is_blamed() -> None:
    found = attribute(measure(quick_rounds(names(8)), slow_nic))
    assert found.culprits == ()
    assert {result.rail for result in found.unexplained} == {1}


def test_two_nodes_cannot_be_told_apart() -> None:
    found = attribute(measure(quick_rounds(["gpu3", "gpu4"]), slow_nic, 8))
    assert found.culprits == found.crowds == ()
    assert {(result.rail, result.gbps) for result in found.unexplained} == {(1, 180.0)}


def test_a_whole_node_that_is_slow_only_with_gpu_memory() -> None:
    def speed(server: str, client: str, rail: int, memory: PairMemory) -> float:
        return 150.0 if "gpu2" in (server, client) and memory is PairMemory.GPU else 385.0

    (culprit,) = attribute(ladder(6, speed, 8)).culprits
    assert (culprit.place, culprit.node, culprit.rail) == (Place.NODE, "gpu2", None)
    assert culprit.only_gpu_memory
    assert culprit.gbps == 150.0


def test_a_rail_that_is_slow_on_all_nodes_and_a_nic_that_is_slower_still() -> None:
    def speed(server: str, client: str, rail: int, memory: PairMemory) -> float:
        return (50.0 if "gpu1" in (server, client) else 195.0) if rail == 2 else 390.0

    rail, nic = attribute(measure(all_rounds(names(6)), speed, 4)).culprits
    assert (rail.place, rail.rail, rail.node) == (Place.RAIL, 2, "")
    assert (nic.place, nic.node, nic.reference_gbps) == (Place.NIC, "gpu1", 195.0)


def test_slow_pairs_across_leaves_are_no_nodes_fault() -> None:
    def speed(server: str, client: str, rail: int, memory: PairMemory) -> float:
        return 390.0 if int(server[3:]) % 3 == int(client[3:]) % 3 else 260.0

    found = attribute(measure(all_rounds(names(12)), speed, 2, [PairMemory.HOST]))
    assert found.culprits == found.unexplained == ()
    (crowd,) = found.crowds
    assert (crowd.gbps, crowd.top_gbps, crowd.tests) == (260.0, 390.0, 2 * 66)
    assert crowd.slow == 2 * 48


def test_a_node_whose_tests_fail_is_named_with_the_reason() -> None:
    def speed(server: str, client: str, rail: int, memory: PairMemory) -> Maybe[float]:
        return FAILED if "gpu0" in (server, client) else 390.0

    found = attribute(ladder(6, speed))
    (culprit,) = found.culprits
    assert (culprit.place, culprit.node, culprit.gbps) == (Place.NODE, "gpu0", None)
    assert culprit.failure == "Couldn't connect"


def test_all_nodes_with_the_same_fault_are_below_the_limit() -> None:
    found = attribute(measure(all_rounds(names(4)), lambda *_: 180.0, 2, [PairMemory.HOST]))
    assert [(low.gbps, low.limit_gbps) for low in found.below_limit] == [(180.0, 400.0)]
    assert not found.is_clean


def test_a_healthy_fleet_and_no_results_at_all() -> None:
    assert attribute(ladder(9, lambda *_: 390.0)).is_clean
    assert attribute([]).is_clean
    failed = attribute(measure(quick_rounds(names(2)), lambda *_: FAILED, 1))
    assert len(failed.unexplained) == 2
    assert failed.references == {}


@pytest.mark.slow
@given(st.data(), st.integers(2, 12))
def test_any_results_are_attributed_without_an_error(data: st.DataObject, count: int) -> None:
    figure = st.one_of(st.just(FAILED), st.floats(0.0, 400.0))
    results = measure(all_rounds(names(count)), lambda *_: data.draw(figure), 1, [PairMemory.HOST])
    found = attribute(results)
    assert all(culprit.slow >= 2 for culprit in found.culprits)
    report = PairsReport((), tuple(results), found, {}, {}, ())
    assert set(found.unexplained) <= set(report.bad) or found.culprits


def test_one_slow_nic_in_a_full_matrix_of_128_nodes() -> None:
    results = measure(all_rounds(names(128)), slow_nic, 2, [PairMemory.HOST])
    assert [culprit.node for culprit in attribute(results).culprits] == ["gpu3"]


def sparks(*rates: Maybe[float], nics: tuple[str, ...] = ("rocep1s0f0", "roceP2p1s0f0")) -> list[PairResult]:
    ends = [(PairEnd("spark1", nic), PairEnd("spark2", nic)) for nic in nics]
    return [
        PairResult(server, client, rail, PairMemory.HOST, gbps, 115.0)
        for rail, ((server, client), gbps) in enumerate(zip(ends, rates, strict=False))
    ]


@pytest.mark.parametrize(
    ("rates", "sign"),
    [
        ((92.57, 97.28), None),  # NVIDIA's guide
        ((55.0, 55.0), ""),
        ((26.5, 27.0), ""),
        ((13.23, 13.2), "not fully initialized"),
    ],
)
def test_a_pair_of_dgx_spark_is_judged_by_all_functions_at_once(
    rates: tuple[float, ...], sign: str | None
) -> None:
    found = attribute(sparks(*rates))
    assert found.is_clean is (sign is None)
    assert not found.below_limit
    if sign is not None:
        (pair,) = found.sparks
        assert sign in pair.sign
        assert pair.gbps == sum(rates)


def test_one_function_or_one_rail_at_a_time_is_no_pair_of_dgx_spark() -> None:
    assert not attribute(sparks(92.0)).sparks
    assert not attribute(sparks(50.0, FAILED)).sparks
    assert not attribute(sparks(50.0, 50.0), at_once=False).sparks
    assert not attribute(sparks(50.0, 50.0, nics=("mlx5_0", "mlx5_1"))).sparks
