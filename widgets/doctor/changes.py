"""What an action has changed: the verdict before and after, findings gone and new."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from probes.checks.summary import summarize
from probes.queries.finding import Finding, Status
from probes.snapshot.verdict import Verdict
from widgets.base.lines import Line, Run, Tone, fit, wrapped
from widgets.doctor.findings import mark_of
from widgets.node.verdict import draw


@dataclass(frozen=True)
class Judged:
    """A node at one moment, as the doctor judged it."""

    verdict: Verdict
    findings: Sequence[Finding]


def draw_change(before: Judged, after: Judged, width: int) -> list[Line]:
    """Before and after, and the findings in which they differ."""
    lines: list[Line] = [(Run("CHECKED AGAIN", Tone.TITLE),)]
    lines.extend(_verdict("before", before, width))
    lines.extend(_verdict("after", after, width))
    was, now = _found(before.findings), _found(after.findings)
    left = {one.id: one for one in after.findings if one.status is Status.UNKNOWN}
    # What could not be looked at again is not gone.
    unsure = [left[name] for name in was if name in left]
    gone = [one for name, one in was.items() if name not in now and name not in left]
    new = [one for name, one in now.items() if name not in was]
    lines.extend(_row("gone", Run("✓", Tone.GOOD), one, width) for one in gone)
    lines.extend(_row("unknown", mark_of(one), one, width) for one in unsure)
    lines.extend(_row("new", mark_of(one), one, width) for one in new)
    if not gone and not new and not unsure:
        lines.extend(wrapped("the findings are the same as before", width, Tone.DIM, "  "))
    return lines


def _verdict(word: str, judged: Judged, width: int) -> list[Line]:
    verdict = summarize(judged.verdict, judged.findings)
    head: Line = (Run(f"  {word:<8}", Tone.DIM), *draw(verdict))
    return [fit(head, width), *wrapped(verdict.reason, width, Tone.DIM, " " * 12)[:2]]


def _found(findings: Sequence[Finding]) -> dict[str, Finding]:
    return {one.id: one for one in findings if one.status is Status.FOUND}


def _row(word: str, mark: Run, finding: Finding, width: int) -> Line:
    told = finding.title if finding.status is not Status.UNKNOWN else finding.cause
    row: Line = (Run(f"  {word:<8}", Tone.DIM), mark, Run(f" {finding.id}", Tone.TITLE), Run(f" {told}"))
    return fit(row, width)
