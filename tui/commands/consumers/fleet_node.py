"""`gdrtop check --for fleet`: what a fleet needs of one node, for `gdrtop fleet check --from`."""

from __future__ import annotations

from typing import Annotated, TextIO, TypedDict

from probes.checks.judgment import Judgment
from probes.fleet.summary import NodeSummary, summarize, to_json
from probes.fleet.traits import Trait
from probes.snapshot.examination import Examination
from tui.bandwidth.slow_results import saved_results
from tui.runtime.json_values import Changed, Time, node_document, write_json_line

SUMMARY = Annotated[
    NodeSummary,
    Changed(without=("taken_at",), time=Time, traits=tuple[Annotated[Trait, Changed("fact", "value")], ...]),
]
"""A node in the documents of a fleet."""


class FleetNodeDocument(TypedDict):
    """`gdrtop check --for fleet`, on one line."""

    nodes: tuple[SUMMARY, ...]  # this one


def write_fleet_node(examination: Examination, judgment: Judgment, out: TextIO) -> None:
    """Print the summary of the node, as the JSON document of a fleet has it."""
    node = examination.node
    summary = summarize(examination, judgment, results=saved_results(node.origin))
    content = {"nodes": [to_json(summary)]}
    write_json_line(node_document("fleet-node", node, examination.taken_at, content), out)
