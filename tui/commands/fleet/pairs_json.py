"""The JSON document of `gdrtop fleet bench`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from probes.base.unknown import Unknown, known
from probes.fleet.attribution import BelowLimit, Crowd, Culprit, PairMemory, PairResult, PairsReport
from probes.fleet.pairs import PairSettings
from probes.fleet.rails import RailLeaves
from tui.bandwidth.pairs.pairs_session import PairsPlan
from tui.runtime.json_values import Changed, object_from, object_of
from widgets.fleet.pairs import answers, culprit_words

if TYPE_CHECKING:
    from typing_extensions import NotRequired


_CULPRIT = Annotated[
    Culprit,
    Changed(
        without=("only_gpu_memory", "slow"), node=str | None, nic=str | None, slow_partners=int, text=str
    ),
]
_RESULT = Annotated[
    PairResult,
    Changed(server=str, server_nic=str, client=str, client_nic=str, gbps=float | None, failure=str),
]


class _LeftOut(TypedDict):
    name: str
    reason: str


class _Leaf(TypedDict):
    rail: int
    node: str
    switch: str | None
    differs: bool  # most other nodes end at another switch
    usual_switch: str | None
    why_unknown: str


class FleetBenchDocument(TypedDict):
    """`gdrtop fleet bench --json, with --dry-run`."""

    nodes: tuple[str, ...]  # that take part
    rails: tuple[int, ...]
    memories: tuple[PairMemory, ...]
    duration_seconds: int
    both_ways: bool  # each figure is the sum of both directions
    expected_seconds: float
    answers: NotRequired[tuple[str, ...]]  # what is slow, worst first, in words; or that nothing is
    culprits: NotRequired[tuple[_CULPRIT, ...]]
    many_slow: NotRequired[tuple[Crowd, ...]]
    below_limit: NotRequired[tuple[BelowLimit, ...]]
    unexplained: NotRequired[tuple[_RESULT, ...]]
    # With each memory, the median of what each NIC reaches with its best partner, Gb/s.
    references: NotRequired[Mapping[PairMemory, float]]
    results: NotRequired[tuple[_RESULT, ...]]
    left_out: NotRequired[tuple[_LeftOut, ...]]
    rails_left_out: NotRequired[tuple[_LeftOut, ...]]
    leaves: NotRequired[tuple[_Leaf, ...]]
    exit_status: int
    exit_reason: str  # what decided the exit status, in words


_MEASURED = (
    *("answers", "culprits", "many_slow", "below_limit", "unexplained", "references", "results"),
    *("left_out", "rails_left_out", "leaves"),
)
FORMS: dict[str, tuple[str, ...]] = {"a plan": (), "a measurement": _MEASURED}
"""The fields that each form of the document has, and no other form's."""


def pairs_json(plan: PairsPlan, settings: PairSettings, report: PairsReport | None) -> dict[str, Any]:
    """Return the plan, and with a report what was measured."""
    content: dict[str, Any] = {
        "nodes": list(plan.nodes),
        "rails": list(plan.rails),
        "memories": [memory.value for memory in settings.memories],
        "duration_seconds": settings.duration_s,
        "both_ways": settings.is_bidirectional,
        "expected_seconds": plan.quick_seconds + plan.full_seconds,
    }
    if report is None:
        return content
    attribution = report.attribution
    return content | {
        "answers": [text for text, _ in answers(report)],
        "culprits": [_culprit_json(culprit) for culprit in attribution.culprits],
        **object_of({"many_slow": attribution.crowds, "below_limit": attribution.below_limit}),
        "unexplained": [_result_json(result) for result in attribution.unexplained],
        "references": {memory.value: gbps for memory, gbps in attribution.references.items()},
        "results": [_result_json(result) for result in report.results],
        "left_out": [{"name": name, "reason": reason} for name, reason in report.left_out.items()],
        "rails_left_out": [
            {"name": name, "reason": reason} for name, reason in report.rails_left_out.items()
        ],
        "leaves": [leaf for rail in report.leaves for leaf in _leaves_json(rail)],
    }


def _culprit_json(culprit: Culprit) -> dict[str, Any]:
    return object_from(
        culprit,
        _CULPRIT,
        node=culprit.node or None,
        nic=culprit.nic or None,
        slow_partners=culprit.slow,
        text=culprit_words(culprit),
    )


def _result_json(result: PairResult) -> dict[str, Any]:
    return object_from(
        result,
        _RESULT,
        server=result.server.node,
        server_nic=result.server.nic,
        client=result.client.node,
        client_nic=result.client.nic,
        gbps=known(result.gbps, None),
        failure=result.gbps.detail if isinstance(result.gbps, Unknown) else "",
    )


def _leaves_json(rail: RailLeaves) -> list[dict[str, Any]]:
    usual, elsewhere = rail.usual, rail.elsewhere
    return [
        {
            "rail": rail.rail,
            "node": node,
            "switch": None if isinstance(leaf, Unknown) else leaf.label,
            "differs": node in elsewhere,
            "usual_switch": None if usual is None else usual.label,
            "why_unknown": str(leaf) if isinstance(leaf, Unknown) else "",
        }
        for node, leaf in rail.leaves.items()
    ]
