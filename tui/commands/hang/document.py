"""The JSON document of `gdrtop hang`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, TypedDict

from probes.base.origin import Origin
from probes.base.unknown import Maybe
from probes.facts.node import Node
from probes.live.hang.blocked_threads import BlockedThread
from probes.live.hang.diagnosis import Clue, Diagnosis, Motion, SourceState
from probes.live.hang.ranks import RankState
from probes.live.processes.packets import PairMotion
from probes.nccl.flight_recorder.verdict import DumpVerdict
from tui.runtime.json_values import NO_REASONS, ExitStatus, document, host_name, object_from, object_of


class _Job(TypedDict):
    id: str
    name: str
    exit_status: ExitStatus
    motion: Motion  # on the nodes that answered
    headline: str
    watched_seconds: float
    silent_seconds: Maybe[float]
    # Connected queue pairs of which packet numbers are known, and those that have sent or received a packet.
    queue_pairs: Annotated[PairMotion, NO_REASONS] | None
    suspects: tuple[str, ...]
    is_sure: bool
    clues: tuple[Clue, ...]
    next_steps: tuple[str, ...]
    ranks: tuple[RankState, ...]
    threads: tuple[BlockedThread, ...]
    flight_recorder: DumpVerdict | None
    sources: tuple[SourceState, ...]


class HangDocument(TypedDict):
    """`gdrtop hang --json, and fleet hang --json`."""

    exit_status: ExitStatus
    jobs: tuple[_Job, ...]
    flight_recorder: DumpVerdict | None  # with --dumps; else each job has its own
    unanswered: Mapping[str, str]  # with fleet hang: nodes that do not answer, and why


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
    return object_from(
        diagnosis,
        _Job,
        facts,
        facts.job,
        watched_seconds=facts.seconds,
        silent_seconds=facts.silence,
        queue_pairs=facts.pairs if facts.pairs.connected else None,
        flight_recorder=facts.dump_verdict,
    )
