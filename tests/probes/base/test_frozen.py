"""Frozen classes with shared methods, against those of the standard library."""

import dataclasses
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field
from typing import Any

import pytest

from probes.base.frozen import frozen


def classes(make: Callable[[type], type]) -> tuple[type[Any], ...]:
    @make
    class Empty:
        """No field."""

    @make
    class One:
        """One field."""

        value: object

    @make
    class Hidden(One):
        """Fields that are inherited, not compared and not shown."""

        seen: int = 0
        note: list[int] = field(default_factory=list, compare=False)
        secret: str = field(default="s", repr=False)

    @make
    class Own(One):
        """Its own equality and hash."""

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Own)

        def __hash__(self) -> int:
            return 7

    return Empty, One, Hidden, Own


def instances(make: Callable[[type], type]) -> list[Any]:
    empty, single, hidden, own = classes(make)
    values = [empty(), single(1), single(1.0), single("a"), single((1,)), single(single(1)), own(1), own(2)]
    return [*values, hidden(1), hidden(1, 2), hidden(1, 0, [3]), hidden(1, 0, [], "t")]


def test_equality_hash_and_representation_are_those_of_dataclasses() -> None:
    ours, theirs = instances(frozen), instances(dataclasses.dataclass(frozen=True))
    for mine, plain in zip(ours, theirs, strict=True):
        assert repr(mine) == repr(plain)
        assert hash(mine) == hash(plain)
        assert [mine == other for other in ours] == [plain == other for other in theirs]
        assert mine != plain
        assert mine.__eq__(3) is plain.__eq__(3)


def test_a_field_cannot_be_set_or_deleted_but_replaced() -> None:
    _, single, *_ = classes(frozen)
    with pytest.raises(FrozenInstanceError):
        single(1).value = 2
    with pytest.raises(FrozenInstanceError):
        del single(1).value
    assert dataclasses.replace(single(1), value=2) == single(2)


def test_an_instance_that_contains_itself_can_be_shown() -> None:
    _, single, *_ = classes(frozen)
    values: list[object] = []
    values.append(single(values))
    assert repr(values[0]).endswith("One(value=[...])")
