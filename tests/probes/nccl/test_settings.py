"""What NCCL makes of its variables' values, and what guides get wrong about it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.nccl.settings import parse_hca_list, parse_level, parse_number
from probes.topology.nccl_paths import ORDER, Nccl


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ("0", "LOC"),
        ("1", "PIX"),
        ("2", "PXB"),
        ("3", "PHB"),
        ("4", "SYS"),
        ("5", "SYS"),
        ("9", "SYS"),
        ("0x3", "PHB"),
    ],
)
def test_levels_by_number(value: str, word: str) -> None:
    """0 is LOC and 5 is SYS again: there is no ALL; and SYS is not 3."""
    level = parse_level(value)
    assert level is not None
    assert level.word == word


@pytest.mark.parametrize("word", ["LOC", *(level.value for level in Nccl)])
def test_levels_by_word(word: str) -> None:
    level = parse_level(word)
    assert level is not None
    assert level.word == word


@pytest.mark.parametrize("value", ["NODE", "node", "phb", " PHB", "PHB ", "NET", "ALL", "", "-1"])
def test_words_that_are_ignored(value: str) -> None:
    assert parse_level(value) is None


def test_a_higher_level_allows_more() -> None:
    """PIX is the most restrictive useful level, not the most aggressive."""
    assert ORDER[Nccl.PIX] < ORDER[Nccl.PXB] < ORDER[Nccl.PHB] < ORDER[Nccl.SYS]
    loc = parse_level("LOC")
    assert loc is not None
    assert loc.rank < min(ORDER.values())


@pytest.mark.parametrize(
    ("value", "number"),
    [("1", 1), (" 1", 1), ("0x10", 16), ("010", 8), ("1yes", 1), ("-1", -1), ("yes", None), ("", None)],
)
def test_numbers_as_strtoll_reads_them(value: str, number: int | None) -> None:
    assert parse_number(value) == number


@pytest.mark.parametrize(
    ("value", "takes"),
    [
        ("mlx5_1", {"mlx5_1", "mlx5_10"}),
        ("=mlx5_1", {"mlx5_1"}),
        ("mlx5", {"mlx5_0", "mlx5_1", "mlx5_10"}),
        ("^mlx5_1", {"mlx5_0"}),
        ("^=mlx5_1", {"mlx5_0", "mlx5_10"}),
        ("=^mlx5_1", set()),  # “^” counts in front only
        ("=mlx5_0, mlx5_1", {"mlx5_0"}),  # the blank is a part of the name
        ("mlx5_0:2", set()),
        ("mlx5_0:1", {"mlx5_0"}),
        ("", {"mlx5_0", "mlx5_1", "mlx5_10"}),
    ],
)
def test_lists_of_nics(value: str, takes: set[str]) -> None:
    hcas = parse_hca_list(value)
    assert {name for name in ("mlx5_0", "mlx5_1", "mlx5_10") if hcas.uses(name, 1)} == takes


@given(st.text(max_size=80))
def test_no_value_crashes(value: str) -> None:
    parse_level(value)
    parse_number(value)
    parse_hca_list(value).uses("mlx5_0", 1)
