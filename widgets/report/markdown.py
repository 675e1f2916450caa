"""The report as Markdown (CommonMark with GitHub's tables), readable as plain text too."""

from __future__ import annotations

import re
from collections.abc import Sequence

from markupsafe import Markup

from probes.base.text import printable
from probes.setup.report import Report
from widgets.base.lines import plain
from widgets.doctor.findings import highlights_of
from widgets.node import topology as topology_drawing
from widgets.report.page import environment, texts_of

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


def code(text: str) -> Markup:
    """Return a code span of one line; "" for no text."""
    shown = " ".join(printable(text).split())
    if not shown:
        return Markup()
    longest = max((len(run) for run in re.findall(r"`+", shown)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if shown[0] == "`" or shown[-1] == "`" else ""
    return Markup(f"{fence}{pad}{shown}{pad}{fence}")


def block(lines: Sequence[str]) -> Markup:
    """Return a block of code; its fence is longer than any in the lines."""
    longest = max((len(run) for line in lines for run in re.findall(r"`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return Markup("\n".join([f"{fence}text", *map(printable, lines), fence]))


def row(texts: Sequence[str]) -> Markup:
    """Return a row of a table."""
    return Markup(f"| {' | '.join(map(escaped, texts))} |")


def markdown_of(report: Report, version: str) -> str:
    """Return the Markdown document; `version`: of gdrtop."""
    examination = report.examination
    topology = topology_drawing.draw(
        examination.node,
        examination.topology,
        _WIDTH,
        highlights=highlights_of(examination, report.judgment.findings),
    )
    found = environment(finalize=_finalized)
    found.filters |= {"code": code, "block": block, "row": row, "linked": _linked}
    template = found.get_template("page.md.j2")
    return template.render(texts_of(report, version), topology=list(map(plain, topology)))


def _linked(text: str) -> Markup:
    return Markup(escaped(text, with_links=True))


def _finalized(value: object) -> str:
    """Escape what no filter has made Markdown."""
    return value if isinstance(value, Markup) else escaped(str(value))
