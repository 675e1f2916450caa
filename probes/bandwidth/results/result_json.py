"""Results as JSON objects, and back: read tolerantly, for the files are copied between nodes and by hand.

Bandwidths are in Gb/s (10^9 bits a second), sizes in bytes, times in seconds or microseconds, as the names
say. What a later gdrtop adds is passed over; another schema is not read.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import Any, TypeVar

from probes.bandwidth.model.planned_test import Pair
from probes.bandwidth.model.rating import Judgement, Rating
from probes.bandwidth.model.result import MOST_SAMPLES, Ending, Result
from probes.bandwidth.tools.samples import About, Fact, Latency, Sample
from probes.base.text import printable

SCHEMA = 1
_TEXT_LIMIT = 300
_COMMAND_LIMIT = 4096
_MOST_COMMANDS = 8
_MOST_FACTS = 100
_MOST_LATENCIES = 16
_LATEST = 4102444800.0  # 2100-01-01: later ones are no times
_GREATEST = 1e15
_MOST_BYTES = 1 << 62

E = TypeVar("E", bound=Enum)


# Writing


def to_json(result: Result) -> dict[str, Any]:
    """A result as a JSON object."""
    pair, judgement = result.pair, result.judgement
    return {
        "schema": SCHEMA,
        "taken_at": result.taken_at,
        "seconds": result.seconds,
        "node": result.node,
        "machine": result.machine,
        "origin": result.origin,
        "title": result.title,
        "tool": result.tool,
        "setup": result.setup,
        "pair": {
            "gpu": pair.gpu,
            "gpu_label": pair.gpu_label,
            "nic": pair.nic,
            "port": pair.port,
            "far_nic": pair.far_nic,
            "peer": pair.peer,
        },
        "memory": result.memory,
        "size_bytes": result.size_bytes,
        "queue_pairs": result.queue_pairs,
        "is_bidirectional": result.is_bidirectional,
        "wants_nics": result.wants_nics,
        "commands": list(result.commands),
        "ending": result.ending.value,
        "gbps": result.gbps,
        "figure": None if result.figure is None else _sample_json(result.figure),
        "judgement": {
            "verdict": judgement.verdict.value,
            "words": judgement.words,
            "why": judgement.why,
            "share": judgement.share,
        },
        "limit_gbps": result.limit_gbps,
        "limit_by": result.limit_by,
        "trouble": result.trouble,
        "trouble_raw": result.trouble_raw,
        "facts": [{"about": one.about.value, "value": one.value, "raw": one.raw} for one in result.facts],
        "samples": [_sample_json(one) for one in result.samples],
    }


def _sample_json(sample: Sample) -> dict[str, Any]:
    """What was not measured is left out."""
    told: dict[str, Any] = {"what": sample.what, "raw": sample.raw}
    for name in (*_FIGURES, *_COUNTS):
        value = getattr(sample, name)
        if value is not None:
            told[name] = value
    if sample.variant:
        told["variant"] = sample.variant
    if sample.latencies:
        told["latencies"] = [{"of": one.of, "microseconds": one.microseconds} for one in sample.latencies]
    if sample.is_bidirectional:
        told["is_bidirectional"] = True
    return told


_FIGURES = ("gbps", "peak_gbps", "bus_gbps", "messages_per_second", "time_us")
_COUNTS = ("size_bytes", "iterations", "wrong")


# Reading


def from_json(value: object) -> Result | None:
    """A result of any JSON value; None for what is none, or not whole. Raises nothing."""
    if not isinstance(value, dict) or value.get("schema") != SCHEMA or isinstance(value["schema"], bool):
        return None
    ending = _enum(Ending, value.get("ending"))
    taken_at, seconds = _number(value.get("taken_at"), _LATEST), _number(value.get("seconds"))
    tool, title = _text(value.get("tool")), _text(value.get("title"))
    if ending is None or taken_at is None or seconds is None or not tool or not title:
        return None
    return Result(
        taken_at=taken_at,
        seconds=seconds,
        node=_text(value.get("node")),
        machine=_text(value.get("machine")),
        origin=_text(value.get("origin")),
        title=title,
        tool=tool,
        setup=_text(value.get("setup")),
        pair=_pair(value.get("pair")),
        memory=_text(value.get("memory")),
        size_bytes=_count(value.get("size_bytes")),
        queue_pairs=_count(value.get("queue_pairs")) or 1,
        is_bidirectional=value.get("is_bidirectional") is True,
        commands=tuple(_text(one, _COMMAND_LIMIT) for one in _list(value.get("commands"))[:_MOST_COMMANDS]),
        ending=ending,
        samples=_samples(value.get("samples")),
        facts=_facts(value.get("facts")),
        figure=_sample(value.get("figure")),
        judgement=_judgement(value.get("judgement")),
        limit_gbps=_number(value.get("limit_gbps")),
        limit_by=_text(value.get("limit_by")),
        trouble=_text(value.get("trouble")),
        trouble_raw=_text(value.get("trouble_raw")),
        wants_nics=value.get("wants_nics") is True,
    )


def _text(value: object, limit: int = _TEXT_LIMIT) -> str:
    return printable(value, limit) if isinstance(value, str) else ""


def _number(value: object, most: float = _GREATEST) -> float | None:
    """A finite number from 0 on."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # Compared before it is converted: a whole number may be too large for that.
    return float(value) if 0 <= value <= most and math.isfinite(value) else None


