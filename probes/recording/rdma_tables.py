"""RDMA resources as compact JSON: a node has thousands of objects, and a recording many moments.

    {"queue_pairs": [["mlx5_0", [[300, "RC", "RTS", 1, 99, 3, 4711], …]], …], "regions": […], …}

A row has the fields after the device, in their order and without defaults at its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, fields
from typing import Any

from probes.base.codec import Codec, CodecError
from probes.base.text import printable
from probes.host.rdma_resources import (
    MAX_OBJECTS,
    CompletionQueue,
    MemoryRegion,
    ProtectionDomain,
    QueuePair,
    RdmaContext,
    RdmaResources,
)

_TABLES: dict[str, Any] = {
    "queue_pairs": QueuePair,
    "regions": MemoryRegion,
    "domains": ProtectionDomain,
    "contexts": RdmaContext,
    "completion_queues": CompletionQueue,
}
_COLUMNS = {name: tuple(field.name for field in fields(kind))[1:] for name, kind in _TABLES.items()}
_REQUIRED = {
    name: sum(field.default is MISSING for field in fields(kind)) - 1 for name, kind in _TABLES.items()
}
_MAX_TEXT = 64
_CODEC = Codec(clean=lambda text: printable(text, _MAX_TEXT))


def encode_resources(resources: RdmaResources) -> dict[str, Any]:
    """Return the resources as JSON values."""
    encoded: dict[str, Any] = {
        name: _encode_table(getattr(resources, name), _COLUMNS[name], _REQUIRED[name]) for name in _TABLES
    }
    for field in fields(RdmaResources):
        if field.name not in _TABLES:
            encoded[field.name] = _CODEC.encode(getattr(resources, field.name))
    return encoded


def _encode_table(
    objects: Sequence[Any], columns: tuple[str, ...], required: int
) -> list[tuple[str, list[list[Any]]]]:
    table: list[tuple[str, list[list[Any]]]] = []
    for one in objects:
        row = [getattr(one, column) for column in columns]
        while len(row) > required and (row[-1] is None or row[-1] is False or row[-1] == ""):
            row.pop()
        if not table or table[-1][0] != one.device:
            table.append((one.device, []))
        table[-1][1].append(row)
    return table


def decode_resources(value: object) -> RdmaResources:
    """Return the resources in JSON values; CodecError if they are malformed."""
    if not isinstance(value, dict):
        raise CodecError("expected an object")
    rest = {name: item for name, item in value.items() if name not in _TABLES}
    tables = {name: _decode_table(name, value.get(name, [])) for name in _TABLES}
    plain: RdmaResources = _CODEC.decode(RdmaResources, rest)
    return RdmaResources(
        **tables,
        shares_namespaces=plain.shares_namespaces,
        left_out=plain.left_out,
        unread=plain.unread,
    )


def _decode_table(name: str, value: object) -> tuple[Any, ...]:
    columns = _COLUMNS[name]
    objects: list[Any] = []
    for part in _list(name, value, MAX_OBJECTS):
        device, rows = (*_list(name, part, 2), None, None)[:2]
        for row in _list(name, rows, MAX_OBJECTS - len(objects)):
            cells = _list(name, row, len(columns))
            encoded = {"device": device, **dict(zip(columns, cells, strict=False))}
            objects.append(_CODEC.decode(_TABLES[name], encoded))
    return tuple(objects)


def _list(name: str, value: object, most: int) -> list[Any]:
    if not isinstance(value, list) or len(value) > most:
        raise CodecError(f"expected a list of at most {most} items", name)
    return value
