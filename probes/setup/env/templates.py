"""Templates of YAML (Helm, Jinja, ERB, envsubst): what can be read before they are filled in.

Line numbers stay. What a template inserts becomes `$TEMPLATE`, whose value is unknown like that of any
variable; directives such as {{ if }} and {% for %} vanish, and so does a line that is only a placeholder.
"""

from __future__ import annotations

import re

from probes.base.frozen import frozen
from probes.nccl.variables.catalogue import VARIABLE_NAME
from probes.setup.env.assignments import MAX_ASSIGNMENTS, Assignment, read_value

MARK = "$TEMPLATE"
_ENDS = {"{{": "}}", "{%": "%}", "{#": "#}", "<%": "%>"}
_BEGIN = re.compile(r"\{\{|\{%|\{#|<%")
_DIRECTIVE = re.compile(
    r"\{\{-? ?(?:if|else|end|range|with|define|block|template|break|continue|/\*|\$[A-Za-z_]\w{0,63} ?:?=)"
)
# A line that is only a placeholder, or that leaves something out.
_ALONE = re.compile(
    r"[ \t]*(?:\$\{?[A-Za-z_]\w{0,63}\}?|@[A-Z_]{1,64}@|%[A-Z_]{1,64}%|<[A-Z_ -]{1,64}>)[ \t]*"
)
_ELISION = re.compile(r"[ \t]+\.{3}[ \t]*|[ \t]*\u2026[ \t]*")
_NAME_LINE = re.compile(rf"[ \t-]*name: ?[\"']?({VARIABLE_NAME.pattern})[\"']?,?[ \t]*")
_VALUE_LINE = re.compile(r"[ \t]*value:[ \t]*(\S.*)")
_PAIR = re.compile(rf"[ \t-]*(?:export )?[\"']?({VARIABLE_NAME.pattern})[\"']?[ \t]*[:=][ \t]*(\S.*)")


@frozen
class Filled:
    """The text that is left, with the same lines."""

    text: str
    dropped: int  # lines; what they insert may be anything


def fill_template(text: str) -> Filled | None:
    """Return what is left of a template; None: the text is none."""
    parts: list[str] = []
    place, found = 0, False
    while match := _BEGIN.search(text, place):
        stop = text.find(_ENDS[match[0]], match.end())
        if stop < 0:
            break
        inner = text[match.start() : stop + 2]
        is_directive = match[0] in ("{%", "{#") or bool(_DIRECTIVE.match(inner))
        parts += [text[place : match.start()], "" if is_directive else MARK, "\n" * inner.count("\n")]
        place, found = stop + 2, True
    lines = ("".join(parts) + text[place:]).split("\n")
    kept = ["" if _is_alone(line) else line for line in lines]
    dropped = sum(before != after for before, after in zip(lines, kept, strict=True))
    return Filled("\n".join(kept), dropped) if found or dropped else None


def _is_alone(line: str) -> bool:
    return bool(_ALONE.fullmatch(line) or _ELISION.fullmatch(line))


def variables_by_line(text: str, first_line: int = 1) -> tuple[Assignment, ...]:
    """Return the variables of text that is no YAML even so: NAME: value, NAME=value, `name` and `value`."""
    found: list[Assignment] = []
    name, name_line = "", 0
    for number, line in enumerate(text.split("\n"), first_line):
        if len(found) >= MAX_ASSIGNMENTS:
            break
        if match := _NAME_LINE.fullmatch(line):
            name, name_line = match[1], number
        elif match := _VALUE_LINE.fullmatch(line):
            if name and number - name_line <= 1:
                found.append(_assignment(name, match[1], name_line))
            name = ""
        elif match := _PAIR.fullmatch(line):
            found.append(_assignment(match[1], match[2], number))
    return tuple(found)


def _assignment(name: str, text: str, line: int) -> Assignment:
    value, unless = read_value(text.strip().strip("\"'"))
    return Assignment(name, value, line, unless_set=unless)
