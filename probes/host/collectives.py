"""Bandwidth of collectives, as NCCL's inspector plugin writes it to files.

Sources: plugins/profiler/inspector of NCCL, inspector_json.cc (format v4.0: one JSON object after the other,
appended) and inspector_prom.cc (Prometheus text, rewritten in place). Bandwidths are in GB/s (10^9 bytes).
Both kinds of file change while they are read, and a reader may begin in the middle of a log: what is not
complete is left out.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown

TAIL_BYTES = 64 << 10  # of a log; a collective with its events takes up to about 25 KiB
METRICS_BYTES = 256 << 10
MAX_COLLECTIVES = 64  # of one file, the newest ones
METRICS_SUFFIX = ".prom"
_MAX_CUT = 64  # incomplete objects
_TEXT_LIMIT = 64
_LINE_BYTES = 4096
_GREATEST = (1 << 63) - 1
_BANDWIDTH = "nccl_bus_bandwidth_gbs"
_BEGIN = re.compile(r'\{\s*"header"\s*:')
_SAMPLE = re.compile(
    rf"{_BANDWIDTH}\s*\{{(?P<labels>.*)\}}\s*(?P<value>\S{{1,40}})(?:\s+-?[0-9]{{1,20}})?\s*"
)
_LABEL = re.compile(r'\b([a-zA-Z_]\w{0,63})\s*=\s*"((?:[^"\\]|\\.)*)"')
_SIZE = re.compile(r"([0-9]{1,12})(?:-[0-9]{1,12})?\s*([KMGT]?)i?B")
_UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


@frozen
class CollectiveSpeed:
    """A collective of one rank. None: the file does not have it; a metrics file has averages."""

    communicator: str  # the id in a log, the name in a metrics file
    collective: str  # "AllReduce"
    bus_gbps: float  # GB/s
    algorithm_gbps: float | None = None
    rank: int | None = None  # in the communicator
    ranks: int | None = None
    nodes: int | None = None
    sequence: int | None = None  # number of the collective in its communicator
    message_bytes: int | None = None
    message_size: str = ""  # of a metrics file: "4-5GB"
    microseconds: float | None = None
    at: float | None = None  # seconds since 1970, when it was written


def parse(path: str, content: bytes) -> Maybe[tuple[CollectiveSpeed, ...]]:
    """Return the collectives in a log's end or a metrics file; MALFORMED: it is being rewritten."""
    if not path.endswith(METRICS_SUFFIX):
        return parse_log(content)
    found = parse_metrics(content)
    return Unknown(Reason.MALFORMED, printable(path), "being rewritten") if found is None else found


def parse_log(content: bytes) -> tuple[CollectiveSpeed, ...]:
    """Return the complete collectives in a part of a log, the newest first."""
    text = content.decode("utf-8", "replace")
    decoder = json.JSONDecoder()
    found: list[CollectiveSpeed] = []
    cut = 0
    for match in reversed(list(_BEGIN.finditer(text))):
        try:
            value, _ = decoder.raw_decode(text, match.start())
        except (ValueError, RecursionError):
            cut += 1
            if cut == _MAX_CUT:
                break
            continue
        speed = _speed_of(value)
        if speed is not None:
            found.append(speed)
        if len(found) == MAX_COLLECTIVES:
            break
    return tuple(found)


def parse_metrics(content: bytes) -> tuple[CollectiveSpeed, ...] | None:
    """Return the averages in a metrics file, the longest messages first; None: it is being rewritten."""
    if not content.endswith(b"\n"):
        return None
    found: list[CollectiveSpeed] = []
    for line in content.split(b"\n"):
        if not line.startswith(_BANDWIDTH.encode()) or len(line) > _LINE_BYTES:
            continue
        match = _SAMPLE.fullmatch(line.decode("utf-8", "replace").rstrip())
        speed = None if match is None else _average_of(dict(_LABEL.findall(match["labels"])), match["value"])
        if speed is not None and len(found) < MAX_COLLECTIVES:
            found.append(speed)
    return tuple(sorted(found, key=lambda speed: -_least_bytes(speed.message_size)))


def newest(speeds: Iterable[CollectiveSpeed]) -> tuple[CollectiveSpeed, ...]:
    """Return the first one of each communicator; those of the most nodes and ranks come first."""
    first: dict[str, CollectiveSpeed] = {}
    for speed in speeds:
        first.setdefault(speed.communicator, speed)

    def order(speed: CollectiveSpeed) -> tuple[int, int, str]:
        return -(speed.nodes or 0), -(speed.ranks or 0), speed.communicator

    return tuple(sorted(first.values(), key=order))


def _speed_of(value: object) -> CollectiveSpeed | None:
    header, metadata, perf = (_object(value, name) for name in ("header", "metadata", "coll_perf"))
    bus = _number(perf.get("coll_busbw_gbs"))
    communicator, collective = _text(header.get("id")), _text(perf.get("coll"))
    if bus is None or not communicator or not collective:
        return None
    written = _whole(metadata.get("dump_timestamp_us"))
    return CollectiveSpeed(
        communicator=communicator,
        collective=collective,
        bus_gbps=bus,
        algorithm_gbps=_number(perf.get("coll_algobw_gbs")),
        rank=_whole(header.get("rank")),
        ranks=_whole(header.get("n_ranks")),
        nodes=_whole(header.get("nnodes")),
        sequence=_whole(perf.get("coll_sn")),
        message_bytes=_whole(perf.get("coll_msg_size_bytes")),
        microseconds=_number(perf.get("coll_exec_time_us")),
        at=None if written is None else written / 1e6,
    )


def _average_of(labels: Mapping[str, str], value: str) -> CollectiveSpeed | None:
    try:
        bus = _number(float(value))
    except ValueError:
        return None
    collective = _text(labels.get("collective"))
    if bus is None or not collective:
        return None
    return CollectiveSpeed(
        communicator=_text(labels.get("comm_name")) or "?",
        collective=collective,
        bus_gbps=bus,
        ranks=_digits(labels.get("nranks")),
        nodes=_digits(labels.get("n_nodes")),
        message_size=_text(labels.get("message_size")),
    )


def _least_bytes(size: str) -> int:
    """Return the lower end of "4-5GB" in bytes; 0 if it is no size."""
    match = _SIZE.fullmatch(size)
    return 0 if match is None else int(match[1]) * 1024 ** _UNITS[match[2]]


def _object(value: object, name: str) -> Mapping[str, Any]:
    part = value.get(name) if isinstance(value, dict) else None
    return part if isinstance(part, dict) else {}


def _text(value: object) -> str:
    return printable(value, _TEXT_LIMIT) if isinstance(value, str) else ""


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _GREATEST:
        return None
    return float(value) if math.isfinite(value) else None


def _whole(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value <= _GREATEST else None


def _digits(value: str | None) -> int | None:
    return int(value) if value is not None and re.fullmatch(r"[0-9]{1,9}", value) else None
