"""`gdrtop schema`: the JSON Schemas (draft 2020-12) of what `--json` prints, made from their types.

    dataclass, TypedDict    an object, in $defs; its docstring and the comments of its fields are descriptions
    Maybe[T]                T or null, and beside it an object "unknown" that says why, by the field's name
    enum, Literal           its values
    mapping, tuple          an object, an array

The metadata of `Annotated` is the format of a text, or how an object differs from its class (`Changed`).
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from datetime import date
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO, Union, get_args, get_origin, get_type_hints

from probes.base.unknown import Unknown
from tui.command_line.arguments import UsageError

if TYPE_CHECKING:
    from tui.runtime.json_values import Changed

_DOCUMENTS = (
    *("check.Check", "forecast.Forecast", "forecast.Image", "topo.Topo"),
    *("modules.Modules", "live.live.Live", "explain.Explain", "nccl_log.NcclLog", "ras.Ras"),
    "read.Read",
    *("hang.Hang", "watch.watch.Watch", "do.Do", "setup.Setup", "repair.Repair", "env.Env"),
    *("bench.lists.Bench", "prove.Prove", "report.Report", "config.Config"),
    *("reliability.Reliability", "fleet.output.Fleet"),
    *("fleet.bench_run.FleetBench", "fleet.live.FleetLive", "slurm.epilog.JobCounters"),
    *("consumers.profile.Profile", "consumers.fleet_node.FleetNode"),
)


def _kind_of(name: str) -> str:
    """Return the kind of a document by the name of its class: NcclLogDocument is "nccl-log"."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name.rpartition(".")[2]).lower()


DOCUMENTS = {_kind_of(name): f"tui.commands.{name}Document" for name in _DOCUMENTS}
"""The class of each document: of commands with --json, and fleet: of diff and fleet check."""

KINDS = tuple(DOCUMENTS)

# Published with "unknown" in each dataclass that is written as it is, also without unknown values.
_REASONS_EVERYWHERE = ("check", "forecast", "image", "do", "hang", "ras", "topo", "live")

_SCALARS = {str: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null"}
# What descriptions call by another name than JSON; times are RFC 3339 there.
_IN_PYTHON = re.compile(r'\b(?:None|True|False)\b(?!")|seconds since 1970[,:]? ?')
_IN_JSON = {"None": "null", "True": "true", "False": "false"}
_REASONS = {
    "type": "object",
    "description": "why each value of these names is null",
    "additionalProperties": {"type": "string"},
}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "kind", metavar="COMMAND", nargs="?", help=f"{', '.join(KINDS)}; without it, list the schemas"
    )


def run(options: argparse.Namespace, out: TextIO) -> int:
    """Print one schema, or list them all."""
    if options.kind not in (None, *KINDS):
        raise UsageError(f"unknown schema {options.kind!r}; the schemas are {', '.join(KINDS)}")
    out.write("".join(f"{kind}\n" for kind in KINDS) if options.kind is None else schema_text(options.kind))
    return 0


def schema_text(kind: str) -> str:
    """Return a schema as JSON text; that of the report contains those of its parts."""
    return json.dumps(_schema(kind), indent=1, ensure_ascii=False) + "\n"


def _schema(kind: str) -> dict[str, Any]:
    from tui.runtime.json_values import SCHEMA_VERSIONS, Head

    number = SCHEMA_VERSIONS.get(kind, 1)
    name, _, class_name = DOCUMENTS[kind].rpartition(".")
    module = importlib.import_module(name)
    document = getattr(module, class_name)
    definitions = _Definitions(kind in _REASONS_EVERYWHERE)
    properties = definitions.properties_of(Head) | definitions.properties_of(document)
    properties["schema"] = {"const": f"gdrtop/{kind}/{number}"}
    missing = _missing(document)
    if any(Unknown in get_args(hint) for hint in (_types(Head) | _types(document)).values()):
        properties["unknown"] = {"$ref": "#/$defs/reasons"}
        missing.add("unknown")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:gdrtop:{kind}:{number}",
        "title": _Source(document).title.replace("`", "").rstrip("."),
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name not in missing],
        "additionalProperties": False,
        **_forms(getattr(module, "FORMS", {})),
        "$defs": definitions.schemas | {"reasons": _REASONS},
    }


