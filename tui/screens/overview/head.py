"""The head of the overview: the verdict, the node, what is running, and the time, in at most two rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from probes.base.origin import Origin, Source
from tui.runtime.schedules import USUAL_PACE
from widgets.base.figures import local_time
from widgets.base.lines import Line, Run, Tone, fit, width_of

if TYPE_CHECKING:  # the probes are imported after the first paint
    from probes.snapshot.verdict import Verdict


class Head(NamedTuple):
    """The parts of the head; verdict and status are always shown, the others if there is room."""

    verdict: Line
    reason: str = ""
    host: str = ""
    source: str = ""  # "SIMULATED"; "" for this live node
    label: str = ""  # which recording, tree or simulated node
    status: Line = ()  # what is running or being recorded, or that the node does not answer
    pace: str = ""  # the usual one; another one is part of the status
    clock: str = ""


class _Row(NamedTuple):
    """What the first row shows in addition to the verdict."""

    pace: bool = False
    names: bool = False  # the program's and the host's
    label: bool = False
    clock: bool = False
    source: bool = False
    status: bool = False


# From everything down to the verdict alone. The second row shows the rest, except pace and names.
_ROWS = (
    _Row(pace=True, names=True, label=True, clock=True, source=True, status=True),
    _Row(names=True, label=True, clock=True, source=True, status=True),
    _Row(names=True, clock=True, source=True, status=True),
    _Row(clock=True, source=True, status=True),
    _Row(source=True, status=True),
    _Row(status=True),
    _Row(),
)


def draw(head: Head, width: int) -> list[Line]:
    """Draw one row if everything fits, else two; a reason that does not fit ends in …."""
    for row in _ROWS:
        left, right = _left(head, row), _right(head, row)
        if width_of(left) + width_of(right) <= width:
            break
    reason = Run(f" · {head.reason}" if head.reason else "")
    rest = _right(head, _Row(clock=not row.clock, status=not row.status))
    label = () if row.label else _source(head.label if row.source else f"{head.source} {head.label}")
    room = width - width_of(right)
    if not width_of(label) and not width_of(rest) and width_of((*left, reason)) <= room:
        return [(*fit((*left, reason), room), *right)]
    lines: list[Line] = [(*fit(left, room), *right)]
    if width_of(label) or width_of(rest) or head.reason:
        second: Line = (Run(" "), *label, Run(head.reason))
        lines.append((*fit(second, max(0, width - width_of(rest))), *rest))
    return lines


def _left(head: Head, row: _Row) -> Line:
    label = f"{head.source} {head.label if row.label else ''}".strip() if row.source else ""
    names = f"{head.host} " if head.host and not head.label.startswith(head.host) else ""
    return (
        Run(" gdrtop  " if row.names else " ", Tone.TITLE),
        Run(f"{names} " if row.names and names else ""),
        *_source(label),
        *head.verdict,
    )


def _source(text: str) -> Line:
    return (Run(f" {text.strip()} ", Tone.CURSOR), Run("  ")) if text.strip() else ()


def _right(head: Head, row: _Row) -> Line:
    return (
        *(head.status if row.status else ()),
        Run(f"  {head.pace}" if row.pace and head.pace else "", Tone.DIM),
        Run(f"  {head.clock}" if row.clock and head.clock else "", Tone.DIM),
    )


@dataclass
class HeadState:
    """What the head shows besides the verdict."""

    origin: Origin
    pace: str = ""  # "every 1 s", or that readings have stopped
    recording: str = ""  # how far a recording is
    action: str = ""  # how far an action is
    test: str = ""  # how far a bandwidth test is
    silence: float = 0.0  # seconds without an answer; 0: the node answers
    is_slow: bool = False  # the node answers slowly, it is not silent
    failure: str = ""  # why reading failed
    taken_at: float = 0.0  # of the newest reading, seconds since 1970; 0: none yet

    def head(self, hostname: str, verdict: Verdict | None, verdict_line: Line) -> Head:
        """Return the parts of the head."""
        line: Line = (Run("reading…", Tone.DIM),)
        reason = ""
        if self.failure:
            line, reason = (Run("✗ reading failed", Tone.BAD),), self.failure
        elif verdict is not None:
            line, reason = verdict_line, verdict.reason
        is_live = self.origin.source is Source.LIVE
        return Head(
            line,
            reason,
            hostname,
            "" if is_live else self.origin.source.name,
            "" if is_live else self.origin.label,
            self.status(),
            self.pace if self._is_usual else "",
            local_time(self.taken_at) if self.taken_at else "",
        )

    @property
    def _is_usual(self) -> bool:
        return self.pace == USUAL_PACE

    def status(self) -> Line:
        """Return what is running, a silence of the node, and a pause, a position or an unusual interval."""
        silence = ""
        if self.silence:
            seconds = f"{self.silence:.0f} s"
            silence = f"slow: {seconds} so far" if self.is_slow else f"no answer for {seconds}"
        words = (
            (silence, Tone.WARNING if self.is_slow else Tone.BAD),
            (self.action, Tone.WARNING),
            (self.test, Tone.WARNING),
            (self.recording, Tone.BAD),
            ("" if self._is_usual else self.pace, Tone.DIM),
        )
        return tuple(Run(f"  {word}", tone) for word, tone in words if word)
