"""The answer about many nodes, as text and as the JSON document `gdrtop schema fleet`."""

from __future__ import annotations

import argparse
import time
from collections.abc import Collection, Mapping
from typing import Annotated, Any, TextIO, TypedDict

from probes.base.origin import Origin, Source
from probes.base.text import plural
from probes.base.unknown import Maybe, Reason, Unknown
from probes.fleet.compare import Difference, Fleet, Group, Kind, Unanswered, Uncompared
from probes.fleet.node_set import fold_nodes
from probes.fleet.racks import Rack, racks_of
from probes.fleet.rails import CableFault
from probes.fleet.summary import to_json
from tui.commands.consumers.fleet_node import SUMMARY
from tui.runtime.json_values import Changed, document, object_from, plain_value, write_json
from tui.runtime.printing import heading_of, print_lines, text_width
from widgets.base.lines import Line
from widgets.fleet.answer import draw_answer, draw_node_rows
from widgets.fleet.cables import COLUMNS, cable_rows, draw_cable_faults, draw_cables, fault_words

NO_NODE = Unknown(Reason.NOT_THERE, "", "the document is about several nodes")


_GROUP = Annotated[Group, Changed(node_set=str)]
_KIND = Annotated[Kind, Changed(node_set=str)]
_DIFFERENCE = Annotated[
    Difference,
    Changed(without=("role",), fact=str, label=str, machine=str, rest=_KIND | None, others=tuple[_KIND, ...]),
]
_UNCOMPARED = Annotated[Uncompared, Changed(facts=tuple[str, ...])]


_CABLE_FAULT = Annotated[CableFault, Changed(text=str)]


_RACK = Annotated[Rack, Changed(node_set=str, differences=tuple[_DIFFERENCE, ...])]


class FleetDocument(TypedDict):
    """`gdrtop diff --json`."""

    node: Maybe[None]  # the document is about several nodes
    exit_status: int
    verdicts: Mapping[str, int]  # how many nodes have each verdict
    groups: tuple[_GROUP, ...]  # the worst first
    differences: tuple[_DIFFERENCE, ...]  # what decides the path first
    uncompared: tuple[_UNCOMPARED, ...]
    racks: tuple[_RACK, ...]  # with an NVLink domain of several nodes, the largest first
    cable_faults: tuple[_CABLE_FAULT, ...]  # cables that do not end where those of equal nodes end
    unanswered: tuple[Unanswered, ...]
    nodes: tuple[SUMMARY, ...]


def print_fleet(fleet: Fleet, out: TextIO, status: int, options: argparse.Namespace, origin: Origin) -> int:
    """Print the answer in the format that the options name, and return the exit status."""
    if options.json:
        write_json(fleet_document(fleet, status, origin), out)
    elif options.rows:
        print_lines(draw_node_rows(fleet)[1:], out, options.ascii)
    else:
        head = fleet_heading(len(fleet.summaries) + len(fleet.unanswered), origin)
        print_lines([head, *draw_answer(fleet, text_width(out))], out, options.ascii)
    return status


def fleet_heading(nodes: int, origin: Origin) -> Line:
    """Return the first line of a command about many nodes; what is not of now says so."""
    label = "" if origin.source is Source.SIMULATED else origin.label
    shown = Origin(Source.LIVE) if origin.is_running else Origin(origin.source, label)
    return heading_of(plural(nodes, "node"), shown, time.time())


def fleet_document(fleet: Fleet, status: int, origin: Origin) -> dict[str, Any]:
    """Return the JSON document; `origin`: where the facts are from, with a label for all of them."""
    content = {
        "exit_status": status,
        "verdicts": {state.value: count for state, count in fleet.counts.items()},
        "groups": [object_from(group, _GROUP, node_set=fold_nodes(group.nodes)) for group in fleet.groups],
        "differences": [_difference_json(difference) for difference in fleet.differences],
        "uncompared": [
            object_from(each, _UNCOMPARED, facts=[fact.id for fact in each.facts])
            for each in fleet.uncompared
        ],
        "racks": [
            object_from(
                rack,
                _RACK,
                node_set=fold_nodes(rack.nodes),
                differences=list(map(_difference_json, rack.differences)),
            )
            for rack in racks_of(fleet)
        ],
        "cable_faults": [
            object_from(fault, _CABLE_FAULT, text=fault_words(fault)) for fault in fleet.cable_faults
        ],
        "unanswered": plain_value(fleet.unanswered),
        "nodes": map(to_json, fleet.summaries),  # each is written before the next one is made
    }
    return document("fleet", NO_NODE, origin, time.time(), content)


def print_cables(fleet: Fleet, out: TextIO, options: argparse.Namespace) -> int:
    """Print a row a cable, and what is wrong with cables; 1: something is, 3: a node does not answer."""
    if options.csv:
        import csv

        rows = [COLUMNS, *cable_rows(fleet)]
        # A spreadsheet takes a text that begins so for a formula, and switches send any text.
        safe = [
            [f"'{cell}" if cell.startswith(("=", "+", "-", "@")) else cell for cell in row] for row in rows
        ]
        csv.writer(out, lineterminator="\n").writerows(safe)
    else:
        print_lines([*draw_cables(fleet), *draw_cable_faults(fleet, text_width(out))], out, options.ascii)
    return 1 if fleet.cable_faults else 3 if fleet.unanswered else 0


def _difference_json(difference: Difference) -> dict[str, Any]:
    rest, others = difference.rest, difference.others
    kinds = [object_from(kind, _KIND, node_set=fold_nodes(kind.nodes)) for kind in others]
    return object_from(
        difference,
        _DIFFERENCE,
        fact=difference.fact.id,
        label=difference.fact.label,
        machine=difference.role.machine,
        rest=rest and object_from(rest, _KIND, node_set=fold_nodes(rest.nodes)),
        others=kinds,
    )


def common_origin(
    origins: Collection[Origin], label: str = "", of_several_kinds: Source = Source.LIVE
) -> Origin:
    """Return the origin of a document about nodes of these origins."""
    sources = {origin.source for origin in origins}
    return Origin(sources.pop() if len(sources) == 1 else of_several_kinds, label)
