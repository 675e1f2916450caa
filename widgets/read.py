"""What a text means: what it proves, what follows from it, and what could not be read."""

from __future__ import annotations

from probes.base.grouping import grouped
from probes.base.text import join_limited, plural
from probes.messages.message import Weight
from probes.read.reading import Reading, Statement
from widgets.base.lines import Line, Tone, labeled_below, line, listed, section, wrapped

_MOST = 24  # statements of one section
_MARKS = {"gdr": ("✓", Tone.GOOD), "nvlink": ("✓", Tone.GOOD), "unknown": ("?", Tone.PLAIN)}
_LABEL = 8


def draw(reading: Reading, width: int) -> list[Line]:
    """Return all lines, at most `width` cells each."""
    if not reading.kinds:
        known = "gdrtop knows no line of this text. gdrtop help read lists what it can read."
        return [*wrapped(f"? {known}", width), *_unread(reading, width)]
    starts = _first(reading, width)
    lines = list(starts)
    for reason in () if reading.log_verdict is None else reading.log_verdict.reasons:
        places = ", ".join(map(str, reason.places))
        lines += listed(f"- {reason.text}{f' ({places})' if places else ''}", width)
    groups = grouped((statement.weight, statement) for statement in reading.statements)
    follows = groups.pop(Weight.FOLLOWS, [])
    for weight, title in _TITLES.items():
        statements, is_short = groups.get(weight, []), weight is Weight.HARMLESS
        shown = [row for each in statements[:_MOST] for row in _statement(each, width, is_short)]
        left = len(statements) - _MOST
        lines += section(
            title, [*shown, *([line(f"  and {left} more (--json shows all)")] if left > 0 else [])]
        )
    if reading.proven.path != "unknown":
        rows = [row for text in reading.shown[:_MOST] for row in listed(f"- {text}", width)]
        lines += section("Tables and files", rows)
    lines += section(
        "Follows from other lines", [row for each in follows[:_MOST] for row in _statement(each, width, True)]
    )
    if not starts:
        lines = [*lines[bool(lines) :], (), *wrapped(f"{reading.proven.text}.", width)]
    lines += [(), *wrapped(_kinds(reading), width)]
    return [*lines, *_unread(reading, width)]


def _first(reading: Reading, width: int) -> list[Line]:
    """Return what the text proves of the path; of tables, which prove nothing, what they show.

    Nothing, if what follows says more.
    """
    if reading.proven.path == "unknown":
        if reading.shown:
            shown = [row for text in reading.shown[:_MOST] for row in wrapped(text, width)]
            return [*shown, *wrapped(f"{reading.proven.text}.", width, Tone.DIM)]
        if {Weight.CRITICAL, Weight.WARNING, Weight.NOTE} & {row.weight for row in reading.statements}:
            return []
    mark, tone = _MARKS.get(reading.proven.path, ("✗", Tone.BAD))
    place = f" ({reading.proven.place})" if reading.proven.place is not None else ""
    return wrapped(f"{mark} {reading.proven.text}{place}", width, tone)


_TITLES = {
    Weight.CRITICAL: "Errors",
    Weight.WARNING: "Warnings",
    Weight.NOTE: "Notes",
    Weight.HARMLESS: "Harmless",
}
_STATEMENT_MARKS = {Weight.CRITICAL: ("✗", Tone.BAD), Weight.WARNING: ("▲", Tone.WARNING)}


def _statement(statement: Statement, width: int, is_short: bool) -> list[Line]:
    mark, tone = _STATEMENT_MARKS.get(statement.weight, ("-", Tone.PLAIN))
    where = [str(statement.place)] if statement.place is not None else []
    if statement.count > 1:
        where.append(f"{statement.count} lines")
    seen = f" ({', '.join(where)})" if where else ""
    lines = listed(f"{mark} {statement.title}{seen}", width, tone)
    texts = [
        ("Also", "; ".join(statement.more)),
        ("Line", statement.text),
        ("Cause", statement.cause),
        ("Fix", statement.fix),
    ]
    for label, text in texts[2:3] if is_short else texts:
        lines += labeled_below(label, text, width, _LABEL)
    return lines


def _kinds(reading: Reading) -> str:
    kinds = [
        f"{kind.name}{'' if kind.is_sure else ' (looks like it)'}: {plural(kind.lines, 'line')}"
        for kind in reading.kinds
    ]
    return f"Read: {join_limited(kinds, 12)}."


def _unread(reading: Reading, width: int) -> list[Line]:
    if not reading.unread:
        return []
    count = f"{plural(reading.unread, 'line')} of {reading.lines}"
    lines: list[Line] = [*wrapped(f"Not read: {count}, which gdrtop does not know.", width)]
    return [*lines, *(line(f"  {text}"[:width]) for text in reading.unread_lines[:3])]
