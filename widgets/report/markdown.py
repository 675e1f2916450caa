"""The report as Markdown (CommonMark with GitHub's tables), readable as plain text too."""

from __future__ import annotations

import re
from collections.abc import Sequence

from probes.base.text import printable
from probes.setup.report import Change, Report
from widgets.base.lines import plain
from widgets.node import topology as topology_drawing
from widgets.report.page import (
    HOW_TO_MEASURE,
    NO_CHANGES,
    FindingText,
    MatrixText,
    Page,
    ResultText,
    StepText,
    conclusions_of,
    highlights_of,
    page_of,
    results_of,
)

_WIDTH = 100
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_SPECIAL = re.compile(r"[\\`*\[\]|~$]|#(?=\d)|(?<![^\W_])_|_(?![^\W_])")
_LINE_START = re.compile(r"^(?:\d{1,9}(?=[.)](?:\s|$))|(?=[-+=#]))")
_LINKS = re.compile(r"(?i)(\b(?:https?|ftp|mailto|xmpp))(:)|(\bwww)(\.)|()(@)")


def escaped(text: str, with_links: bool = False) -> str:
    """Return one line of text in which nothing is markup, a mention or, unless allowed, a link."""
    line = " ".join(printable(text).split())
    line = "".join(_ENTITIES.get(character, character) for character in line)
    line = _SPECIAL.sub(lambda found: f"\\{found[0]}", line)
    line = _LINE_START.sub(lambda found: f"{found[0]}\\", line, count=1)
    return line if with_links else _LINKS.sub(_as_entity, line)


def _as_entity(found: re.Match[str]) -> str:
    word, mark = [group for group in found.groups() if group is not None]
    return f"{word}&#{ord(mark)};"


