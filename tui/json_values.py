"""Facts as JSON: an unknown value is null, and beside it "unknown" says why, by the field's name."""

from __future__ import annotations

import dataclasses
import json
from enum import Enum
from typing import Any, TextIO

from probes.unknown import Unknown


def write_json(content: object, out: TextIO) -> None:
    """Writes it as JSON, in ASCII."""
    json.dump(content, out, indent=2, ensure_ascii=True)
    out.write("\n")


def plain_value(value: object) -> Any:
    """A fact as JSON has it: enums by their value, dataclasses as objects, tuples as lists."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Unknown):
        return None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return object_of({one.name: getattr(value, one.name) for one in dataclasses.fields(value)})
    if isinstance(value, tuple | list | frozenset):
        return [plain_value(one) for one in value]
    if isinstance(value, dict):
        return object_of({str(key): one for key, one in value.items()})
    return value


def object_of(fields: dict[str, object]) -> dict[str, Any]:
    """An object whose unknown fields are null and named, with their reason, under "unknown"."""
    told: dict[str, Any] = {name: plain_value(value) for name, value in fields.items()}
    reasons = {name: str(value) for name, value in fields.items() if isinstance(value, Unknown)}
    if reasons:
        told["unknown"] = reasons
    return told