def _forms(forms: dict[str, tuple[str, ...]]) -> dict[str, Any]:
    """Return that a document has the fields of one form, and those of no other."""
    names = {name for form in forms.values() for name in form}
    choices = []
    for title, form in forms.items():
        others = [{"required": [name]} for name in sorted(names - {*form})]
        without = {"not": {"anyOf": others}} if others else {}
        choices.append({"title": title, "required": [*form], **without})
    return {"oneOf": choices} if choices else {}


class _Definitions:
    """The schemas of the classes in one document."""

    def __init__(self, has_reasons_everywhere: bool) -> None:
        self._has_reasons_everywhere = has_reasons_everywhere
        self.schemas: dict[str, Any] = {}
        self._names: dict[Any, str] = {}

    def properties_of(self, kind: Any) -> dict[str, Any]:
        """Return the schema of each field, with its comment."""
        comments = _Source(_plain(kind)).comments
        return {
            name: self._type(hint) | ({"description": text} if (text := comments.get(name)) else {})
            for name, hint in _types(kind).items()
        }

    def _type(self, hint: Any) -> dict[str, Any]:
        origin, args = get_origin(hint), get_args(hint)
        if origin is Annotated and isinstance(args[1], str):
            return self._type(args[0]) | {"format": args[1]}
        if origin is Annotated:
            return {"$ref": self._reference(hint)}
        if origin is None and hint in _SCALARS:
            return {"type": _SCALARS[hint]}
        if hint is Any or hint is object:
            return {}
        if hint is date:
            return {"type": "string", "format": "date"}
        if origin is Literal:
            return {"enum": list(args)} if args[1:] else {"const": args[0]}
        if origin in (Union, UnionType):
            return self._union([kind if kind is not Unknown else NoneType for kind in args])
        if origin is tuple and args[1:] != (...,):
            return {"type": "array", "prefixItems": [self._type(kind) for kind in args], "items": False}
        if origin in (tuple, list, frozenset, Sequence):
            return {"type": "array", "items": self._type(args[0])}
        if origin in (dict, Mapping):
            return self._mapping(*args)
        if issubclass(hint, Enum):
            return {"enum": [member.value for member in hint]}
        return {"$ref": self._reference(hint)}

    def _union(self, kinds: list[Any]) -> dict[str, Any]:
        if float in kinds:
            kinds = [kind for kind in kinds if kind is not int]
        forms = [self._type(kind) for at, kind in enumerate(kinds) if kind not in kinds[:at]]
        if len(forms) == 1:
            return forms[0]
        if any(form.keys() - {"type", "format"} for form in forms):
            return {"anyOf": forms}
        merged = {key: value for form in forms for key, value in form.items()}
        return merged | {"type": [form["type"] for form in forms]}

    def _mapping(self, key: Any, value: Any) -> dict[str, Any]:
        if value is object:
            return {"type": "object"}
        form = self._type(value)
        found: dict[str, Any] = {"type": "object", "additionalProperties": form}
        if isinstance(key, type) and issubclass(key, Enum):
            names = {member.value: form for member in key}
            found = {"type": "object", "properties": names, "additionalProperties": False}
        if Unknown in get_args(value) or self._has_reasons_everywhere:
            found["properties"] = {**found.get("properties", {}), "unknown": {"$ref": "#/$defs/reasons"}}
        return found

    def _reference(self, kind: Any) -> str:
        plain = _plain(kind)
        for name, document in DOCUMENTS.items():
            if document == f"{plain.__module__}.{plain.__name__}":
                self.schemas[name] = _schema(name)
                return str(self.schemas[name]["$id"])
        if kind not in self._names:
            names = (plain.__name__.lstrip("_"), *(changed.schema_name for changed in _changes(kind)))
            name = [name for name in names if name][-1].removesuffix("Object")
            if name in self.schemas:
                raise ValueError(f"{name} has several forms: give one a Changed(schema_name=…)")
            self._names[kind] = name
            self.schemas[name] = {}
            self.schemas[name] |= self._object(kind)
        return f"#/$defs/{self._names[kind]}"

    def _object(self, kind: Any) -> dict[str, Any]:
        properties, title, missing = self.properties_of(kind), _Source(_plain(kind)).title, _missing(kind)
        is_unknown = any(Unknown in get_args(hint) for hint in _types(kind).values())
        is_unknown = is_unknown or any(changed.has_reasons for changed in _changes(kind))
        if is_unknown or (self._has_reasons_everywhere and is_dataclass(kind)):
            properties["unknown"] = {"$ref": "#/$defs/reasons"}
            missing.add("unknown")
        return {
            "type": "object",
            **({"description": title} if title else {}),
            "properties": properties,
            "required": [name for name in properties if name not in missing],
            "additionalProperties": False,
        }


