"""`gdrtop check --profile`: the criteria of an audit, each passed, failed or not shown, with its evidence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TextIO, TypedDict

from probes.acceptance.profile import (
    MOST_BYTES,
    SHIPPED,
    Answer,
    Answered,
    Outcome,
    Profile,
    ProfileError,
    answered,
    counted,
    outcome_of,
    parse_profile,
    shipped,
)
from probes.checks.judgment import Judgment
from probes.facts.node import Node
from probes.snapshot.examination import Examination
from tui.bandwidth.slow_results import saved_results
from tui.command_line.arguments import UsageError
from tui.files.read_file import read_small
from tui.runtime.json_values import ExitStatus, node_document, object_of, write_json
from tui.runtime.printing import heading, print_lines, text_width
from widgets.base.lines import Line, Run, Tone, line, wrapped

_MARKS = {Answer.PASS: ("✓", Tone.GOOD), Answer.FAIL: ("✗", Tone.BAD), Answer.NOT_SHOWN: ("?", Tone.DIM)}
_STATUSES: dict[Outcome, ExitStatus] = {Outcome.PASSED: 0, Outcome.FAILED: 2, Outcome.INCOMPLETE: 3}


class ProfileDocument(TypedDict):
    """`gdrtop check --profile NAME --json`."""

    profile: str
    title: str
    reference: str  # where the criteria were read
    date: str  # of the reference
    exit_status: Literal[0, 2, 3]  # 0 all passed, 2 one failed, 3 one is not shown and none failed
    criteria: tuple[Answered, ...]  # in the order of the profile


def read_profile(name: str) -> Profile:
    """Return a shipped profile, or that of a file; raise UsageError."""
    if name in SHIPPED:
        return shipped(name)
    try:
        text = read_small(name, MOST_BYTES, "a profile").decode("utf-8", "replace")
        return parse_profile(name, text)
    except OSError as error:
        hint = f"; gdrtop brings {', '.join(SHIPPED)}" if "/" not in name else ""
        raise UsageError(f"profile {name}: {error.strerror or error}{hint}") from None
    except ProfileError as error:
        raise UsageError(f"profile {name}: {error}") from None


def write_profile(
    profile: Profile, examination: Examination, judgment: Judgment, at: float, out: TextIO, as_json: bool,
    ascii_only: bool = False
) -> int:  # fmt: skip
    """Answer the criteria for a node, print them, and return the exit status."""
    node = examination.node
    answers = answered(profile, examination, judgment, saved_results(node.origin))
    status = _STATUSES[outcome_of(answers)]
    if as_json:
        write_json(_json(profile, answers, node, at, status), out)
    else:
        print_lines(_text(profile, answers, node, text_width(out)), out, ascii_only)
    return status


def _json(
    profile: Profile, answers: Sequence[Answered], node: Node, at: float, status: ExitStatus
) -> dict[str, Any]:
    content: dict[str, object] = {
        "profile": profile.name,
        "title": profile.title,
        "reference": profile.source,
        "date": profile.date,
        "exit_status": status,
        "criteria": tuple(answers),
    }
    return node_document("profile", node, at, object_of(content))


def _text(profile: Profile, answers: Sequence[Answered], node: Node, width: int) -> list[Line]:
    lines: list[Line] = [heading(node), line(profile.title)]
    source = ", ".join(filter(None, (profile.source, profile.date)))
    lines.extend(wrapped(source, width, Tone.DIM, "  ") if source else ())
    lines.extend([(), line(counted(answers)), ()])
    cells = max(len(each.id) for each in answers)
    for each in answers:
        mark, tone = _MARKS[each.answer]
        begin = (Run(f"{mark} ", tone), Run(f"{each.id:{cells}}  ", Tone.TITLE))
        text = wrapped(each.text, max(width - cells - 4, 20), Tone.PLAIN)
        lines.append((*begin, *text[0]))
        lines.extend((Run(" " * (cells + 4)), *row) for row in text[1:])
        for said in each.evidence:
            lines.extend(wrapped(said, width, Tone.DIM, "    ", "    "))
    return lines
