"""Frozen dataclasses that share methods.

`dataclasses.dataclass(frozen=True)` compiles six functions for each class, in half a millisecond: for the
two hundred classes of `gdrtop check`, a third of its CPU time. Five of the six need no compiler, and
`__init__` gets one for the second instance: a command makes no instance of half of its classes, and a single
one of many others. Each method is made when it is first called, and the fields when they are first asked for.
Classes with keyword-only fields, or that are compared by identity, still use `dataclass(frozen=True)`: they
are few.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from reprlib import recursive_repr
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_options):
        """Say nothing: only type checkers ask."""
        return lambda function: function


Class = TypeVar("Class", bound=type)


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def frozen(cls: Class) -> Class:
    """Make a dataclass whose fields cannot change, as `dataclasses.dataclass(frozen=True)` does."""
    made: Any = cls
    for name in _METHODS.keys() - vars(cls).keys():
        setattr(made, name, _first_call(made, name, _METHODS[name]))
    made.__dataclass_fields__ = _Fields(made)
    return cls


_LOCK = RLock()


class _Fields:
    """The fields of a class until they are asked for: then `dataclass()` replaces this by what it finds."""

    def __init__(self, made: Any) -> None:
        self._made = made

    def __get__(self, _instance: object, _owner: type) -> Any:
        with _LOCK:  # `dataclass()` must not run twice
            if vars(self._made)["__dataclass_fields__"] is self:
                dataclasses.dataclass(init=False, eq=False, repr=False)(self._made)
        return self._made.__dataclass_fields__


def _first_call(made: Any, name: str, make: Callable[[Any], Any]) -> Any:
    """Return the method that replaces itself by the one that `make` makes for the fields."""

    def method(self: Any, *values: Any, **named: Any) -> Any:
        setattr(made, name, make(made))
        return getattr(made, name)(self, *values, **named)

    return method


def _first_initialization(made: Any) -> Any:
    """Return the `__init__` of the first instance, which takes its values without being compiled."""
    fields = dataclasses.fields(made)
    for field in fields:
        if not field.init or field.kw_only is True:
            raise TypeError(f"{made.__qualname__}.{field.name}: a frozen class has no such fields")

    def initialize(self: Any, *values: Any, **named: Any) -> None:
        made.__init__ = _first_call(made, "__init__", _initialization)
        given = {field.name: value for field, value in zip(fields, values, strict=False)} | named
        is_wrong = len(given) < len(values) + len(named)
        for field in fields:
            if field.name not in given and field.default is not dataclasses.MISSING:
                given[field.name] = field.default
            elif field.name not in given and field.default_factory is not dataclasses.MISSING:
                given[field.name] = field.default_factory()
        if is_wrong or given.keys() != {field.name for field in fields}:
            made.__init__(self, *values, **named)  # raises what Python raises for these arguments
            return
        for field in fields:
            object.__setattr__(self, field.name, given[field.name])
        if hasattr(made, "__post_init__"):
            self.__post_init__()

    return initialize


def _initialization(made: Any) -> Any:
    """Return the `__init__` that takes the fields of a class, and calls its `__post_init__`."""
    names: dict[str, Any] = {"_set": object.__setattr__, "_missing": object()}
    parameters, lines = ["self"], []
    for field in dataclasses.fields(made):
        name = value = field.name
        if field.default_factory is not dataclasses.MISSING:
            names[f"_new_{name}"] = field.default_factory
            parameters.append(f"{name}=_missing")
            value = f"_new_{name}() if {name} is _missing else {name}"
        elif field.default is not dataclasses.MISSING:
            names[f"_default_{name}"] = field.default
            parameters.append(f"{name}=_default_{name}")
        else:
            parameters.append(name)
        lines.append(f" _set(self, {name!r}, {value})")
    if hasattr(made, "__post_init__"):
        lines.append(" self.__post_init__()")
    head = f"def __init__({', '.join(parameters)}):"
    exec("\n".join((head, *(lines or [" pass"]))), names)
    initialize = names["__init__"]
    initialize.__qualname__ = f"{made.__qualname__}.__init__"  # for the error of a missing argument
    return initialize


def _refusal(action: str, method: str, made: Any) -> Any:
    """Return the method that sets or deletes what is no field, of instances of derived classes."""
    names = frozenset(field.name for field in dataclasses.fields(made))

    def refuse(self: Any, name: str, *value: object) -> None:
        if type(self) is made or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot {action} field {name!r}")
        getattr(super(made, self), method)(name, *value)

    return refuse


def _compared_values(made: Any) -> Callable[[Any], Any]:
    """Return the function that returns the values by which instances are equal."""
    names = tuple(field.name for field in dataclasses.fields(made) if field.compare)
    if len(names) > 1:
        return attrgetter(*names)
    return lambda self: tuple(getattr(self, name) for name in names)  # attrgetter would return no tuple


def _equality(made: Any) -> Any:
    """Return the method by which equal values make equal instances of one class."""
    values = _compared_values(made)

    def equal(self: Any, other: Any) -> Any:
        if other is self:
            return True
        if other.__class__ is not self.__class__:
            return NotImplemented
        return values(self) == values(other)

    return equal


def _hash(made: Any) -> Any:
    """Return the method that hashes the values that are compared."""
    values = _compared_values(made)
    return lambda self: hash(values(self))


def _representation(made: Any) -> Any:
    """Return the method that shows the fields, as "Origin(source=…, label=…)"."""
    names = tuple(field.name for field in dataclasses.fields(made) if field.repr)

    def shown(self: Any) -> str:
        parts = (f"{name}={getattr(self, name)!r}" for name in names)
        return f"{self.__class__.__qualname__}({', '.join(parts)})"

    return recursive_repr()(shown)


_METHODS: dict[str, Callable[[Any], Any]] = {
    "__init__": _first_initialization,
    "__eq__": _equality,
    "__hash__": _hash,
    "__repr__": _representation,
    "__setattr__": partial(_refusal, "assign to", "__setattr__"),
    "__delattr__": partial(_refusal, "delete", "__delattr__"),
}
