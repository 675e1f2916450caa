"""Frozen classes with shared methods, against those of the standard library."""

import dataclasses
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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


def test_instances_are_made_as_those_of_dataclasses() -> None:
    for make in (frozen, dataclasses.dataclass(frozen=True)):
        *_, hidden, _ = classes(make)
        first, second = hidden(value=1, secret="t"), hidden(1, secret="t")
        assert first == second
        assert list(vars(first)) == list(vars(second)) == ["value", "seen", "note", "secret"]
        assert first.note == second.note == []
        assert first.note is not second.note
        assert (first.seen, first.secret) == (0, "t")


@pytest.mark.parametrize(
    ("values", "named", "error"),
    [
        ((), {}, "missing 1 required positional argument: 'value'"),
        ((1,), {"values": 2}, "got an unexpected keyword argument 'values'"),
        ((1,), {"value": 2}, "got multiple values for argument 'value'"),
        ((1, 2), {}, "takes 2 positional arguments but 3 were given"),
    ],
)
def test_wrong_arguments_raise_what_those_of_dataclasses_raise(
    values: tuple[int, ...], named: dict[str, int], error: str
) -> None:
    for make in (frozen, dataclasses.dataclass(frozen=True)):
        _, single, *_ = classes(make)
        for _ in range(2):  # the first try, and one with the compiled function
            with pytest.raises(TypeError, match=rf"One\.__init__\(\) {error}"):
                single(*values, **named)


def test_a_derived_class_has_attributes_of_its_own_and_a_first_step() -> None:
    @frozen
    class Checked:
        """Refuses what is not positive."""

        value: int

        def __post_init__(self) -> None:
            if self.value < 1:
                raise ValueError(self.value)

    class Derived(Checked):
        """No dataclass: its other attributes can be set."""

        other: int

    with pytest.raises(ValueError, match="0"):
        Derived(0)
    derived = Derived(1)
    derived.other = 2
    del derived.other
    with pytest.raises(FrozenInstanceError):
        derived.value = 2


def test_fields_are_known_before_there_is_an_instance() -> None:
    for make in (frozen, dataclasses.dataclass(frozen=True)):
        *_, hidden, _ = classes(make)
        assert dataclasses.is_dataclass(hidden)
        assert [each.name for each in dataclasses.fields(hidden)] == ["value", "seen", "note", "secret"]
        assert hidden.__match_args__ == ("value", "seen", "note", "secret")
        assert hidden.secret == "s"


def test_an_instance_that_was_not_initialized_is_compared_and_shown() -> None:
    """An unpickled one, for example, in a process that has made no other."""
    for make in (frozen, dataclasses.dataclass(frozen=True)):
        _, single, *_ = classes(make)
        first, second = object.__new__(single), object.__new__(single)
        for instance in (first, second):
            vars(instance)["value"] = 1
        assert first == second
        assert hash(first) == hash(second)
        assert repr(first).endswith("One(value=1)")
        with pytest.raises(FrozenInstanceError):
            first.value = 2


def test_many_threads_can_be_the_first_to_use_a_class() -> None:
    with ThreadPoolExecutor(8) as threads:
        for _ in range(20):
            *_, hidden, _ = classes(frozen)
            assert len(set(threads.map(hidden, [1] * 16))) == 1
