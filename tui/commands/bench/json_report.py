"""What `gdrtop bench --json` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from probes.bandwidth.model.planned_test import Series
from probes.bandwidth.model.result import Result
from probes.bandwidth.results.baseline import machine_type
from probes.bandwidth.results.comparison import conclusions
from probes.bandwidth.results.result_json import to_json
from probes.snapshot.examination import Examination
from tui.commands.json_values import document, host_name, plain_value
from widgets.bandwidth.series import peer_command


def _head(examination: Examination, series: Series | None, felt: Sequence[str]) -> dict[str, Any]:
    """The machine and the series; the affected processes, and what is left out."""
    left_out = series.left_out if series else ()
    return {
        "machine": machine_type(examination),
        "title": series.title if series else "",
        "affected": list(felt),
        "left_out": [{"title": one.title, "reason": one.reason} for one in left_out],
    }


def plan_json(
    examination: Examination,
    at: float,
    series: Series,
    felt: Sequence[str],
    refused: str,
    peers_name: str,
) -> dict[str, Any]:
    """What would be run, as planned `at` seconds since 1970; `peers_name`: this node as a peer calls it."""
    tests = [
        {
            "title": test.title,
            "proves": test.purpose.proves,
            "does_not_prove": test.purpose.not_proven,
            "commands": {end.name: list(end.command.argv) for end in test.processes},
            "for_peer": peer_command(test, peers_name),
            "limit_gbps": plain_value(test.limit.gbps),
            "seconds": test.seconds,
            "notes": list(test.notes),
        }
        for test in series.tests
    ]
    content = _head(examination, series, felt)
    content |= {"seconds": series.seconds, "refused": refused, "tests": tests}
    return document("bench", host_name(examination.node), examination.node.origin, at, content)


def results_json(
    examination: Examination,
    at: float,
    series: Series | None,
    felt: Sequence[str],
    results: Sequence[Result],
    comparisons: Mapping[int, Sequence[str]],
) -> dict[str, Any]:
    """What was measured; `comparisons` by the test's number, from 1 on."""
    told = [
        {**to_json(one), "comparisons": list(comparisons.get(number, ()))}
        for number, one in enumerate(results, 1)
    ]
    meant = list(conclusions(results, series.left_out if series else ()))
    content = {**_head(examination, series, felt), "results": told, "meaning": meant}
    return document("bench", host_name(examination.node), examination.node.origin, at, content)
