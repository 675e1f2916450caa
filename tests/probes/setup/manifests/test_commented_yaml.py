"""Comments change nothing of what a reader of YAML gets."""

from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.setup.manifests.manifest_text import Commented, comment_lines, dump

WORDS = st.text(st.characters(blacklist_categories=("Cs",)), max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | WORDS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.from_regex(r"\A[a-z.]{1,8}\Z"), inner, max_size=3)
    ),
    max_leaves=6,
)


@pytest.mark.slow
@given(st.dictionaries(st.from_regex(r"\A[a-z]{1,8}\Z"), VALUES, min_size=1, max_size=3), WORDS)
@settings(max_examples=20)
def test_the_values_survive(value: dict[str, Any], comment: str) -> None:
    text = dump({key: Commented(part, comment) for key, part in value.items()})
    assert yaml.safe_load(text) == value
    assert text.count("# ") >= len(value) * bool(comment.strip())


def test_a_comment_stands_before_its_key_at_the_same_depth() -> None:
    text = dump({"a": {"b": Commented([{"c": 1}, Commented({"c": 2}, "last")], "two")}})
    assert text.splitlines() == ["a:", "  # two", "  b:", "  - c: 1", "  # last", "  - c: 2"]


@given(st.text(max_size=300))
@settings(max_examples=20)
def test_every_line_of_a_comment_is_one(text: str) -> None:
    for line in comment_lines(text):
        assert line.startswith("#")
        assert line.isprintable()
        assert not line.endswith("\\")
