"""Dataclasses to JSON values and back, driven by their type hints.

    dataclass            an object, its keys in the order of the fields
    mapping              an object
    tuple, NamedTuple    a list
    enum                 its value
    Unknown              {"unknown": reason, "source": …, "detail": …}; with `unknown_beside` null, and an
                         object "unknown" beside it that maps the field to its reason

Decoded values come from files that anyone may have edited: types, ranges and lengths are checked. Every error
is a ValueError that starts with the path of the bad value: "gpus[0].index: expected an integer, got 'x'".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, field, fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from probes.base.frozen import frozen
from probes.base.text import printable, printable_lines
from probes.base.unknown import Reason, Unknown

MAX_ITEMS = 65536
_GREATEST_INTEGER = (1 << 64) - 1
_NAMES = {str: "text", int: "an integer", float: "a number", bool: "true or false"}
_EMPTY: dict[Any, object] = {str: "", bool: False}


class Bounds(NamedTuple):
    """Limits of a decoded field and of what it contains."""

    text: int = 4 << 20  # characters; longer text is truncated
    items: int = MAX_ITEMS  # of a list or mapping; a lenient codec keeps the first, if negative the last
    least: float = -_GREATEST_INTEGER
    most: float = _GREATEST_INTEGER


_NO_BOUNDS = Bounds()


class CodecError(ValueError):
    """A value that does not fit its type."""

    def __init__(self, problem: str, path: str = "") -> None:
        super().__init__(f"{path}: {problem}" if path else problem)
        self.problem = problem
        self.path = path

    def inside(self, part: str) -> CodecError:
        """Return the same error with `part` in front of its path."""
        dot = "." if self.path and not self.path.startswith("[") else ""
        return CodecError(self.problem, f"{part}{dot}{self.path}")


@frozen
class Codec:
    """How to write and read values.

    A lenient codec replaces a bad field by its default, or by "", False, () or None if the type allows it,
    and drops bad list items; a strict one raises CodecError. Both ignore fields that the dataclass does not
    have. A missing field that may be Unknown is "not recorded".
    """

    clean: Callable[[str], str] = printable_lines  # applied to decoded text
    is_lenient: bool = False
    bounds: Mapping[str, Bounds] = field(default_factory=dict)  # by field name, "" for all others
    sparse: tuple[type, ...] = ()  # dataclasses that are written without fields at their defaults
    unknown_beside: bool = False

    def encode(self, value: object) -> Any:
        """Return the value as JSON values; a float that is not finite becomes an Unknown."""
        if type(value) in (str, int, bool, NoneType):  # most values
            return value
        if isinstance(value, Enum):
            return value.value
        if isinstance(value, Unknown):
            texts = {"unknown": value.reason.value, "source": value.source, "detail": value.detail}
            return None if self.unknown_beside else {name: text for name, text in texts.items() if text}
        if is_dataclass(value) and not isinstance(value, type):
            return self._encode_items({name: getattr(value, name) for name in self._written(value)})
        if isinstance(value, Mapping):
            named = {str(key.value if isinstance(key, Enum) else key): item for key, item in value.items()}
            return self._encode_items(named)
        if isinstance(value, tuple | list | frozenset):
            return [self.encode(item) for item in value]
        if isinstance(value, float) and not math.isfinite(value):
            return self.encode(Unknown(Reason.MALFORMED, "", "not a number"))
        return value

    def _written(self, value: Any) -> list[str]:
        if type(value) not in self.sparse:
            return [member.name for member in fields(value)]
        return [member.name for member in fields(value) if getattr(value, member.name) != member.default]

    def _encode_items(self, items: dict[str, object]) -> dict[str, Any]:
        encoded: dict[str, Any] = {name: self.encode(value) for name, value in items.items()}
        if self.unknown_beside:
            reasons = {name: str(value) for name, value in items.items() if isinstance(value, Unknown)}
            if reasons:
                encoded["unknown"] = reasons
        return encoded

    def decode(self, kind: Any, value: object) -> Any:
        """Return the JSON value as an instance of `kind`, a type or type hint; CodecError if it is none."""
        return self._decode(kind, value, self._bounds_of(""))

    def _bounds_of(self, name: str) -> Bounds:
        return self.bounds.get(name) or self.bounds.get("") or _NO_BOUNDS

    def _decode(self, kind: Any, value: object, bounds: Bounds) -> Any:
        if kind in _NAMES:
            return self._decode_scalar(kind, value, bounds)
        origin = get_origin(kind)
        if origin in (Union, UnionType):
            return self._decode_union(get_args(kind), value, bounds)
        if origin is tuple:
            return self._decode_tuple(get_args(kind), value, bounds)
        if isinstance(origin, type) and issubclass(origin, Mapping):
            return self._decode_mapping(get_args(kind), value, bounds)
        if is_dataclass(kind):
            return self._decode_dataclass(kind, value)
        if issubclass(kind, tuple):
            return kind(*self._decode_tuple(tuple(_hints(kind).values()), value, bounds))
        return _member(kind, value)

    def _decode_scalar(self, kind: Any, value: object, bounds: Bounds) -> Any:
        if kind is str and isinstance(value, str):
            return self.clean(value if len(value) <= bounds.text else value[: bounds.text - 1] + "…")
        if kind is bool and isinstance(value, bool):
            return value
        if isinstance(value, int if kind is int else int | float) and not isinstance(value, bool):
            # Compare before converting: an integer may be too large for a float. NaN fails the comparison.
            if kind in (int, float) and bounds.least <= value <= bounds.most:
                return kind(value)
            raise CodecError(f"{value!r:.40} is out of range")
        raise _expected(_NAMES[kind], value)

    def _decode_union(self, kinds: tuple[Any, ...], value: object, bounds: Bounds) -> Any:
        if Unknown in kinds and isinstance(value, dict) and "unknown" in value:
            return decode_unknown(value)
        if value is None and NoneType in kinds:
            return None
        *others, last = (kind for kind in kinds if kind is not Unknown and kind is not NoneType)
        for kind in others:
            try:
                return self._decode(kind, value, bounds)
            except CodecError:
                continue
        return self._decode(last, value, bounds)

    def _decode_tuple(self, kinds: tuple[Any, ...], value: object, bounds: Bounds) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise _expected("a list", value)
        if kinds[1:] != (...,):
            if len(value) != len(kinds):
                raise CodecError(f"expected {len(kinds)} items, got {len(value)}")
            pairs = zip(kinds, value, strict=True)
            return tuple(self._decode_item(kind, item, bounds, i) for i, (kind, item) in enumerate(pairs))
        decoded = []
        for index, item in enumerate(self._cut(value, bounds)):
            try:
                decoded.append(self._decode_item(kinds[0], item, bounds, index))
            except CodecError:
                if not self.is_lenient:
                    raise
        return tuple(decoded)

    def _cut(self, value: list[Any], bounds: Bounds) -> list[Any]:
        if len(value) > abs(bounds.items) and not self.is_lenient:
            raise CodecError(f"more than {abs(bounds.items)} items")
        return value[bounds.items :] if bounds.items < 0 else value[: bounds.items]

    def _decode_item(self, kind: Any, value: object, bounds: Bounds, index: object) -> Any:
        try:
            return self._decode(kind, value, bounds)
        except CodecError as error:
            raise error.inside(f"[{index}]") from None

    def _decode_mapping(self, kinds: tuple[Any, ...], value: object, bounds: Bounds) -> dict[Any, Any]:
        if not isinstance(value, dict):
            raise _expected("an object", value)
        decoded = {}
        for key in self._cut(list(value), bounds):
            shown = repr(printable(key, 40))
            try:
                name = int(key) if kinds[0] is int and key.isdecimal() and len(key) < 20 else key
                decoded_key = self._decode_item(kinds[0], name, bounds, shown)
                decoded[decoded_key] = self._decode_item(kinds[1], value[key], bounds, shown)
            except CodecError:
                if not self.is_lenient:
                    raise
        return decoded

    def _decode_dataclass(self, kind: Any, value: object) -> Any:
        if not isinstance(value, dict):
            raise _expected("an object", value)
        decoded: dict[str, Any] = {}
        for name, hint, default in _fields(kind):
            try:
                if name in value:
                    decoded[name] = self._decode(hint, value[name], self._bounds_of(name))
                elif Unknown in get_args(hint):
                    decoded[name] = Unknown(Reason.NOT_RECORDED, name)
                elif default is not MISSING:
                    decoded[name] = default
                else:
                    raise CodecError("is missing")
            except CodecError as error:
                fallback = _empty(hint) if default is MISSING else default
                if not self.is_lenient or fallback is MISSING:
                    raise error.inside(name) from None
                decoded[name] = fallback
        return kind(**decoded)


def decode_unknown(value: dict[str, Any]) -> Unknown:
    """Return the Unknown of an object with the key "unknown"; CodecError if there is no such reason."""
    reason = _member(Reason, value["unknown"])
    texts = {name: value.get(name, "") for name in ("source", "detail")}
    for name, text in texts.items():
        if not isinstance(text, str):
            raise _expected("text", text).inside(name)
    return Unknown(reason, printable(texts["source"]), printable(texts["detail"]))


def _member(kind: Any, value: object) -> Any:
    for member in kind:
        if type(member.value) is type(value) and member.value == value:
            return member
    raise _expected(f"a known {kind.__name__.lower()}", value)


def _expected(what: str, value: object) -> CodecError:
    # Never show a list or object: it can be as long and deep as the file allows.
    names = {list: "a list", dict: "an object", NoneType: "null"}
    return CodecError(f"expected {what}, got {names.get(type(value)) or f'{value!r:.80}'}")


def _empty(hint: Any) -> object:
    """Return the empty value of a type; MISSING if it has none."""
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if NoneType in kinds:
        return None
    if Unknown in kinds:
        return Unknown(Reason.MALFORMED)
    if get_origin(hint) is tuple:
        return () if get_args(hint)[1:] == (...,) else MISSING
    return _EMPTY.get(hint, MISSING)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


@cache
def _fields(kind: Any) -> tuple[tuple[str, Any, Any], ...]:
    """Return name, type hint and default of each field; MISSING if it has no default."""
    return tuple((member.name, _hints(kind)[member.name], member.default) for member in fields(kind))