def code(text: str) -> str:
    """Return a code span of one line; "" for no text."""
    shown = " ".join(printable(text).split())
    if not shown:
        return ""
    longest = max((len(run) for run in re.findall(r"`+", shown)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if shown[0] == "`" or shown[-1] == "`" else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def block(lines: Sequence[str]) -> list[str]:
    """Return a block of code; its fence is longer than any in the lines."""
    longest = max((len(run) for line in lines for run in re.findall(r"`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}text", *map(printable, lines), fence]


def markdown_of(report: Report, version: str) -> str:
    """Return the Markdown document; `version`: of gdrtop."""
    page = page_of(report, version)
    lines = [
        *_head(page),
        *("", "## Jobs", "", *(f"- {escaped(job)}" for job in page.jobs)),
        *(line for limit in page.limits for line in ("", escaped(limit))),
        *("", "## Topology", "", *_topology(report)),
        *([] if page.matrix is None else ["", "## GPU–NIC matrix", "", *_matrix(page.matrix)]),
        *("", "## Findings", ""),
        *([page.nothing_found] if not page.findings else []),
        *(line for finding in page.findings for line in _finding(finding)),
        *(["", "### Checks that could not run", ""] if page.not_run else []),
        *(f"- {escaped(text)}" for text in page.not_run),
        *("", "## Measured bandwidth", "", *_measured(report)),
        *("", "## Changes by gdrtop", ""),
        *(line for text in page.unread for line in (escaped(text), "")),
        *([NO_CHANGES] if not page.changes else []),
        *(line for when, change in page.changes for line in _change(when, change)),
        *("", "## Versions", "", "| component | version |", "|---|---|"),
        *(f"| {name} | {escaped(value)} |" for name, value, _ in page.versions),
    ]
    return "\n".join(lines) + "\n"


def _head(page: Page) -> list[str]:
    lines = [f"# GPUDirect RDMA on {escaped(page.node)}", ""]
    origin = "" if page.is_warning else f"{escaped(page.origin)} · "
    lines += [f"{escaped(page.when)} · {origin}gdrtop {escaped(page.version)}", ""]
    if page.is_warning:
        lines += [f"**{escaped(page.origin)}**", ""]
    if page.privacy:
        lines += [page.privacy, ""]
    lines += [f"**{escaped(page.verdict)}**", ""]
    if page.reason:
        lines += [escaped(page.reason), ""]
    return [*lines, escaped(page.counts)]


def _topology(report: Report) -> list[str]:
    examination = report.examination
    drawn = topology_drawing.draw(
        examination.node, examination.topology, _WIDTH, highlights=highlights_of(report)
    )
    return block([plain(line) for line in drawn])


def _matrix(matrix: MatrixText) -> list[str]:
    rows = [
        f"| {escaped(label)} | {' | '.join(escaped(text) for text, _ in cells)} |"
        for label, cells in matrix.rows
    ]
    return [
        f"| {escaped(matrix.corner)} | {' | '.join(map(escaped, matrix.columns))} |",
        "|---" * (len(matrix.columns) + 1) + "|",
        *rows,
        *(line for text in matrix.legend for line in ("", escaped(text))),
    ]


def _finding(finding: FindingText) -> list[str]:
    about = " · ".join(filter(None, (finding.severity, code(finding.id), escaped(finding.devices))))
    if finding.same_cause:
        about += f" · same cause as {code(finding.same_cause)}"
    lines = [f"### {finding.mark} {escaped(finding.title)}", "", about, ""]
    for label, text in (("Impact", finding.impact), ("Cause", finding.cause)):
        lines += [f"- **{label}**: {escaped(text)}"] if text else []
    if finding.evidence:
        lines += ["- **Evidence**:"]
        lines += [
            f"    - {' '.join(filter(None, (code(value), code(source))))}"
            for value, source in finding.evidence
        ]
    lines += [f"- **Fix**: {escaped(finding.fix)}"]
    lines += [f"    - {escaped(finding.consequences)}"] if finding.consequences else []
    lines += [f"    - {text}" for step in finding.steps for text in _step(step)]
    lines += [f"    - {escaped(finding.note)}"] if finding.note else []
    return [*lines, f"- **More**: {escaped(finding.reference, with_links=True)}", ""]


def _step(step: StepText) -> list[str]:
    kind = f"{step.more + 1} {escaped(step.kind)}, starting with: " if step.more else ""
    if not step.command:
        return [f"{kind}manual: {escaped(step.why)}"]
    undo = f" (undo: {code(step.undo)})" if step.undo else ""
    more = f" … {step.more} more like this" if step.more else ""
    return [f"{kind}{code(step.command)} {escaped(step.why)}{undo}{more}"]


def _measured(report: Report) -> list[str]:
    results = results_of(report)
    if not results:
        how = [f"- {code(command)} {what}" for command, what in HOW_TO_MEASURE]
        return ["gdrtop has no saved results for this node. To measure, run on the node:", "", *how]
    lines = ["| test | result | limit | when |", "|---|---|---|---|", *map(_result_row, results), ""]
    notes = [f"- {escaped(f'{result.title}: {note}')}" for result in results for note in result.notes]
    means = [line for text in conclusions_of(report) for line in (escaped(text), "")]
    commands = [f"- {code(command)}" for result in results for command in result.commands]
    return [*lines, *means, *notes, *(["", "Commands:", "", *dict.fromkeys(commands)] if commands else [])]


def _result_row(result: ResultText) -> str:
    cells = (f"{result.title}, {result.setup}", f"{result.mark} {result.words}", result.limit, result.when)
    return f"| {' | '.join(map(escaped, cells))} |"


def _change(when: str, change: Change) -> list[str]:
    about = escaped(f"{when} · {change.user} · {change.outcome}")
    lines = [
        f"### {escaped(change.title)}",
        "",
        about,
        "",
        *(block(change.commands) if change.commands else []),
        *(["", f"Measured: {escaped(change.measured)}"] if change.measured else []),
    ]
    if not change.undo:
        return [*lines, "", f"Undo: {escaped(change.no_undo)}", ""]
    return [*lines, "", f"Undo: {code(change.undo_by)}, which runs:", "", *block(change.undo), ""]
