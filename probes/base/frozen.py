"""Frozen dataclasses that share methods.

`dataclasses.dataclass(frozen=True)` compiles six functions for each class, in half a millisecond: for the
two hundred classes of `gdrtop check`, a third of its CPU time. Five of the six need no compiler. `__init__`
is compiled when the first instance is made: a command makes none of most classes. Classes with keyword-only
fields, or that are compared by identity, still use `dataclass(frozen=True)`: they are few.
"""

from __future__ import annotations

import dataclasses
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, TypeVar, cast

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
    own = frozenset(vars(cls))
    made: Any = dataclasses.dataclass(init=False, eq=False, repr=False)(cls)
    fields = dataclasses.fields(made)
    equal, hash_of = _comparison(tuple(field.name for field in fields if field.compare))
    set_field, delete_field = _refusals(made, frozenset(field.name for field in fields))
    methods = {
        "__init__": _first_initialization(made),
        "__eq__": equal,
        "__hash__": hash_of,
        "__repr__": _representation(tuple(field.name for field in fields if field.repr)),
        "__setattr__": set_field,
        "__delattr__": delete_field,
    }
    for name, method in methods.items():
        if name not in own:
            setattr(made, name, method)
    return cast(Class, made)


def _first_initialization(made: Any) -> Any:
    """Return the `__init__` that replaces itself by a compiled one."""

    def initialize(self: Any, *values: Any, **named: Any) -> None:
        made.__init__ = _initialization(made)
        made.__init__(self, *values, **named)

    return initialize


def _initialization(made: Any) -> Any:
    """Return the `__init__` that takes the fields of a class, and calls its `__post_init__`."""
    names: dict[str, Any] = {"_set": object.__setattr__, "_missing": object()}
    parameters, lines = ["self"], []
    for field in dataclasses.fields(made):
        name = value = field.name
        if not field.init or field.kw_only is True:
            raise TypeError(f"{made.__qualname__}.{name}: a frozen class has no such fields")
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


def _refusals(made: Any, names: frozenset[str]) -> tuple[Any, Any]:
    """Return the methods that set and delete what is no field, of instances of derived classes."""

    def set_attribute(self: Any, name: str, value: object) -> None:
        if type(self) is made or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(made, self).__setattr__(name, value)

    def delete_attribute(self: Any, name: str) -> None:
        if type(self) is made or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(made, self).__delattr__(name)

    return set_attribute, delete_attribute


def _comparison(names: tuple[str, ...]) -> tuple[Any, Any]:
    """Return the methods by which equal values of these fields make equal instances of one class."""
    if len(names) > 1:
        values: Any = attrgetter(*names)
    else:  # attrgetter would return no tuple

        def values(self: Any) -> tuple[Any, ...]:
            return tuple(getattr(self, name) for name in names)

    def equal(self: Any, other: Any) -> Any:
        if other is self:
            return True
        if other.__class__ is not self.__class__:
            return NotImplemented
        return values(self) == values(other)

    return equal, lambda self: hash(values(self))


def _representation(names: tuple[str, ...]) -> Any:
    """Return the method that shows these fields, as "Origin(source=…, label=…)"."""

    def shown(self: Any) -> str:
        parts = (f"{name}={getattr(self, name)!r}" for name in names)
        return f"{self.__class__.__qualname__}({', '.join(parts)})"

    return recursive_repr()(shown)
