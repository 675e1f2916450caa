"""The JSON document of `gdrtop hang`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from probes.base.origin import Origin
from probes.base.unknown import Maybe
from probes.facts.node import Node
from probes.live.hang.diagnosis import Diagnosis
from probes.nccl.flight_recorder.verdict import DumpVerdict, WaitingGroup
from tui.runtime.json_values import document, host_name, object_of


def hang_json(node: Node, at: float, found: Sequence[Diagnosis], status: int) -> dict[str, Any]:
    """Return the document; `at`: seconds since 1970, of the last sample."""
    return hang_document(host_name(node), node.origin, at, found, status)


def hang_document(
    name: Maybe[str],
    origin: Origin,
    at: float,
    found: Sequence[Diagnosis],
    status: int,
    unanswered: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the document of one node, or of several; `name`: its host name."""
    content = object_of(
        {
            "exit_status": status,
            "jobs": [_job_json(diagnosis) for diagnosis in found],
            "flight_recorder": None,
            "unanswered": dict(unanswered),
        }
    )
    return document("hang", name, origin, at, content)


def _job_json(diagnosis: Diagnosis) -> dict[str, Any]:
    facts = diagnosis.facts
    return object_of(
        {
            "id": facts.job.id,
            "name": facts.job.name,
            "exit_status": diagnosis.exit_status,
            "motion": facts.motion,
            "headline": diagnosis.headline,
            "watched_seconds": facts.seconds,
            "silent_seconds": facts.silence,
            "queue_pairs": facts.pairs if facts.pairs.connected else None,
            "suspects": diagnosis.suspects,
            "is_sure": diagnosis.is_sure,
            "clues": diagnosis.clues,
            "next_steps": diagnosis.next_steps,
            "ranks": facts.ranks,
            "threads": facts.threads,
            "flight_recorder": None if facts.dump_verdict is None else dumps_json(facts.dump_verdict),
            "sources": facts.sources,
        }
    )


def dumps_json(verdict: DumpVerdict) -> dict[str, Any]:
    """Return what dumps of the flight recorder say together."""
    return object_of(
        {
            "ranks": verdict.ranks,
            "culprits": verdict.culprits,
            "suspected": verdict.suspected,
            "is_cycle": verdict.is_cycle,
            "groups": [_group_json(group) for group in verdict.groups],
        }
    )


def _group_json(group: WaitingGroup) -> dict[str, Any]:
    names = ("name", "description", "cause", "sequence", "operation", "waiting", "absent", "behind")
    return object_of({name: getattr(group, name) for name in (*names, "without_dump")})
