"""Parse an nccl.conf as NCCL does, with line numbers."""

from __future__ import annotations

import re

from probes.base.text import printable
from probes.facts.jobs.nccl_conf import parse_nccl_conf
from probes.nccl.variables.variable import VARIABLE_NAME
from probes.queries.finding import Severity
from probes.setup.environment.assignments import (
    MAX_ASSIGNMENTS,
    VALUE_LIMIT,
    Assignment,
    FileKind,
    Group,
    ParsedFile,
    Problem,
)

_OTHER = re.compile(r"\s*(?:export\s+)?((?:UCX|FI|NVSHMEM)_[A-Z0-9_]{1,60})\s*=")
_MAX_LINES = 20_000


def parse_conf(text: str) -> ParsedFile:
    """Parse the file; a line counts only if NCCL itself would use it."""
    assignments: list[Assignment] = []
    problems: list[Problem] = []
    first: dict[str, int] = {}
    for number, line in enumerate(text.split("\n")[:_MAX_LINES], 1):
        if len(assignments) + len(problems) >= MAX_ASSIGNMENTS:
            break
        parsed = parse_nccl_conf(line)
        for name, value in parsed.values.items():
            assignments.append(Assignment(name, printable(value, VALUE_LIMIT), number))
            if name in first:
                problems.append(
                    Problem(
                        number,
                        Severity.WARNING,
                        f"{name} is already set on line {first[name]}",
                        "NCCL uses the first line.",
                        "Remove one of the lines",
                        name,
                    )
                )
            first.setdefault(name, number)
            problems.extend(_of_value(name, value, number))
        for ignored in parsed.ignored:
            found = VARIABLE_NAME.search(ignored)
            problems.append(
                Problem(
                    number,
                    Severity.CRITICAL,
                    "NCCL ignores this line",
                    "Spaces and the word “export” become part of the variable's name.",
                    "Write NAME=value, without spaces and without “export”",
                    found[0] if found else "",
                )
            )
        if other := _OTHER.match(line):
            problems.append(
                Problem(
                    number,
                    Severity.WARNING,
                    f"{other[1]} has no effect in nccl.conf",
                    "NCCL reads only its own variables from this file.",
                    "Set it in the job's environment",
                    other[1],
                )
            )
    return ParsedFile(FileKind.NCCL_CONF, (Group("", tuple(assignments)),), tuple(problems))


def _of_value(name: str, value: str, number: int) -> list[Problem]:
    """Find quotation marks, blanks and comments that become part of a value."""
    what = ""
    if value[:1] in "\"'" and value:
        what = "The quotation marks are part of the value"
    elif value != value.strip():
        what = "Spaces before or after the value are part of it"
    elif " #" in value:
        what = "The comment is part of the value"
    if not what:
        return []
    fix = "Write NAME=value; comments need lines of their own"
    detail = "NCCL takes everything after the first “=” as the value."
    return [Problem(number, Severity.CRITICAL, what, detail, fix, name)]
