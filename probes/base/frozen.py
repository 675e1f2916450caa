"""Frozen dataclasses that share methods.

`dataclasses.dataclass(frozen=True)` compiles six functions for each class, in half a millisecond: for the two
hundred classes of `gdrtop check`, a third of its CPU time. Three of the six need no compiler. Classes with
keyword-only fields, or that are compared by identity, still use `dataclass(frozen=True)`: they are few.
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
    made: Any = dataclasses.dataclass(frozen=True, eq=False, repr=False)(cls)
    fields = dataclasses.fields(made)
    equal, hash_of = _comparison(tuple(field.name for field in fields if field.compare))
    shown = _representation(tuple(field.name for field in fields if field.repr))
    for name, method in (("__eq__", equal), ("__hash__", hash_of), ("__repr__", shown)):
        if name not in own:
            setattr(made, name, method)
    return cast(Class, made)


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
