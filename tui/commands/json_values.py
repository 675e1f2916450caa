"""Facts as JSON: an unknown value is null, and beside it "unknown" says why, by the field's name.

Every document begins with the same five facts (`document`); tui/schemas has a JSON Schema of each kind.
"""

from __future__ import annotations

import dataclasses
import json
from datetime import datetime
from enum import Enum
from typing import Any, TextIO

from probes.base.origin import Origin
from probes.base.unknown import Maybe, Unknown
from probes.facts.node import Node
from probes.facts.system.platform import PlatformFacts
from probes.snapshot.verdict import Verdict
from tui.files.version import version

SCHEMA_VERSION = 1


def write_json(content: object, out: TextIO) -> None:
    """Writes it as JSON, in ASCII."""
    json.dump(content, out, indent=2, ensure_ascii=True)
    out.write("\n")


def document(
    kind: str, name: Maybe[str], origin: Origin, at: float, content: dict[str, Any]
) -> dict[str, Any]:
    """What `--json` prints: which schema, gdrtop, node, time and source, and then the content.

    `kind`: the command, as in `gdrtop schema KIND`; `name`: the node's host name; `at`: seconds since 1970.
    """
    head: dict[str, object] = {
        "schema": f"gdrtop/{kind}/{SCHEMA_VERSION}",
        "gdrtop": version(),
        "node": name,
        "time": datetime.fromtimestamp(at).astimezone().isoformat(timespec="seconds"),
        "source": origin.source,
        "label": origin.label,
    }
    begun = object_of(head)
    reasons = {**begun.pop("unknown", {}), **content.get("unknown", {})}
    return {**begun, **content, **({"unknown": reasons} if reasons else {})}


def host_name(node: Node) -> Maybe[str]:
    """The node's host name; of a redacted recording its token."""
    return node.platform.hostname if isinstance(node.platform, PlatformFacts) else node.platform


def verdict_json(verdict: Verdict) -> dict[str, Any]:
    """The verdict; "critical" and "warnings" are null where the checks have not run."""
    return {one.name: plain_value(getattr(verdict, one.name)) for one in dataclasses.fields(verdict)}


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
