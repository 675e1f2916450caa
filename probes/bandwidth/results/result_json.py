"""Saved results as JSON objects, and back. Reading is lenient: people copy these files and edit them.

Bandwidths are in Gb/s (10^9 bits a second), sizes in bytes, times in seconds or microseconds, as the names
say. Unknown fields are ignored. Files of schema 1 are read too: some of their fields had other names.
"""

from __future__ import annotations

from typing import Any

from probes.bandwidth.model.result import MOST_SAMPLES, Result
from probes.bandwidth.model.samples import Sample
from probes.base.codec import Bounds, Codec, CodecError
from probes.base.text import printable

SCHEMA = 2
READABLE = (1, SCHEMA)
_FORMER_NAMES = {
    "judgement": "judgment",
    "wants_nics": "over_network",
    "expected_of": "expected_machine",
    "trouble": "failure",
    "trouble_raw": "failure_line",
    "of": "statistic",
}
_DEPTH = 5  # result, samples, sample, latencies, latency
_YEAR_2100 = 4102444800.0
_MOST_BYTES = 1 << 62
_COUNT = Bounds(least=0, most=_MOST_BYTES)
_CODEC = Codec(
    clean=printable,
    is_lenient=True,
    sparse=(Sample,),
    bounds={
        "": Bounds(text=300, least=0, most=1e15),
        "taken_at": Bounds(least=0, most=_YEAR_2100),
        "size_bytes": _COUNT,
        "iterations": _COUNT,
        "wrong": _COUNT,
        "queue_pairs": Bounds(least=1, most=_MOST_BYTES),
        "why": Bounds(text=4096),
        "commands": Bounds(text=4096, items=8),
        "samples": Bounds(items=-MOST_SAMPLES),
        "facts": Bounds(items=100),
        "findings": Bounds(items=16),
        "latencies": Bounds(items=16),
    },
    renamed={"judgement": "judgment"},
)


def to_json(result: Result) -> dict[str, Any]:
    """Return a result as a JSON object."""
    fields: dict[str, Any] = {"schema": SCHEMA}
    for name, value in _CODEC.encode(result).items():
        if name == "figure":
            fields["gbps"] = result.gbps  # for those who read the file; derived from the figure
        fields[name] = value
    return fields


def from_json(value: object) -> Result | None:
    """Return the result in any JSON value; None if there is none or it is incomplete. Raises nothing."""
    if not isinstance(value, dict) or not is_readable(value.get("schema")):
        return None
    try:
        result: Result = _CODEC.decode(Result, value if value["schema"] == SCHEMA else _with_new_names(value))
    except CodecError:
        return None
    return result if result.tool and result.title else None


def is_readable(schema: object) -> bool:
    """Return whether this version reads files of a schema."""
    return schema in READABLE and not isinstance(schema, bool)


def _with_new_names(value: object, depth: int = _DEPTH) -> Any:
    """Return what a file of schema 1 has, by today's names."""
    if depth and isinstance(value, dict):
        return {
            _FORMER_NAMES.get(name, name): _with_new_names(item, depth - 1) for name, item in value.items()
        }
    if depth and isinstance(value, list):
        return [_with_new_names(item, depth - 1) for item in value]
    return value
