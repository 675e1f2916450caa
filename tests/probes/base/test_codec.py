"""Values survive the way to JSON and back; bad values are refused with their path."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.codec import Bounds, Codec, CodecError
from probes.base.unknown import Maybe, Reason, Unknown


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Point(NamedTuple):
    x: int
    y: Maybe[float]


@dataclass(frozen=True)
class Leaf:
    name: str
    color: Color
    is_new: bool = False


@dataclass(frozen=True)
class Tree:
    rate: Maybe[float]
    count: int
    leaves: tuple[Leaf, ...]
    pair: tuple[int, str]
    point: Point
    counts: Mapping[int, int]
    by_color: dict[Color, Maybe[str]]
    note: Optional[str]  # noqa: UP045 - both spellings
    best: Leaf | None
    later: Maybe[str] = "default"


STRICT = Codec()
LENIENT = Codec(is_lenient=True, bounds={"": Bounds(text=5, items=2), "leaves": Bounds(items=-1)})
TEXT = st.text(st.characters(codec="utf-8", categories=("L", "N", "P")), max_size=8)
REASONS = st.builds(Unknown, st.sampled_from(Reason), TEXT, TEXT)
NUMBERS = st.floats(-1e9, 1e9)
COUNTS = st.integers(-(2**63), 2**64 - 1)
LEAVES = st.builds(Leaf, TEXT, st.sampled_from(Color), st.booleans())
TREES = st.builds(
    Tree,
    REASONS | NUMBERS,
    COUNTS,
    st.lists(LEAVES, max_size=3).map(tuple),
    st.tuples(COUNTS, TEXT),
    st.builds(Point, COUNTS, NUMBERS | REASONS),
    st.dictionaries(st.integers(0, 9), COUNTS, max_size=3),
    st.dictionaries(st.sampled_from(Color), TEXT | REASONS),
    st.none() | TEXT,
    st.none() | LEAVES,
    TEXT | REASONS,
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["name", "color", "unknown", "red", "1"]), inner, max_size=3)
    ),
    max_leaves=8,
)
SPOILED = st.dictionaries(st.sampled_from(list(Tree.__dataclass_fields__)), JSON)
LEAF = Leaf("oak", Color.RED)
TREE = Tree(
    1.5, 2, (LEAF,), (1, "a"), Point(1, 2.0), {1: 2}, {Color.RED: Unknown(Reason.NEEDS_ROOT)}, None, LEAF
)


@pytest.mark.slow
@given(TREES)
def test_a_value_comes_back_as_it_was(tree: Tree) -> None:
    assert STRICT.decode(Tree, json.loads(json.dumps(STRICT.encode(tree)))) == tree


@pytest.mark.slow
@given(JSON | SPOILED.map(lambda spoiled: {**STRICT.encode(TREE), **spoiled}))
def test_no_json_raises_anything_but_value_error(value: object) -> None:
    for codec in (STRICT, LENIENT):
        refusal = ""
        try:
            tree = codec.decode(Tree, value)
        except ValueError as error:
            refusal = str(error)
        assert refusal.isprintable()
        assert refusal or STRICT.decode(Tree, json.loads(json.dumps(STRICT.encode(tree)))) == tree


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"count": "2"}, "count: expected an integer, got '2'"),
        ({"count": True}, "count: expected an integer, got True"),
        ({"count": 1 << 64}, "count: 18446744073709551616 is out of range"),
        ({"rate": float("nan")}, "rate: nan is out of range"),
        ({"rate": {"unknown": "too lazy"}}, "rate: expected a known reason, got 'too lazy'"),
        ({"rate": {"unknown": "needs root", "source": 1}}, "rate.source: expected text, got 1"),
        ({"leaves": [{"name": "oak", "color": "green"}]}, "leaves[0].color: expected a known color, got"),
        ({"leaves": [{"name": "oak"}]}, "leaves[0].color: is missing"),
        ({"leaves": {}}, "leaves: expected a list, got an object"),
        ({"pair": [1]}, "pair: expected 2 items, got 1"),
        ({"point": [1, "x"]}, "point[1]: expected a number, got 'x'"),
        ({"counts": {"1": None}}, "counts['1']: expected an integer, got null"),
        ({"by_color": {"\x1b[2J": "x"}}, "by_color['\N{REPLACEMENT CHARACTER}[2J']: expected a known color"),
    ],
)
def test_an_error_names_the_path_of_the_bad_value(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(CodecError) as refusal:
        STRICT.decode(Tree, {**STRICT.encode(TREE), **changed})
    assert str(refusal.value).startswith(message)


def test_fields_of_another_version_are_ignored_or_not_recorded() -> None:
    value = {**STRICT.encode(TREE), "of_a_later_version": 1}
    del value["later"], value["best"]["is_new"]
    tree = STRICT.decode(Tree, value)
    assert tree.later == Unknown(Reason.NOT_RECORDED, "later")
    assert tree.best == LEAF


def test_a_lenient_codec_keeps_what_fits_within_its_bounds() -> None:
    value = {
        **STRICT.encode(TREE),
        "leaves": [1, {"name": "elm", "color": "red"}, {"name": 1, "color": "blue", "is_new": 1}],
        "note": "long text",
        "best": {"name": "oak", "color": "green"},
        "counts": {"1": 1, "2": "x", "3": 3},
    }
    tree = LENIENT.decode(Tree, value)
    assert tree.leaves == (Leaf("", Color.BLUE),)
    assert tree.note == "long…"
    assert tree.best is None
    assert tree.counts == {1: 1}


def test_unknown_fields_may_be_named_beside_their_object() -> None:
    rate = Unknown(Reason.NEEDS_ROOT, "/x", "a file")
    encoded = Codec(unknown_beside=True).encode({"rate": rate, "count": 1})
    assert encoded == {"rate": None, "count": 1, "unknown": {"rate": "needs root: a file"}}


def test_a_sparse_dataclass_is_written_without_its_defaults() -> None:
    assert Codec(sparse=(Leaf,)).encode(LEAF) == {"name": "oak", "color": "red"}
