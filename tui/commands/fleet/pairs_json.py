"""The JSON document of `gdrtop fleet bench`; its schema is tui/commands/schemas/fleet-bench.json."""

from __future__ import annotations

from typing import Any

from probes.base.unknown import Unknown
from probes.fleet.attribution import Culprit, PairResult, PairsReport
from probes.fleet.pairs import PairSettings
from probes.fleet.rails import RailLeaves
from tui.bandwidth.pairs.pairs_session import PairsPlan
from widgets.fleet.pairs import answers, culprit_words


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
        "many_slow": [
            {
                "memory": crowd.memory.value,
                "slow": crowd.slow,
                "tests": crowd.tests,
                "gbps": crowd.gbps,
                "top_gbps": crowd.top_gbps,
            }
            for crowd in attribution.crowds
        ],
        "below_limit": [
            {"memory": low.memory.value, "gbps": low.gbps, "limit_gbps": low.limit_gbps}
            for low in attribution.below_limit
        ],
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
    return {
        "place": culprit.place.value,
        "node": culprit.node or None,
        "rail": culprit.rail,
        "nic": culprit.nic or None,
        "memories": [memory.value for memory in culprit.memories],
        "gbps": culprit.gbps,
        "reference_gbps": culprit.reference_gbps,
        "slow_partners": culprit.slow,
        "partners": culprit.partners,
        "failure": culprit.failure,
        "text": culprit_words(culprit),
    }


def _result_json(result: PairResult) -> dict[str, Any]:
    is_failed = isinstance(result.gbps, Unknown)
    return {
        "server": result.server.node,
        "server_nic": result.server.nic,
        "client": result.client.node,
        "client_nic": result.client.nic,
        "rail": result.rail,
        "memory": result.memory.value,
        "gbps": None if is_failed else result.gbps,
        "limit_gbps": result.limit_gbps,
        "failure": result.gbps.detail if isinstance(result.gbps, Unknown) else "",
    }


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
