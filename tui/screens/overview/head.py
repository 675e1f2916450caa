"""The head of the overview: the verdict, and what is running now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from probes.base.origin import Origin, Source
from widgets.base.figures import local_time
from widgets.base.lines import Line, Run, Tone
from widgets.node.head import Head

if TYPE_CHECKING:  # the probes are imported after the first paint
    from probes.snapshot.verdict import Verdict


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
        return self.pace.startswith("every")

    def status(self) -> Line:
        """Return what is running, that the node does not answer, and a pause or position in a recording."""
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
