"""The JSON document of `gdrtop fleet bench`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypedDict

from probes.base.unknown import Unknown, known
from probes.fleet.attribution import BelowLimit, Crowd, Culprit, PairMemory, PairResult, Place
from probes.fleet.leaves import RailLeaves
from probes.fleet.pair_tests import PairSettings
from probes.fleet.pairs_report import PairsReport
from tui.bandwidth.pairs.pairs_session import PairsPlan
from tui.runtime.json_values import object_from, object_of
from widgets.fleet.pairs import answers, culprit_words

if TYPE_CHECKING:
    from typing_extensions import NotRequired


class CulpritObject(TypedDict):
    """A part whose tests are slow, or fail."""

    place: Place
    node: str | None
    rail: int | None
    nic: str | None
    memories: tuple[PairMemory, ...]
    gbps: float | None  # the median of its tests, Gb/s; null if all have failed
    reference_gbps: float | None  # what the usual NIC reaches with this memory, Gb/s
    slow_partners: int
    partners: int
    failure: str
    text: str


class ResultObject(TypedDict):
    """What one rail of a pair of nodes reached."""

    server: str
    server_nic: str
    client: str
    client_nic: str
    rail: int
    memory: PairMemory
    gbps: float | None  # 10^9 bits per second; null if the test failed
    limit_gbps: float | None  # what ports and PCIe links of both ends allow, Gb/s; null if unknown
    failure: str  # why the test failed; empty if it did not


class LeftOutObject(TypedDict):
    """A node or a rail that is not measured."""

    name: str
    reason: str


class LeafObject(TypedDict):
    """Where a rail of a node ends."""

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
    culprits: NotRequired[tuple[CulpritObject, ...]]
    many_slow: NotRequired[tuple[Crowd, ...]]
    below_limit: NotRequired[tuple[BelowLimit, ...]]
    unexplained: NotRequired[tuple[ResultObject, ...]]
    # With each memory, the median of what each NIC reaches with its best partner, Gb/s.
    references: NotRequired[Mapping[PairMemory, float]]
    results: NotRequired[tuple[ResultObject, ...]]
    left_out: NotRequired[tuple[LeftOutObject, ...]]
    rails_left_out: NotRequired[tuple[LeftOutObject, ...]]
    leaves: NotRequired[tuple[LeafObject, ...]]
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
        CulpritObject,
        node=culprit.node or None,
        nic=culprit.nic or None,
        slow_partners=culprit.slow,
        text=culprit_words(culprit),
    )


def _result_json(result: PairResult) -> dict[str, Any]:
    return object_from(
        result,
        ResultObject,
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
