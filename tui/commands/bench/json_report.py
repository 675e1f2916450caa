"""The JSON output of `gdrtop bench`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from probes.bandwidth.model.planned_test import Series
from probes.bandwidth.model.result import Result
from probes.bandwidth.results.baseline import machine_type
from probes.bandwidth.results.comparison import conclusions
from probes.bandwidth.results.result_json import to_json
from probes.snapshot.examination import Examination
from tui.runtime.json_values import document, host_name, plain_value, with_time
from widgets.bandwidth.series import peer_command


def result_json(result: Result) -> dict[str, Any]:
    """Return one result; unlike a saved one, it is part of a document, and its time is as in all of them."""
    fields = to_json(result)
    del fields["schema"]
    return with_time(fields, "taken_at")


def _common(examination: Examination, series: Series | None, affected: Sequence[str]) -> dict[str, Any]:
    """Return what plan and results have in common."""
    left_out = series.left_out if series else ()
    return {
        "machine": machine_type(examination),
        "title": series.title if series else "",
        "affected": list(affected),
        "left_out": [{"title": test.title, "reason": test.reason} for test in left_out],
    }


def plan_json(
    examination: Examination,
    at: float,
    series: Series,
    affected: Sequence[str],
    refused: str,
    peers_name: str,
) -> dict[str, Any]:
    """Return a planned series; `at`: seconds since 1970, `peers_name`: this node as a peer calls it."""
    tests = [
        {
            "title": test.title,
            "proves": test.purpose.proves,
            "not_proven": test.purpose.not_proven,
            "commands": {process.name: list(process.command.argv) for process in test.processes},
            "for_peer": peer_command(test, peers_name),
            "limit_gbps": plain_value(test.limit.gbps),
            "expected_gbps": None if test.expected is None else test.expected.gbps,
            "expected_machine": "" if test.expected is None else test.expected.name,
            "seconds": test.seconds,
            "notes": list(test.notes),
        }
        for test in series.tests
    ]
    content = _common(examination, series, affected)
    content |= {"seconds": series.seconds, "refused": refused, "tests": tests}
    return document("bench", host_name(examination.node), examination.node.origin, at, content)


def results_json(
    examination: Examination,
    at: float,
    series: Series | None,
    affected: Sequence[str],
    results: Sequence[Result],
    comparisons: Mapping[int, Sequence[str]],
) -> dict[str, Any]:
    """Return the results; `comparisons` by the number of the test, from 1."""
    measured = [
        {**result_json(result), "comparisons": list(comparisons.get(number, ()))}
        for number, result in enumerate(results, 1)
    ]
    meaning = list(conclusions(results, series.left_out if series else ()))
    content = {**_common(examination, series, affected), "results": measured, "meaning": meaning}
    return document("bench", host_name(examination.node), examination.node.origin, at, content)
