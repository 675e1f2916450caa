"""The answer about many nodes: counted and folded, as rows for scripts, and the table of a watched fleet."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from probes.base.evidence import Severity
from probes.base.grouping import grouped
from probes.base.text import plural
from probes.base.unknown import Unknown
from probes.fleet.compare import Difference, Fleet, Group, Kind, Unanswered
from probes.fleet.fleet_watch import WatchedNode
from probes.fleet.node_set import fold_nodes
from probes.fleet.racks import domains_of
from probes.fleet.summary import FoundProblem, NodeSummary
from probes.snapshot.verdict import State
from widgets.base.columns import Column, ColumnWidths, cells_of, draw_columns
from widgets.base.figures import ago, local_time
from widgets.base.health import SEVERITY_MARKS
from widgets.base.lines import (
    LazyLines,
    Line,
    Run,
    Tone,
    behind,
    cut,
    line,
    paragraphs,
    plain,
    section,
    width_of,
    wrapped,
)
from widgets.fleet.cables import draw_cable_faults
from widgets.fleet.differences import draw_differences, draw_racks, draw_uncompared, label_of, role_name
from widgets.node import verdict as verdict_drawing

_MOST_DEVICES = 3
_MOST_GROUPS = 60  # in full; a fleet can have as many as it has nodes


def draw_answer(fleet: Fleet, width: int) -> list[Line]:
    """Draw the whole answer, the worst first."""
    head = headline(fleet)
    lines = [head] if width_of(head) <= width else wrapped(plain(head), width, Tone.TITLE, "", "  ")
    lines.append(())
    for group in fleet.groups[:_MOST_GROUPS]:
        lines.extend(_group(group, width))
    lines.extend(_more_groups(fleet.groups[_MOST_GROUPS:], width))
    lines += draw_racks(fleet, width)
    lines += draw_cable_faults(fleet, width)
    if len(fleet.summaries) > 1:
        lines.extend([(), *draw_differences(fleet, width)])
        if fleet.uncompared:
            lines.extend([(), *draw_uncompared(fleet, width)])
    return lines + section("No answer", _unanswered(fleet.unanswered, width))


def headline(fleet: Fleet) -> Line:
    """Return "64 nodes: 62 READY, 1 DEGRADED, 1 BROKEN · 1 with silenced findings · 2 do not answer"."""
    likely = sum(summary.verdict.likely_in_use for summary in fleet.summaries)
    runs = [Run(plural(len(fleet.summaries), "node"), Tone.TITLE)]
    for place, (state, count) in enumerate(fleet.counts.items()):
        runs += [Run(", " if place else ": "), Run(f"{count} {state.value}", verdict_drawing.MARKS[state][1])]
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
    if not group.findings and not group.verdict.is_green:
        lines.extend(wrapped(group.verdict.reason, width, Tone.PLAIN, "    "))
    return lines


def _more_groups(groups: Sequence[Group], width: int) -> list[Line]:
    """Draw the groups that are left, which are not the worst, by their verdict only."""
    if not groups:
        return []
    by_state = grouped((group.verdict.state, node) for group in groups for node in group.nodes)
    lines: list[Line] = [(), line(f"{plural(len(groups), 'more kind')} of nodes; --json and --rows list all")]
    for state, nodes in by_state.items():
        text = f"{fold_nodes(nodes)} ({len(nodes)})"
        head = (Run("  "), Run(state.value, verdict_drawing.MARKS[state][1]), Run("  "))
        lines.extend(behind(head, wrapped(text, width - width_of(head))))
    return lines


def draw_problem(problem: FoundProblem, width: int) -> list[Line]:
    """Draw a finding with its devices and its id."""
    shown = ", ".join((problem.names or problem.devices)[:_MOST_DEVICES])
    more = len(problem.devices) - _MOST_DEVICES
    devices = f": {shown}{f' and {more} more' if more > 0 else ''}" if shown else ""
    text = f"{problem.title}{devices} ({problem.id})"
    head = line("    ", SEVERITY_MARKS[problem.severity], " ")
    return behind(head, wrapped(text, width - 6))


def _unanswered(nodes: Iterable[Unanswered], width: int) -> list[Line]:
    reasons = grouped((unanswered.reason, unanswered.node) for unanswered in nodes)
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
    if isinstance(node, Unanswered) or not node.verdict.state.has_counts:
        return Run(_NONE)
    return Run(f"{node.verdict.gpus_served}/{node.verdict.gpus}")


def _nics(node: _Node) -> Run:
    if isinstance(node, Unanswered) or not node.verdict.state.has_counts:
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


# The nodes of a watched fleet as a table, and one of them in detail.

_MARK = "◆"
_CHANGE_CELLS = 22
_DIFFERENCE_CELLS = 24
_TYPE_CELLS = 34
_PROBLEM_CELLS = 24  # at least

OwnDifferences = Mapping[str, Sequence[tuple[Difference, Kind]]]
"""By node: in what it differs from the rest, and its own value."""


def differences_of(fleet: Fleet) -> dict[str, list[tuple[Difference, Kind]]]:
    """Return by node in what it differs from the rest; without a rest, no node does."""
    own = (
        (difference, kind)
        for difference in fleet.differences
        for kind in (difference.others if difference.rest is not None else ())
    )
    return grouped((node, each) for each in own for node in each[1].nodes)


def type_name(node: NodeSummary) -> str:
    """Return "8 × NVIDIA H100 SXM5 80GB", with the rack of an NVLink domain; or the machine without GPUs."""
    gpus = " + ".join(f"{count} × {model}" for model, count in node.role.gpus)
    return "".join((gpus or role_name(node.role), *(f", rack {each[:8]}" for each in domains_of(node))))


def types_of(nodes: Sequence[WatchedNode]) -> set[str]:
    """Return the types of these nodes."""
    return {type_name(node.summary) for node in nodes if node.summary is not None}


def draw_table(
    nodes: Sequence[WatchedNode],
    differences: OwnDifferences,
    changed_at: float,
    now: float,
    width: int,
    selected: str = "",
    widths: ColumnWidths | None = None,
) -> LazyLines:
    """Draw a row per node; columns in which all rows would be alike or empty are left out.

    `changed_at`: the time of the newest reading that has ended; changes since then are marked.
    """

    def change(node: WatchedNode) -> Run:
        if node.change is None or node.change.at < changed_at:
            return Run("")
        return _short(f"{_MARK} {node.change.what[0]}", _CHANGE_CELLS, Tone.TITLE)

    def count(node: WatchedNode) -> Run:
        return Run(str(len(node.summary.findings) or "") if node.summary is not None else "")

    def difference(node: WatchedNode) -> Run:
        found = differences.get(node.name, ())
        more = f" +{len(found) - 1}" if len(found) > 1 else ""
        label = label_of(found[0][0].fact, found[0][0].slots) if found else ""
        return _short(label, _DIFFERENCE_CELLS - len(more), Tone.PLAIN, more)

    def kind(node: WatchedNode) -> Run:
        return _short(type_name(node.summary), _TYPE_CELLS, Tone.DIM) if node.summary else Run("")

    def age(node: WatchedNode) -> Run:
        never = "never" if node.silent_since is not None else ""
        return Run(ago(now - node.summary.taken_at) if node.summary is not None else never, Tone.DIM)

    columns = [
        Column("node", cells_of(nodes, lambda node: Run(node.name)), 1),
        Column("verdict", cells_of(nodes, _node_verdict), 1),
    ]
    if any(change(node).text for node in nodes):
        columns.append(Column("changed", cells_of(nodes, change), 3))
    columns += [
        Column("", cells_of(nodes, count), 4, to_right=True),
        Column("finding", cells_of(nodes, _problem), 2, least=_PROBLEM_CELLS, grows=True),
    ]
    if any(node.name in differences for node in nodes):
        columns.append(Column("differs in", cells_of(nodes, difference), 6))
    if len(types_of(nodes)) > 1:
        columns.append(Column("type", cells_of(nodes, kind), 7))
    columns.append(Column("read", cells_of(nodes, age), 5))
    return draw_columns(columns, [node.name for node in nodes], width, selected, widths)


def _short(text: str, cells: int, tone: Tone, more: str = "") -> Run:
    runs = cut((Run(text),), cells)
    return Run("".join(run.text for run in runs) + more, tone)


def _node_verdict(node: WatchedNode) -> Run:
    if node.summary is None:
        if node.silent_since is None:
            return Run("… no answer yet", Tone.DIM)
        return Run("? no answer", Tone.BAD)
    word = verdict_drawing.draw(node.summary.verdict)[0]
    return word if node.silent_since is None else word._replace(tone=Tone.DIM)


def _problem(node: WatchedNode) -> Run:
    if node.silent_since is not None:
        return Run(f"no answer since {local_time(node.silent_since, '%H:%M')}: {node.reason}", Tone.BAD)
    summary = node.summary
    if summary is None:
        return Run("")
    if summary.findings:
        first = summary.findings[0]
        return Run(first.title, Tone.BAD if first.severity is Severity.CRITICAL else Tone.WARNING)
    return Run("" if summary.verdict.is_green else summary.verdict.reason)


def draw_node(
    node: WatchedNode, differences: Sequence[tuple[Difference, Kind]], now: float, width: int
) -> list[Line]:
    """Draw everything that is known of a node."""
    lines: list[Line] = []
    if node.silent_since is not None:
        since = local_time(node.silent_since)
        lines.extend(wrapped(f"No answer since {since}: {node.reason}", width, Tone.BAD))
    summary = node.summary
    if summary is None:
        return lines or wrapped("No answer yet.", width, Tone.DIM)
    lines.append(line(*verdict_drawing.draw(summary.verdict)))
    read = f"read {local_time(summary.taken_at)}, {ago(now - summary.taken_at)}"
    lines.extend(wrapped(f"{role_name(summary.role)} · {read}", width, Tone.DIM))
    if node.change is not None:
        lines.extend(wrapped(f"Changed {ago(now - node.change.at)}", width, Tone.TITLE))
        lines += paragraphs(node.change.what, width, Tone.PLAIN, "    ", "  ")
    if summary.findings:
        lines.append((Run(plural(len(summary.findings), "finding").capitalize(), Tone.TITLE),))
        for problem in summary.findings:
            lines.extend(draw_problem(problem, width))
    elif not summary.verdict.is_green:
        lines.extend(wrapped(summary.verdict.reason, width))
    if differences:
        lines.append((Run("Differs from the rest", Tone.TITLE),))
    for difference, own in differences:
        rest = difference.rest.value if difference.rest is not None else ""
        text = f"{label_of(difference.fact, difference.slots)}: {own.value} (rest: {rest})"
        lines += wrapped(text, width, Tone.PLAIN, "    ", "  ")
    return lines
