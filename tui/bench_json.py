"""What `gdrtop bench --json` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from probes.bandwidth.comparison import meaning
from probes.bandwidth.machine_type import machine_type
from probes.bandwidth.planned import Series
from probes.bandwidth.result import Result
from probes.bandwidth.result_json import to_json
from probes.examination import Examination
from probes.origin import origin_word
from tui.actions.guards import node_name
from tui.json_values import plain_value
from widgets.series_drawing import peer_command


def head_json(examination: Examination, series: Series | None, felt: Sequence[str]) -> dict[str, Any]:
    """The node and the series; who would feel it, and what is left out."""
    left_out = series.left_out if series else ()
    return {
        "node": node_name(examination),
        "origin": origin_word(examination.node.origin),
        "machine": machine_type(examination),
        "title": series.title if series else "",
        "felt_by": list(felt),
        "left_out": [{"title": one.title, "reason": one.reason} for one in left_out],
    }


def plan_json(
    examination: Examination, series: Series, felt: Sequence[str], refused: str, peers_name: str
) -> dict[str, Any]:
    """What would be run; `peers_name` is this node's name, as a peer would call it."""
    tests = [
        {
            "title": test.title,
            "proves": test.purpose.proves,
            "does_not_prove": test.purpose.not_proven,
            "commands": {end.name: list(end.command.argv) for end in test.ends},
            "for_peer": peer_command(test, peers_name),
            "limit_gbps": plain_value(test.limit.gbps),
            "seconds": test.seconds,
            "notes": list(test.notes),
        }
        for test in series.tests
    ]
    head = head_json(examination, series, felt)
    return {**head, "seconds": series.seconds, "refused": refused, "tests": tests}


def results_json(
    examination: Examination,
    series: Series,
    felt: Sequence[str],
    results: Sequence[Result],
    comparisons: Mapping[int, Sequence[str]],
) -> dict[str, Any]:
    """What was measured; `comparisons` by the test's number, from 1 on."""
    told = [
        {**to_json(one), "comparisons": list(comparisons.get(number, ()))}
        for number, one in enumerate(results, 1)
    ]
    meant = list(meaning(results, series.left_out))
    return {**head_json(examination, series, felt), "results": told, "meaning": meant}
