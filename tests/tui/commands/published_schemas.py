"""The published shape of each JSON document: its keys with their types and values, one a line.

Scripts of users read these documents: within a version of a schema, a key keeps its type and no line goes.
`python -m tests.tui.commands.published_schemas` writes the files after a schema has changed.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tui.commands.schema import KINDS, schema_text

COMMAND = ".venv/bin/python -m tests.tui.commands.published_schemas"
FOLDER = Path(__file__).parent / "published"


def shape(schema: dict[str, Any]) -> list[str]:
    """The lines of a schema, sorted: `findings[].severity: value`, `findings[].severity = "critical"`."""
    return sorted(set(_lines("", schema, schema.get("$defs", {}), ())))


def _lines(
    path: str, node: Any, definitions: dict[str, Any], inside: tuple[str, ...], note: str = ""
) -> Iterator[str]:
    forms = list(_forms(node, definitions, inside))
    if path:
        yield f"{path}: {' or '.join(sorted({word for form, _ in forms for word in _types(form)}))}{note}"
    for form, names in forms:
        yield from (f"{path} = {json.dumps(value)}" for value in form.get("enum", ()))
        for key, inner in form.get("properties", {}).items():
            note = "" if key in form.get("required", ()) else ", optional"
            yield from _lines(f"{path}.{key}".lstrip("."), inner, definitions, names, note)
        inner_nodes = [("[]", form.get("items")), (".*", form.get("additionalProperties"))]
        inner_nodes += [(f"[{index}]", inner) for index, inner in enumerate(form.get("prefixItems", ()))]
        for suffix, inner in inner_nodes:
            if isinstance(inner, dict):
                yield from _lines(f"{path}{suffix}", inner, definitions, names)


def _forms(
    node: dict[str, Any], definitions: dict[str, Any], inside: tuple[str, ...]
) -> Iterator[tuple[dict[str, Any], tuple[str, ...]]]:
    """Every form that a value may have, without references, but for those to what it is part of."""
    name = node.get("$ref", "").removeprefix("#/$defs/")
    if name in definitions and name not in inside:
        yield from _forms(definitions[name], definitions, (*inside, name))
        return
    choices = node.get("anyOf", []) + node.get("oneOf", [])
    for choice in choices:
        yield from _forms(choice, definitions, inside)
    if not choices or "properties" in node:
        yield node, inside


def _types(form: dict[str, Any]) -> list[str]:
    if "$ref" in form:
        return [form["$ref"]]
    if "const" in form:
        return [json.dumps(form["const"])]
    types = form.get("type", "value")
    return [types] if isinstance(types, str) else types


def published_file(kind: str, schema: dict[str, Any]) -> Path:
    """The file of the schema's version: published/check-1.txt."""
    return FOLDER / f"{kind}-{schema['$id'].rpartition(':')[2]}.txt"


def broken_lines(kind: str) -> list[str]:
    """The published lines of a schema's version that it no longer has."""
    schema = json.loads(schema_text(kind))
    file = published_file(kind, schema)
    published = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return sorted(set(published) - set(shape(schema)))


def main() -> int:
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("--unreleased", action="store_true", help="no release had this version of the schema")
    unreleased = parser.parse_args().unreleased
    refused = 0
    for kind in KINDS:
        schema = json.loads(schema_text(kind))
        broken = broken_lines(kind)
        if broken and not unreleased:
            refused += 1
            lines = "\n  ".join(broken)
            print(f"{kind}: raise its version, or keep these lines:\n  {lines}", file=sys.stderr)
            continue
        published_file(kind, schema).write_text("\n".join(shape(schema)) + "\n", encoding="utf-8")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
