"""The nodes of a watched fleet as a table, and one of them in detail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from probes.base.text import plural
from probes.fleet.compare import Difference, Fleet, Kind
from probes.fleet.fleet_watch import WatchedNode
from probes.fleet.summary import Role
from probes.queries.finding import Severity
from widgets.base.columns import Column, ColumnWidths, cells_of, draw_columns
from widgets.base.figures import ago, local_time
from widgets.base.lines import LazyLines, Line, Run, Tone, cut, line, wrapped
from widgets.fleet.answer import draw_problem
from widgets.fleet.differences import label_of, role_name
from widgets.node import verdict as verdict_drawing

_MARK = "◆"
_CHANGE_CELLS = 22
_DIFFERENCE_CELLS = 24
_TYPE_CELLS = 34
_PROBLEM_CELLS = 24  # at least

OwnDifferences = Mapping[str, Sequence[tuple[Difference, Kind]]]
"""By node: in what it differs from the rest, and its own value."""


def differences_of(fleet: Fleet) -> dict[str, list[tuple[Difference, Kind]]]:
    """Return by node in what it differs from the rest; without a rest, no node does."""
    found: dict[str, list[tuple[Difference, Kind]]] = {}
    for difference in fleet.differences:
        for kind in difference.others if difference.rest is not None else ():
            for node in kind.nodes:
                found.setdefault(node, []).append((difference, kind))
    return found


def type_name(role: Role) -> str:
    """Return "8 × NVIDIA H100 SXM5 80GB", or the machine if it has no GPU."""
    gpus = " + ".join(f"{count} × {model}" for model, count in role.gpus)
    return gpus or role_name(role)


def types_of(nodes: Sequence[WatchedNode]) -> set[str]:
    """Return the types of these nodes."""
    return {type_name(node.summary.role) for node in nodes if node.summary is not None}


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
        return (
            _short(
                label_of(found[0][0].fact, found[0][0].slots), _DIFFERENCE_CELLS - len(more), Tone.PLAIN, more
            )
            if found
            else Run("")
        )

    def kind(node: WatchedNode) -> Run:
        return _short(type_name(node.summary.role), _TYPE_CELLS, Tone.DIM) if node.summary else Run("")

    def age(node: WatchedNode) -> Run:
        never = "never" if node.silent_since is not None else ""
        return Run(ago(now - node.summary.taken_at) if node.summary is not None else never, Tone.DIM)

    columns = [
        Column("node", cells_of(nodes, lambda node: Run(node.name)), 1),
        Column("verdict", cells_of(nodes, _verdict), 1),
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


def _verdict(node: WatchedNode) -> Run:
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
        for what in node.change.what:
            lines.extend(wrapped(what, width, Tone.PLAIN, "    ", "  "))
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
        lines.extend(
            wrapped(
                f"{label_of(difference.fact, difference.slots)}: {own.value} (rest: {rest})",
                width,
                Tone.PLAIN,
                "    ",
                "  ",
            )
        )
    return lines
