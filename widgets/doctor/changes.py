"""Draw what an action has changed: the verdict before and after, findings fixed and new."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from probes.checks.judgment import Judgment
from probes.queries.finding import Finding, Status
from widgets.base.lines import Line, Run, Tone, fit, paragraphs, wrapped
from widgets.doctor.findings import mark_of, title_of
from widgets.node.verdict import draw


def draw_change(before: Judgment, after: Judgment, width: int) -> list[Line]:
    """Draw both verdicts, and the findings that differ."""
    return [(Run("CHECKED AGAIN", Tone.TITLE),), *_difference(before, after, ("before", "after"), width)]


def draw_rehearsal(before: Judgment, after: Judgment, not_rehearsed: Sequence[str], width: int) -> list[Line]:
    """Draw what a plan did to a twin of the node, and what the twin could not play."""
    lines: list[Line] = [
        (Run("EXPECTED AFTERWARDS (rehearsed on a copy; this node was not changed)", Tone.TITLE),)
    ]
    lines.extend(_difference(before, after, ("now", "then"), width))
    lines += paragraphs((f"not rehearsed: {words}" for words in not_rehearsed), width, Tone.WARNING, "  ")
    if not_rehearsed:
        lines.extend(wrapped("Steps that were not rehearsed are assumed to succeed.", width, Tone.DIM, "  "))
    return lines


def _difference(before: Judgment, after: Judgment, words: tuple[str, str], width: int) -> list[Line]:
    lines = [*_verdict(words[0], before, width), *_verdict(words[1], after, width)]
    earlier, later = _found(before.findings), _found(after.findings)
    not_run = {finding.id: finding for finding in after.findings if finding.status is Status.UNKNOWN}
    # A finding whose check could not run again is not fixed.
    unknown = [not_run[name] for name in earlier if name in not_run]
    fixed = [finding for name, finding in earlier.items() if name not in later and name not in not_run]
    new = [finding for name, finding in later.items() if name not in earlier]
    for finding in fixed:
        lines.append(_row("fixed", Run("✓", Tone.GOOD), replace(finding, status=Status.PASSED), width))
    lines.extend(_row("unknown", mark_of(finding), finding, width) for finding in unknown)
    lines.extend(_row("new", mark_of(finding), finding, width) for finding in new)
    if not fixed and not new and not unknown:
        lines.extend(wrapped("The findings are the same as before.", width, Tone.DIM, "  "))
    return lines


def _verdict(word: str, judgment: Judgment, width: int) -> list[Line]:
    head: Line = (Run(f"  {word:<8}", Tone.DIM), *draw(judgment.verdict))
    return [fit(head, width), *wrapped(judgment.verdict.reason, width, Tone.DIM, " " * 12)[:2]]


def _found(findings: Sequence[Finding]) -> dict[str, Finding]:
    return {finding.id: finding for finding in findings if finding.status is Status.FOUND}


def _row(word: str, mark: Run, finding: Finding, width: int) -> Line:
    text = title_of(finding) if finding.status is not Status.UNKNOWN else finding.cause
    row: Line = (Run(f"  {word:<8}", Tone.DIM), mark, Run(f" {finding.id}", Tone.TITLE), Run(f" {text}"))
    return fit(row, width)
