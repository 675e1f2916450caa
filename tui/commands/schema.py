"""`gdrtop schema`: the JSON Schemas (draft 2020-12) of what `--json` prints, made from their types.

    dataclass, TypedDict    an object, in $defs; its docstring and the comments of its fields are descriptions
    Maybe[T]                T or null, and beside it an object "unknown" that says why, by the field's name
    enum, Literal           its values
    mapping, tuple          an object, an array

A class that derives from a dataclass says how the object differs: it adds fields, `without` names those that
are left out, `optional` those that may be missing. With `is_sparse`, those with a default are. The
metadata of `Annotated` is the format of a text, or how an object differs where it is.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from datetime import date
from enum import Enum
from functools import cache
from types import MappingProxyType, NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO, Union, get_args, get_origin, get_type_hints

from probes.base.unknown import Unknown
from tui.commands.arguments import UsageError

if TYPE_CHECKING:
    from tui.runtime.json_values import Changed

DOCUMENTS = {
    "check": "tui.commands.check.CheckDocument",
    "forecast": "tui.commands.forecast.after_reboot.ForecastDocument",
    "image": "tui.commands.forecast.after_reboot.ImageDocument",
    "topo": "tui.commands.topo.TopoDocument",
    "modules": "tui.commands.modules.ModulesDocument",
    "live": "tui.commands.live.LiveDocument",
    "explain": "tui.commands.explain.explain.ExplainDocument",
    "nccl-log": "tui.commands.nccl_log.NcclLogDocument",
    "ras": "tui.commands.ras.RasDocument",
    "hang": "tui.commands.hang.document.HangDocument",
    "watch": "tui.commands.watch.WatchDocument",
    "do": "tui.commands.do.DoDocument",
    "setup": "tui.commands.setup.SetupDocument",
    "upgrade": "tui.commands.forecast.upgrade.UpgradeDocument",
    "env": "tui.commands.env.EnvDocument",
    "bench": "tui.commands.bench_run.lists.BenchDocument",
    "prove": "tui.commands.prove.prove.ProveDocument",
    "report": "tui.commands.report.ReportDocument",
    "config": "tui.commands.config.config.ConfigDocument",
    "reliability": "tui.commands.reliability.reliability.ReliabilityDocument",
    "bench-bisect": "tui.commands.bench_run.bisect.BisectDocument",
    "fleet": "tui.commands.fleet.output.FleetDocument",
    "fleet-bench": "tui.commands.fleet.pairs_json.FleetBenchDocument",
    "fleet-live": "tui.commands.fleet.live.FleetLiveDocument",
    "job-counters": "tui.commands.slurm.job_counters.JobCountersDocument",
}
"""The class of each document: of commands with --json, and fleet: of diff and fleet check."""

KINDS = tuple(DOCUMENTS)

# Their versions were published with "unknown" in every dataclass, also in those without an unknown value.
_REASONS_EVERYWHERE = ("check", "forecast", "image", "upgrade", "do", "hang", "ras", "topo", "live")

_SCALARS = {str: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null"}
_REASONS = {
    "type": "object",
    "description": "why each value of these names is null",
    "additionalProperties": {"type": "string"},
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
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
    if any(Unknown in get_args(hint) for hint in (_hints(Head) | _hints(document)).values()):
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

    def properties_of(self, kind: Any, changed: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
        """Return the schema of each field, with its comment."""
        source = _Source(kind)
        return {
            name: self._type(hint) | ({"description": text} if (text := source.comments.get(name)) else {})
            for name, hint in {**_hints(kind), **changed}.items()
        }

    def _type(self, hint: Any) -> dict[str, Any]:
        origin, args = get_origin(hint), get_args(hint)
        if origin is Annotated and isinstance(args[1], str):
            return self._type(args[0]) | {"format": args[1]}
        if origin is Annotated:
            return {"$ref": self._reference(*args)}
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

    def _reference(self, kind: Any, changed: Changed | None = None) -> str:
        for name, document in DOCUMENTS.items():
            if document == f"{kind.__module__}.{kind.__name__}":
                self.schemas[name] = _schema(name)
                return str(self.schemas[name]["$id"])
        if (kind, changed) not in self._names:
            name = kind.__name__.removesuffix("Object")
            while name in self.schemas:
                name += "2"
            self._names[kind, changed] = name
            self.schemas[name] = {}
            self.schemas[name] |= self._object(kind, changed.types if changed else {})
            if changed:
                self.schemas[name]["required"] = [*(changed.required or self.schemas[name]["required"])]
        return f"#/$defs/{self._names[kind, changed]}"

    def _object(self, kind: Any, changed: Mapping[str, Any]) -> dict[str, Any]:
        properties, title = self.properties_of(kind, changed), _Source(kind).title
        missing = _missing(kind)
        is_unknown = any(Unknown in get_args(hint) for hint in _hints(kind).values())
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


@cache
def _raw_hints(kind: Any) -> dict[str, Any]:
    from typing_extensions import NotRequired  # the standard library has it since Python 3.11

    return get_type_hints(kind, localns={"NotRequired": NotRequired}, include_extras=True)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    """Return the type of each field that is written, without whether it may be missing."""
    left_out = getattr(kind, "without", ())
    defaults = _defaults(kind)
    hints = {}
    for name, hint in _raw_hints(kind).items():
        if name not in left_out:
            bare = get_args(hint)[0] if _is_optional(hint) else hint
            if name in defaults and defaults[name] is None:  # left out, so it is never null
                bare = Union[tuple(each for each in get_args(bare) if each is not NoneType)]  # noqa: UP007
            hints[name] = bare
    return hints


def _missing(kind: Any) -> set[str]:
    """Return the names of the fields that an object may not have."""
    typed = {name for name, hint in _raw_hints(kind).items() if _is_optional(hint)}
    typed |= {*getattr(kind, "optional", ()), *getattr(kind, "__optional_keys__", ())}
    return typed | _defaults(kind).keys()


def _is_optional(hint: Any) -> bool:
    return getattr(get_origin(hint), "_name", "") == "NotRequired"


def _defaults(kind: Any) -> dict[str, Any]:
    if not getattr(kind, "is_sparse", False):
        return {}
    return {field.name: field.default for field in fields(kind) if field.default is not MISSING}


class _Source:
    """The docstring of a class, and the comments of its fields and those of its bases."""

    def __init__(self, kind: Any) -> None:
        module = importlib.import_module(kind.__module__)
        lines, classes = _parsed(module)
        node = classes.get(kind.__name__, ast.ClassDef(kind.__name__, [], [], [], []))
        self.title = " ".join((ast.get_docstring(node) or "").partition("\n\n")[0].split())
        self.comments: dict[str, str] = {}
        for base in node.bases:
            found = getattr(module, base.id, None) if isinstance(base, ast.Name) else None
            if found is not None and found.__module__ != "typing":
                self.comments |= _Source(found).comments
        for field in node.body:
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                self.comments[field.target.id] = " ".join(_comment(field, lines)).replace("None", "null")


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
        yield rest.partition("#")[2].strip()
        return
    above = field.lineno - 1
    while lines[above - 1].lstrip().startswith("#"):
        above -= 1
    for line in lines[above : field.lineno - 1]:
        yield line.lstrip("# ")
