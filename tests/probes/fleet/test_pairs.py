"""Every two nodes meet once, no node is in two tests at the same time, suspects meet good nodes."""

from collections import Counter
from itertools import combinations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from probes.fleet.pairs import all_rounds, count_rounds, quick_rounds, repeated_rounds, seconds_of


def names(count: int) -> list[str]:
    return [f"gpu{number}" for number in range(count)]


@pytest.mark.slow
@settings(max_examples=20)
@example(2)
@example(3)
@example(255)
@example(256)
@given(st.integers(2, 256))
def test_every_two_nodes_meet_exactly_once_in_disjoint_pairs(count: int) -> None:
    rounds = list(all_rounds(names(count)))
    assert len(rounds) == count_rounds(count) == (count if count % 2 else count - 1)
    for pairs in rounds:
        assert len({node for pair in pairs for node in pair.key}) == 2 * len(pairs)
        assert len(pairs) == count // 2
    met = Counter(pair.key for pairs in rounds for pair in pairs)
    assert set(met.values()) == {1}
    assert len(met) == count * (count - 1) // 2
    servers = Counter(pair.server for pairs in rounds for pair in pairs)
    assert all(abs(2 * servers[name] - count + 1) <= count // 4 + 2 for name in names(count))


def test_all_nodes_of_a_small_fleet() -> None:
    met = {tuple(sorted(pair.key)) for pairs in all_rounds(names(5)) for pair in pairs}
    assert met == set(combinations(names(5), 2))
    assert list(all_rounds(["gpu0"])) == []
    assert count_rounds(1) == 0


@given(st.integers(2, 256))
def test_the_quick_round_has_each_node_once(count: int) -> None:
    rounds = quick_rounds(names(count))
    counts = Counter(node for pairs in rounds for pair in pairs for node in pair.key)
    assert set(counts) == set(names(count))
    assert sum(counts.values()) == count + count % 2
    assert len(rounds) == 1 + count % 2
    assert quick_rounds(["gpu0"]) == ()


@given(st.integers(1, 40), st.integers(1, 40))
def test_suspects_meet_two_different_good_nodes(bad: int, fine: int) -> None:
    suspects, good = [f"bad{n}" for n in range(bad)], [f"good{n}" for n in range(fine)]
    earlier = {frozenset((suspects[0], good[0]))}
    rounds = repeated_rounds(suspects, good, earlier)
    met = [pair.key for pairs in rounds for pair in pairs]
    assert len(set(met)) == len(met)
    assert not earlier & set(met)
    for pairs in rounds:
        assert len({node for pair in pairs for node in pair.key}) == 2 * len(pairs)
    for suspect in suspects:
        partners = [key for key in met if suspect in key]
        assert len(partners) == min(2, fine - (suspect == suspects[0]))
        assert all(key & set(good) for key in partners)


def test_the_expected_time_of_256_nodes() -> None:
    assert seconds_of(count_rounds(256), 1, 8, 5.0) == 255 * 8 * 5.0
