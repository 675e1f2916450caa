"""The nodes of a fleet as a table for scripts: one row a node, every cell in full."""

from __future__ import annotations

import sys
from typing import TypeAlias

from probes.base.unknown import Unknown
from probes.fleet.compare import Fleet, Unanswered
from probes.fleet.summary import NodeSummary
from widgets.base.columns import Column, cells_of, draw_columns
from widgets.base.lines import Line, Run, Tone
from widgets.node import verdict as verdict_drawing

_Node: TypeAlias = NodeSummary | Unanswered
_NONE = "-"


def draw_node_rows(fleet: Fleet) -> list[Line]:
    """Draw a heading and a row a node, the worst first, and then those without an answer."""
    summaries = {summary.name: summary for summary in fleet.summaries}
    nodes: list[_Node] = [summaries[name] for group in fleet.groups for name in group.nodes]
    nodes += fleet.unanswered
    columns = [
        Column("NODE", cells_of(nodes, _name), 1),
        Column("VERDICT", cells_of(nodes, _verdict), 1),
        Column("PATH", cells_of(nodes, _path), 1),
        Column("GPUS", cells_of(nodes, _gpus), 1, to_right=True),
        Column("NICS", cells_of(nodes, _nics), 1, to_right=True),
        Column("CRITICAL", cells_of(nodes, _critical), 1, to_right=True),
        Column("WARNINGS", cells_of(nodes, _warnings), 1, to_right=True),
        Column("SILENCED", cells_of(nodes, _silenced), 1, to_right=True),
        Column("KERNEL", cells_of(nodes, lambda node: _trait(node, "kernel")), 1),
        Column("DRIVER", cells_of(nodes, lambda node: _trait(node, "driver")), 1),
        Column("FINDING", cells_of(nodes, _finding), 1),
    ]
    return list(draw_columns(columns, [""] * len(nodes), sys.maxsize))


def _name(node: _Node) -> Run:
    return Run(node.node if isinstance(node, Unanswered) else node.name, Tone.TITLE)


def _verdict(node: _Node) -> Run:
    if isinstance(node, Unanswered):
        return Run("? no answer", Tone.BAD)
    return verdict_drawing.draw(node.verdict)[0]


def _path(node: _Node) -> Run:
    path = None if isinstance(node, Unanswered) else node.verdict.path
    return Run(_NONE if path is None else verdict_drawing.path_name(path))


def _gpus(node: _Node) -> Run:
    if isinstance(node, Unanswered) or not node.verdict.state.has_counts:
        return Run(_NONE)
    return Run(f"{node.verdict.gpus_served}/{node.verdict.gpus}")


def _nics(node: _Node) -> Run:
    if isinstance(node, Unanswered) or not node.verdict.state.has_counts:
        return Run(_NONE)
    return _count(node.verdict.nics)


def _critical(node: _Node) -> Run:
    return _count(None if isinstance(node, Unanswered) else node.verdict.critical, Tone.BAD)


def _warnings(node: _Node) -> Run:
    return _count(None if isinstance(node, Unanswered) else node.verdict.warnings, Tone.WARNING)


def _silenced(node: _Node) -> Run:
    return _count(None if isinstance(node, Unanswered) else node.verdict.silenced)


def _count(count: int | None, tone: Tone = Tone.PLAIN) -> Run:
    return Run(_NONE) if count is None else Run(str(count), tone if count else Tone.PLAIN)


def _trait(node: _Node, fact: str) -> Run:
    """Return a fact of the whole node, or why it is unknown."""
    traits = () if isinstance(node, Unanswered) else node.traits
    value = next((trait.value for trait in traits if trait.fact == fact), _NONE)
    return Run(f"? ({value.reason.value})" if isinstance(value, Unknown) else str(value))


def _finding(node: _Node) -> Run:
    """Return the id of the worst finding, or why there is no answer."""
    if isinstance(node, Unanswered):
        return Run(node.reason)
    return Run(node.findings[0].id if node.findings else _NONE)