def _plain(kind: Any) -> Any:
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _changes(kind: Any) -> tuple[Changed, ...]:
    return get_args(kind)[1:] if get_origin(kind) is Annotated else ()


@cache
def _hints(kind: Any) -> dict[str, Any]:
    """Return the type hint of each field that is written."""
    from typing_extensions import NotRequired  # the standard library has it since Python 3.11

    from tui.runtime.json_values import field_names

    names = field_names(kind)
    hints: dict[str, Any] = {}
    for base in reversed(_plain(kind).__mro__):
        # Others may have types that only type checkers import.
        written = {name: hint for name, hint in inspect.get_annotations(base).items() if name in names}
        holder = type("Fields", (), {"__annotations__": written, "__module__": base.__module__})
        hints |= get_type_hints(holder, localns={"NotRequired": NotRequired}, include_extras=True)
    for changed in _changes(kind):
        hints |= changed.types
    return {name: hints[name] for name in names}


def _types(kind: Any) -> dict[str, Any]:
    """Return the same without whether a field may be missing."""
    return {name: get_args(hint)[0] if _is_optional(hint) else hint for name, hint in _hints(kind).items()}


def _missing(kind: Any) -> set[str]:
    """Return the names of the fields that an object may not have."""
    missing = {name for name, hint in _hints(kind).items() if _is_optional(hint)}
    missing |= {*getattr(_plain(kind), "__optional_keys__", ())}
    for changed in _changes(kind):
        missing |= {*changed.optional, *(_hints(kind).keys() - {*(changed.required or _hints(kind))})}
    return missing


def _is_optional(hint: Any) -> bool:
    return getattr(get_origin(hint), "_name", "") == "NotRequired"


class _Source:
    """The docstring of a class, and the comments of its fields and those of its bases."""

    def __init__(self, kind: Any) -> None:
        module = importlib.import_module(kind.__module__)
        lines, classes = _parsed(module)
        node = classes.get(kind.__name__, ast.ClassDef(kind.__name__, [], [], [], []))
        self.title = _in_json((ast.get_docstring(node) or "").partition("\n\n")[0])
        self.comments: dict[str, str] = {}
        for base in node.bases:
            found = getattr(module, base.id, None) if isinstance(base, ast.Name) else None
            if found is not None and found.__module__ != "typing":
                self.comments |= _Source(found).comments
                self.title = self.title or _Source(found).title
        for field in node.body:
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                self.comments[field.target.id] = _in_json(" ".join(_comment(field, lines)))


def _in_json(text: str) -> str:
    return _IN_PYTHON.sub(lambda found: _IN_JSON.get(found[0], ""), " ".join(text.split()))


@cache
def _parsed(module: Any) -> tuple[list[str], dict[str, ast.ClassDef]]:
    text = inspect.getsource(module)
    return text.splitlines(), {
        node.name: node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)
    }


def _comment(field: ast.AnnAssign, lines: list[str]) -> Iterator[str]:
    """Yield the comment behind a field, or the lines of that above it."""
    rest = lines[(field.end_lineno or 0) - 1].encode()[field.end_col_offset or 0 :].decode()
    if "#" in rest:
        yield rest.partition("#")[2].partition("noqa")[0].strip()
        return
    above = field.lineno - 1
    while lines[above - 1].lstrip().startswith("#"):
        above -= 1
    yield from (line.lstrip("# ") for line in lines[above : field.lineno - 1])
