"""What SARIF 2.1.0 allows of the objects that gdrtop writes, strict about unknown keys.

By hand, from the OASIS schema sarif-schema-2.1.0.json (errata 01), whose terms do not allow a copy here.
"""

from typing import Any


def _object(required: list[str], **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "required": required,
        "additionalProperties": False,
        "properties": properties,
    }


def _list(item: object) -> dict[str, Any]:
    return {"type": "array", "items": item}


_TEXT = {"type": "string"}
_BAG = {"type": "object"}
_MESSAGE = _object(["text"], text={"type": "string", "minLength": 1})
_LEVEL = {"enum": ["none", "note", "warning", "error"]}
_INDEX = {"type": "integer", "minimum": -1}
_RULE = _object(["id"], id=_TEXT, shortDescription=_MESSAGE, help=_MESSAGE)
_NOTIFICATION = _object(
    ["message"], level=_LEVEL, message=_MESSAGE, associatedRule=_object([], id=_TEXT, index=_INDEX)
)
_INVOCATION = _object(
    ["executionSuccessful"],
    executionSuccessful={"type": "boolean"},
    exitCode={"type": "integer"},
    endTimeUtc={"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$"},
    machine=_TEXT,
    toolExecutionNotifications=_list(_NOTIFICATION),
)
_RESULT = _object(
    ["message"],
    ruleId=_TEXT,
    ruleIndex=_INDEX,
    level=_LEVEL,
    message=_MESSAGE,
    locations=_list(_object([], logicalLocations=_list(_object([], fullyQualifiedName=_TEXT, kind=_TEXT)))),
    partialFingerprints={"type": "object", "additionalProperties": _TEXT},
    properties=_BAG,
    suppressions=_list(_object(["kind"], kind={"enum": ["inSource", "external"]}, justification=_TEXT)),
)
SARIF = _object(
    ["version", "runs"],
    **{"$schema": {"type": "string", "format": "uri"}},
    version={"const": "2.1.0"},
    runs=_list(
        _object(
            ["tool"],
            tool=_object(["driver"], driver=_object(["name"], name=_TEXT, version=_TEXT, rules=_list(_RULE))),
            invocations=_list(_INVOCATION),
            results=_list(_RESULT),
            properties=_BAG,
        )
    ),
)
