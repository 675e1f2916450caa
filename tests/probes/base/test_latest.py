"""The cache of one value."""

from __future__ import annotations

import pytest

from probes.base.latest import Latest


def test_a_value_is_made_once_while_its_key_is_equal() -> None:
    latest: Latest[list[int]] = Latest()
    first = latest.get(lambda: [1], values=("node", [1, 2]))
    assert latest.get(lambda: [2], values=("node", [1, 2])) is first
    assert latest.get(lambda: [3], values=("node", [1, 3])) == [3]
    assert latest.get(lambda: [4], values=("node", [1, 2])) == [4], "only the last one is kept"


def test_an_equal_object_is_another_one_by_identity() -> None:
    latest: Latest[str] = Latest()
    node = [1]
    assert latest.get(lambda: "first", objects=(node,)) == "first"
    assert latest.get(lambda: "second", objects=(node,)) == "first"
    assert latest.get(lambda: "third", objects=([1],)) == "third"


def test_both_keys_have_to_agree() -> None:
    latest: Latest[str] = Latest()
    node, other = [1], [1]
    latest.get(lambda: "first", objects=(node,), values=80)
    assert latest.get(lambda: "second", objects=(node,), values=81) == "second"
    assert latest.get(lambda: "third", objects=(other,), values=81) == "third"
    assert latest.get(lambda: "fourth", objects=(other, node), values=81) == "fourth"


def test_an_equal_value_stays_the_object_before_where_asked() -> None:
    latest: Latest[list[int]] = Latest(keeps_equal=True)
    first = latest.get(lambda: [1], values=1)
    assert latest.get(lambda: [1], values=2) is first
    assert latest.get(lambda: [2], values=2) is first, "the new key is remembered"
    assert latest.get(lambda: [2], values=3) == [2]


def test_a_false_value_is_kept() -> None:
    latest: Latest[tuple[int, ...]] = Latest()
    assert latest.get(tuple) == ()
    assert latest.get(lambda: (1,)) == ()


def test_a_forgotten_value_is_made_again() -> None:
    latest: Latest[int] = Latest()
    assert latest.get(lambda: 1) == 1
    latest.forget()
    assert latest.value is None
    assert latest.get(lambda: 2) == 2


def test_a_value_that_cannot_be_made_is_made_in_the_next_call() -> None:
    latest: Latest[int] = Latest()
    assert latest.get(lambda: 1, values=1) == 1
    with pytest.raises(ZeroDivisionError):
        latest.get(lambda: 1 // 0, values=2)
    assert latest.get(lambda: 3, values=2) == 3
    assert latest.get(lambda: 4, values=1) == 4