def _count(value: object) -> int | None:
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_BYTES
    return value if isinstance(value, int) and is_count else None


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _enum(kind: type[E], value: object) -> E | None:
    return next((one for one in kind if isinstance(value, str) and one.value == value), None)


def _pair(value: object) -> Pair:
    told = _dict(value)
    return Pair(
        gpu=_text(told.get("gpu")),
        gpu_label=_text(told.get("gpu_label")),
        nic=_text(told.get("nic")),
        port=_count(told.get("port")) or 0,
        far_nic=_text(told.get("far_nic")),
        peer=_text(told.get("peer")),
    )


def _judgement(value: object) -> Judgement:
    told = _dict(value)
    return Judgement(
        _enum(Rating, told.get("verdict")) or Rating.UNKNOWN,
        _text(told.get("words")),
        _text(told.get("why"), _COMMAND_LIMIT),
        _number(told.get("share")),
    )


def _samples(value: object) -> tuple[Sample, ...]:
    found = [_sample(one) for one in _list(value)[-MOST_SAMPLES:]]
    return tuple(one for one in found if one is not None)


def _sample(value: object) -> Sample | None:
    if not isinstance(value, dict):
        return None
    latencies = [
        Latency(microseconds, _text(one.get("of")))
        for one in map(_dict, _list(value.get("latencies"))[:_MOST_LATENCIES])
        if (microseconds := _number(one.get("microseconds"))) is not None
    ]
    return Sample(
        what=_text(value.get("what")),
        raw=_text(value.get("raw")),
        variant=_text(value.get("variant")),
        size_bytes=_count(value.get("size_bytes")),
        gbps=_number(value.get("gbps")),
        peak_gbps=_number(value.get("peak_gbps")),
        bus_gbps=_number(value.get("bus_gbps")),
        messages_per_second=_number(value.get("messages_per_second")),
        iterations=_count(value.get("iterations")),
        time_us=_number(value.get("time_us")),
        latencies=tuple(latencies),
        wrong=_count(value.get("wrong")),
        is_bidirectional=value.get("is_bidirectional") is True,
    )


def _facts(value: object) -> tuple[Fact, ...]:
    facts = []
    for one in map(_dict, _list(value)[:_MOST_FACTS]):
        about = _enum(About, one.get("about"))
        if about is not None:
            facts.append(Fact(about, _text(one.get("value")), _text(one.get("raw"))))
    return tuple(facts)
