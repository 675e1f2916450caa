"""The answer about many nodes: verdicts counted, equal nodes folded, differences, nodes without an answer."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TypeAlias

from probes.base.text import plural
from probes.base.unknown import Unknown
from probes.fleet.compare import Fleet, Group, Unanswered
from probes.fleet.node_set import fold_nodes
from probes.fleet.summary import FoundProblem, NodeSummary
from probes.queries.finding import Severity
from probes.snapshot.verdict import State
from widgets.base.columns import Column, cells_of, draw_columns
from widgets.base.lines import Line, Run, Tone, behind, line, plain, width_of, wrapped
from widgets.fleet.differences import draw_differences, draw_uncompared
from widgets.node import verdict as verdict_drawing

_MARKS = {Severity.CRITICAL: Run("✗", Tone.BAD), Severity.WARNING: Run("▲", Tone.WARNING)}
_TONES = {
    State.ACTIVE: Tone.GOOD,
    State.READY: Tone.GOOD,
    State.DEGRADED: Tone.WARNING,
    State.BROKEN: Tone.BAD,
    State.UNKNOWN: Tone.WARNING,
    State.NOT_APPLICABLE: Tone.DIM,
}
_MOST_DEVICES = 3


def draw_answer(fleet: Fleet, width: int, with_headline: bool = True) -> list[Line]:
    """Draw the whole answer, the worst first."""
    lines: list[Line] = []
    if with_headline:
        head = headline(fleet)
        lines = [head] if width_of(head) <= width else wrapped(plain(head), width, Tone.TITLE, "", "  ")
        lines.append(())
    for group in fleet.groups:
        lines.extend(_group(group, width))
    if len(fleet.summaries) > 1:
        lines.extend([(), *draw_differences(fleet, width)])
        if fleet.uncompared:
            lines.extend([(), *draw_uncompared(fleet, width)])
    if fleet.unanswered:
        lines.extend([(), (Run("No answer", Tone.TITLE),), *_unanswered(fleet.unanswered, width)])
    return lines


def headline(fleet: Fleet) -> Line:
    """Return "64 nodes: 62 READY, 1 DEGRADED, 1 BROKEN · 1 with silenced findings · 2 do not answer"."""
    likely = sum(summary.verdict.likely_in_use for summary in fleet.summaries)
    runs = [Run(plural(len(fleet.summaries), "node"), Tone.TITLE)]
    for place, (state, count) in enumerate(fleet.counts.items()):
        runs += [Run(", " if place else ": "), Run(f"{count} {state.value}", _TONES[state])]
        if likely and state is State.READY:
            runs.append(Run(f" ({likely} likely in use)"))
    if silenced := sum(bool(summary.verdict.silenced) for summary in fleet.summaries):
        runs.append(Run(f" · {silenced} with silenced findings", Tone.DIM))
    if fleet.unanswered:
        count = len(fleet.unanswered)
        runs += [Run(" · "), Run(f"{count} do{'es' if count == 1 else ''} not answer", Tone.BAD)]
    return tuple(runs)


def _group(group: Group, width: int) -> list[Line]:
    nodes = fold_nodes(group.nodes)
    if len(group.nodes) > 1:
        nodes = f"{nodes} ({len(group.nodes)})"
    forms = verdict_drawing.forms(group.verdict)
    verdict = next((form for form in forms if width_of(form) <= width), forms[-1])
    whole: Line = (*verdict, Run("  "), Run(nodes, Tone.TITLE))
    lines = [whole] if width_of(whole) <= width else [verdict, *wrapped(nodes, width, Tone.TITLE, "    ")]
    for problem in group.findings:
        lines.extend(draw_problem(problem, width))
    if not group.findings and group.verdict.state not in (State.READY, State.ACTIVE):
        lines.extend(wrapped(group.verdict.reason, width, Tone.PLAIN, "    "))
    return lines


def draw_problem(problem: FoundProblem, width: int) -> list[Line]:
    """Draw a finding with its devices and its id."""
    shown = ", ".join((problem.names or problem.devices)[:_MOST_DEVICES])
    more = len(problem.devices) - _MOST_DEVICES
    devices = f": {shown}{f' and {more} more' if more > 0 else ''}" if shown else ""
    text = f"{problem.title}{devices} ({problem.id})"
    head = line("    ", _MARKS.get(problem.severity, Run("·")), " ")
    return behind(head, wrapped(text, width - 6))


def _unanswered(nodes: Iterable[Unanswered], width: int) -> list[Line]:
    reasons: dict[str, list[str]] = {}
    for unanswered in nodes:
        reasons.setdefault(unanswered.reason, []).append(unanswered.node)
    lines: list[Line] = []
    for reason, names in sorted(reasons.items(), key=lambda pair: -len(pair[1])):
        count = f" ({len(names)})" if len(names) > 1 else ""
        lines.extend(wrapped(f"{fold_nodes(names)}{count}: {reason}", width, Tone.BAD, "  ", "  "))
    return lines


_Node: TypeAlias = NodeSummary | Unanswered
_NONE = "-"


def draw_node_rows(fleet: Fleet) -> list[Line]:
    """Draw a heading and a row a node, the worst first, and then those without an answer."""
    summaries = {summary.name: summary for summary in fleet.summaries}
    nodes: list[_Node] = [summaries[name] for group in fleet.groups for name in group.nodes]
    nodes += fleet.unanswered

    def counted(title: str, kind: str, tone: Tone = Tone.PLAIN) -> Column:
        return Column(title, cells_of(nodes, lambda node: _count(node, kind, tone)), 1, to_right=True)

    columns = [
        Column("NODE", cells_of(nodes, _name), 1),
        Column("VERDICT", cells_of(nodes, _verdict), 1),
        Column("PATH", cells_of(nodes, _path), 1),
        Column("GPUS", cells_of(nodes, _gpus), 1, to_right=True),
        Column("NICS", cells_of(nodes, _nics), 1, to_right=True),
        counted("CRITICAL", "critical", Tone.BAD),
        counted("WARNINGS", "warnings", Tone.WARNING),
        counted("SILENCED", "silenced"),
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
    if isinstance(node, Unanswered) or node.verdict.state in verdict_drawing.WITHOUT_NUMBERS:
        return Run(_NONE)
    return Run(f"{node.verdict.gpus_served}/{node.verdict.gpus}")


def _nics(node: _Node) -> Run:
    if isinstance(node, Unanswered) or node.verdict.state in verdict_drawing.WITHOUT_NUMBERS:
        return Run(_NONE)
    return _count(node, "nics")


def _count(node: _Node, kind: str, tone: Tone = Tone.PLAIN) -> Run:
    count = None if isinstance(node, Unanswered) else getattr(node.verdict, kind)
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
