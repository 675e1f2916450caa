"""JSON documents of the commands, compared with their schemas."""

import json
from datetime import datetime
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from tui.commands.schema import schema_text
from tui.files.version import version
from tui.runtime.json_values import SCHEMA_VERSIONS


@cache
def validator(kind: str) -> Draft202012Validator:
    schema = json.loads(schema_text(kind))
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)


def valid(kind: str, text: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(text)
    errors = [f"{error.json_path}: {error.message[:300]}" for error in validator(kind).iter_errors(document)]
    assert not errors
    assert list(document)[:5] == ["schema", "gdrtop", "node", "time", "source"]
    assert document["schema"] == f"gdrtop/{kind}/{SCHEMA_VERSIONS.get(kind, 1)}"
    assert document["gdrtop"] == version()
    assert datetime.fromisoformat(document["time"]).tzinfo is not None
    return document
