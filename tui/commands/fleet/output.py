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
from probes.fleet.summary import NodeSummary, to_json
from probes.fleet.traits import Trait
from tui.runtime.json_values import Changed, Time, document, object_from, plain_value, write_document
from tui.runtime.printing import heading_of, print_lines, text_width
from widgets.base.lines import Line
from widgets.fleet.answer import draw_answer
from widgets.fleet.node_rows import draw_node_rows

NO_NODE = Unknown(Reason.NOT_THERE, "", "the document is about several nodes")


class GroupObject(Group):
    """Nodes with the same verdict and the same findings."""

    node_set: str


class KindObject(Kind):
    """The nodes with one value of a fact."""

    node_set: str


class DifferenceObject(TypedDict):
    """A fact in which nodes of one type differ."""

    fact: str
    label: str
    slots: tuple[str, ...]  # devices as most nodes call them, or names of settings; empty: the node itself
    machine: str
    rest: KindObject | None  # the value of most nodes; null: there is none
    others: tuple[KindObject, ...]


class SummaryObject(NodeSummary):
    """A node at one moment."""

    without = ("taken_at",)
    time: Time  # when the node was read, with zone (RFC 3339)


_SUMMARY = Changed(traits=tuple[Annotated[Trait, Changed("fact", "value")], ...])


class FleetDocument(TypedDict):
    """`gdrtop diff --json`."""

    node: Maybe[None]  # the document is about several nodes
    exit_status: int
    verdicts: Mapping[str, int]  # how many nodes have each verdict
    groups: tuple[GroupObject, ...]  # the worst first
    differences: tuple[DifferenceObject, ...]  # what decides the path first
    uncompared: tuple[Annotated[Uncompared, Changed(facts=tuple[str, ...])], ...]
    unanswered: tuple[Unanswered, ...]
    nodes: tuple[Annotated[SummaryObject, _SUMMARY], ...]


def print_fleet(fleet: Fleet, out: TextIO, status: int, options: argparse.Namespace, origin: Origin) -> int:
    """Print the answer in the format that the options name, and return the exit status."""
    if options.format in ("json", "yaml"):
        write_document(fleet_document(fleet, status, origin), out, options.format)
        return status
    head = [] if options.no_header else [fleet_heading(len(fleet.summaries) + len(fleet.unanswered), origin)]
    if options.format == "wide":
        lines = draw_node_rows(fleet)[options.no_header :]
    else:
        lines = draw_answer(fleet, text_width(out), with_headline=not options.no_header)
    print_lines([*head, *lines], out, options.ascii)
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
        "groups": [
            object_from(group, GroupObject, node_set=fold_nodes(group.nodes)) for group in fleet.groups
        ],
        "differences": [_difference_json(difference) for difference in fleet.differences],
        "uncompared": [
            object_from(each, Uncompared, facts=[fact.id for fact in each.facts]) for each in fleet.uncompared
        ],
        "unanswered": plain_value(fleet.unanswered),
        "nodes": [to_json(summary) for summary in fleet.summaries],
    }
    return document("fleet", NO_NODE, origin, time.time(), content)


def _difference_json(difference: Difference) -> dict[str, Any]:
    return object_from(
        difference,
        DifferenceObject,
        fact=difference.fact.id,
        label=difference.fact.label,
        machine=difference.role.machine,
        rest=None if difference.rest is None else _kind_json(difference.rest),
        others=[_kind_json(kind) for kind in difference.others],
    )


def _kind_json(kind: Kind) -> dict[str, Any]:
    return object_from(kind, KindObject, node_set=fold_nodes(kind.nodes))


def common_origin(
    origins: Collection[Origin], label: str = "", of_several_kinds: Source = Source.LIVE
) -> Origin:
    """Return the origin of a document about nodes of these origins."""
    sources = {origin.source for origin in origins}
    return Origin(sources.pop() if len(sources) == 1 else of_several_kinds, label)
