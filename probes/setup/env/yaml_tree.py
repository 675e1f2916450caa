"""Read hostile YAML with line numbers: bounded in size, depth, aliases and time.

PyYAML's parser yields events one by one; building the tree from them needs no recursion and never copies
what an alias names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from probes.base.text import printable

_DEEPEST = 64
_MAX_EVENTS = 40_000
_MAX_ALIASES = 256
_TEXT_TAG = "tag:yaml.org,2002:str"


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


@dataclass
class Sequence:
    """A list."""

    line: int
    items: list[Value] = field(default_factory=list)


@dataclass
class Mapping:
    """A map; of equal keys the last one counts."""

    line: int
    items: dict[str, Value] = field(default_factory=dict)
    pending: str | None = None  # the key whose value comes next


Value = Scalar | Sequence | Mapping


def read_yaml(text: str) -> list[Value]:
    """Return the documents of a stream.

    Raises:
        YamlError: no YAML, or more of it than gdrtop reads.
    """
    import yaml

    documents: list[Value] = []
    stack: list[Sequence | Mapping] = []
    anchors: dict[str, Value] = {}
    resolve: Callable[..., str] = yaml.resolver.Resolver().resolve
    aliases = 0
    try:
        for count, event in enumerate(yaml.parse(text, Loader=yaml.SafeLoader)):
            mark = event.start_mark
            line = mark.line + 1 if mark else 0
            if count >= _MAX_EVENTS:
                raise YamlError(line, f"more than {_MAX_EVENTS} elements")
            value: Value | None = None
            if isinstance(event, yaml.ScalarEvent):
                tag = event.tag or resolve(yaml.ScalarNode, event.value, event.implicit)
                value = Scalar(line, event.value, tag == _TEXT_TAG)
            elif isinstance(event, yaml.AliasEvent):
                aliases += 1
                if aliases > _MAX_ALIASES:
                    raise YamlError(line, f"more than {_MAX_ALIASES} aliases")
                value = anchors.get(event.anchor or "", Scalar(line, "", False))
            elif isinstance(event, yaml.SequenceStartEvent):
                value = Sequence(line)
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
        raise YamlError(place.line + 1 if place else 0, printable(error.problem or "", 120)) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise YamlError(0, printable(str(error).partition("\n")[0], 120)) from None
    return documents


def _attach(value: Value, stack: list[Sequence | Mapping], documents: list[Value]) -> None:
    """Put a value where it belongs: in the innermost collection, or as a document."""
    if not stack:
        documents.append(value)
    elif isinstance(parent := stack[-1], Sequence):
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
