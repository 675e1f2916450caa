"""YAML of others as a tree with line numbers, bounded in size, depth, aliases and time.

PyYAML's parser yields events one by one; building the tree from them needs no recursion and never copies what
an alias names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from probes.base.text import printable

_DEEPEST = 64
_MAX_EVENTS = 40_000
_MAX_ALIASES = 256
_MAX_MERGED = 8
_FLAGS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_TEXT_TAG, _NULL_TAG = "tag:yaml.org,2002:str", "tag:yaml.org,2002:null"


class YamlError(Exception):
    """The text is no YAML that gdrtop reads; `line` is 0 where no line is to blame."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line = line
        self.reason = reason


@dataclass
class Scalar:
    """A value; `is_text`: YAML reads it as a string."""

    line: int
    text: str
    is_text: bool
    is_null: bool = False  # "null", "~" or nothing


@dataclass
class List:
    """A list."""

    line: int
    items: list[Value] = field(default_factory=list)


@dataclass
class Mapping:
    """A map; of equal keys the last one counts."""

    line: int
    items: dict[str, Value] = field(default_factory=dict)
    pending: str | None = None  # the key whose value comes next


Value = Scalar | List | Mapping


def read_yaml(text: str, first_line: int = 1) -> list[Value]:
    """Return the documents of a stream; `first_line`: the number of its first line.

    Raises:
        YamlError: no YAML, or more of it than gdrtop reads.
    """
    import yaml

    documents: list[Value] = []
    stack: list[List | Mapping] = []
    anchors: dict[str, Value] = {}
    resolve: Callable[..., str] = yaml.resolver.Resolver().resolve
    aliases = 0
    try:
        for count, event in enumerate(yaml.parse(text, Loader=yaml.SafeLoader)):
            mark = event.start_mark
            line = mark.line + first_line if mark else 0
            if count >= _MAX_EVENTS:
                raise YamlError(line, f"more than {_MAX_EVENTS} elements")
            value: Value | None = None
            if isinstance(event, yaml.ScalarEvent):
                tag = event.tag or resolve(yaml.ScalarNode, event.value, event.implicit)
                value = Scalar(line, event.value, tag == _TEXT_TAG, tag == _NULL_TAG)
            elif isinstance(event, yaml.AliasEvent):
                aliases += 1
                if aliases > _MAX_ALIASES:
                    raise YamlError(line, f"more than {_MAX_ALIASES} aliases")
                value = anchors.get(event.anchor or "", Scalar(line, "", False))
            elif isinstance(event, yaml.SequenceStartEvent):
                value = List(line)
            elif isinstance(event, yaml.MappingStartEvent):
                value = Mapping(line)
            elif isinstance(event, yaml.SequenceEndEvent | yaml.MappingEndEvent):
                stack.pop()
            if value is None:
                continue
            if isinstance(event, yaml.NodeEvent) and event.anchor and not isinstance(event, yaml.AliasEvent):
                anchors[event.anchor] = value
            _attach(value, stack, documents)
            if isinstance(event, yaml.CollectionStartEvent):
                assert not isinstance(value, Scalar)
                stack.append(value)
                if len(stack) > _DEEPEST:
                    raise YamlError(line, f"nested more than {_DEEPEST} levels deep")
    except yaml.MarkedYAMLError as error:
        place = error.problem_mark or error.context_mark
        raise YamlError(
            place.line + first_line if place else 0, printable(error.problem or "", 120)
        ) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise YamlError(0, printable(str(error).partition("\n")[0], 120)) from None
    return documents


def _attach(value: Value, stack: list[List | Mapping], documents: list[Value]) -> None:
    """Put a value where it belongs: in the innermost collection, or as a document."""
    if not stack:
        documents.append(value)
    elif isinstance(parent := stack[-1], List):
        parent.items.append(value)
    elif parent.pending is None:
        parent.pending = value.text if isinstance(value, Scalar) else ""
    else:
        parent.items[parent.pending] = value
        parent.pending = None


def mappings_of(documents: list[Value]) -> Iterator[Mapping]:
    """Yield every mapping once, in document order; aliases lead to mappings that were yielded already."""
    seen: set[int] = set()
    waiting: list[Value] = list(reversed(documents))
    while waiting:
        value = waiting.pop()
        if isinstance(value, Scalar) or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Mapping):
            yield value
            waiting.extend(reversed(value.items.values()))
        else:
            waiting.extend(reversed(value.items))


def value_at(mapping: Mapping, key: str) -> Value | None:
    """Return the value of a key, also of one that "<<" merges into the map."""
    waiting: list[Value] = [mapping]
    for _ in range(_MAX_MERGED):
        if not waiting:
            return None
        value = waiting.pop(0)
        if isinstance(value, Mapping):
            if key in value.items:
                return value.items[key]
            waiting.extend(value.items[merge] for merge in ("<<",) if merge in value.items)
        elif isinstance(value, List):
            waiting.extend(value.items[:_MAX_MERGED])
    return None


def map_at(mapping: Mapping, *keys: str) -> Mapping:
    """Return the map below these keys; an empty one if there is none."""
    for key in keys:
        value = value_at(mapping, key)
        mapping = value if isinstance(value, Mapping) else Mapping(mapping.line)
    return mapping


def items_at(mapping: Mapping, key: str) -> list[Value]:
    """Return the items of a list; a single value counts as a list of one."""
    value = value_at(mapping, key)
    if isinstance(value, List):
        return value.items
    return [] if value is None or (isinstance(value, Scalar) and value.is_null) else [value]


def maps_at(mapping: Mapping, key: str) -> list[Mapping]:
    """Return the maps in a list."""
    return [item for item in items_at(mapping, key) if isinstance(item, Mapping)]


def texts_at(mapping: Mapping, key: str) -> list[str]:
    """Return the texts in a list."""
    return [item.text for item in items_at(mapping, key) if isinstance(item, Scalar)]


def text_at(mapping: Mapping, *keys: str) -> str:
    """Return the text below these keys; "": there is none."""
    value = value_at(map_at(mapping, *keys[:-1]), keys[-1])
    return value.text if isinstance(value, Scalar) and not value.is_null else ""


def flag_at(mapping: Mapping, *keys: str) -> bool | None:
    """Return a switch; None: it is not set, or set by a template."""
    return _FLAGS.get(text_at(mapping, *keys).lower())


def count_of(value: Value | None) -> int | None:
    """Return the number of devices; None: not a number, as in a template."""
    text = value.text if isinstance(value, Scalar) else ""
    return int(text) if re.fullmatch(r"[0-9]{1,6}", text) else None
