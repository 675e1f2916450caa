"""What the doctor's screen shows: the newest examination, the selection, the filter.

Knows nothing of Textual.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from widgets.lines import Line, Run, Tone, wrapped

if TYPE_CHECKING:
    from probes.checks.finding import Finding
    from probes.examination import Examination

_TITLES = {"finding": "Finding", "explanation": "In plain words"}


class DoctorState:
    """Findings and selection; changes only by `begin`, `take`, `fail` and the keys' methods."""

    def __init__(self) -> None:
        self.examination: Examination | None = None
        self.selected = ""
        self.word = ""
        self.shows = "finding"
        self.findings: tuple[Finding, ...] = ()
        self._all = False
        self._reading = False
        self._failure = ""

    def begin(self) -> None:
        """An examination has been asked for."""
        self._reading = True

    def fail(self, what: str) -> None:
        """The examination could not be made."""
        self._reading, self._failure = False, what

    def take(self, examination: Examination) -> None:
        """Takes an examination over."""
        from probes.checks.registry import findings

        self.examination, self._reading, self._failure = examination, False, ""
        self.findings = findings(examination)
        self._keep_selection()

    # Keys

    def select(self, step: int) -> None:
        """Selects the finding `step` further in the list."""
        order = [finding.id for finding in self._listed()]
        if order:
            at = order.index(self.selected) + step if self.selected in order else 0
            self.selected = order[max(0, min(len(order) - 1, at))]
            self.shows = "finding"

    def show(self, what: str) -> None:
        """Shows "finding" or "explanation"; what is shown already gives way to the finding."""
        self.shows = "finding" if self.shows == what else what

    def toggle_all(self) -> None:
        """Lists what passed too, or not."""
        self._all = not self._all
        self._keep_selection()

    def filter(self, word: str) -> None:
        """Lists only what contains the word."""
        self.word = word.strip().lower()
        self._keep_selection()

    def _keep_selection(self) -> None:
        listed = [finding.id for finding in self._listed()]
        if self.selected not in listed:
            self.selected = listed[0] if listed else ""

    def _listed(self) -> list[Finding]:
        from probes.checks.finding import Status

        return [
            finding
            for finding in self.findings
            if (self._all or finding.status is not Status.PASSED) and self.word in _words(finding)
        ]

    # Drawing

    @property
    def details_title(self) -> str:
        """What the lower pane shows."""
        return _TITLES[self.shows]

    def summary(self, width: int) -> list[Line]:
        """The verdict with the findings, and how many there are."""
        if self.examination is None:
            told = f"✗ {self._failure}" if self._failure else "Examining the node …"
            return wrapped(told, width, Tone.BAD if self._failure else Tone.DIM)
        from probes.checks.summary import summed_up
        from widgets import findings_drawing, verdict_drawing

        verdict = summed_up(self.examination.verdict, self.findings)
        at = time.strftime("%H:%M:%S", time.gmtime(self.examination.node.taken_at))
        state = self._failure or ("examining …" if self._reading else f"examined {at}")
        head: Line = (
            Run("Doctor ", Tone.TITLE),
            verdict_drawing.origin_run(self.examination.node.origin),
            Run(" "),
            *verdict_drawing.draw(verdict),
        )
        counted = f"{findings_drawing.counted(self.findings)} · {state}"
        return [head, *wrapped(verdict.reason, width, Tone.PLAIN, "  ")[:2], (Run(counted, Tone.DIM),)]

    def list_lines(self, width: int) -> list[Line]:
        """The list."""
        if self.examination is None:
            return []
        from widgets import findings_drawing

        listed = self._listed()
        if listed:
            return findings_drawing.draw_list(listed, width, self.selected)
        told = f"Nothing contains {self.word!r}." if self.word else "Nothing found; a lists what passed."
        return wrapped(told, width, Tone.GOOD if not self.word else Tone.DIM)

    def detail_lines(self, width: int) -> list[Line]:
        """The selected finding, or what it means."""
        finding = next((one for one in self.findings if one.id == self.selected), None)
        if finding is None or self.examination is None:
            return []
        from widgets import findings_drawing

        if self.shows == "explanation":
            lines = wrapped(finding.title, width, Tone.TITLE)
            lines.extend(wrapped(finding.cause, width))
            return [*lines, (), *findings_drawing.explain_way(self.examination.verdict.path, width)]
        return findings_drawing.draw_details(finding, width)


def _words(finding: Finding) -> str:
    return " ".join((finding.id, finding.title, finding.area, *finding.devices)).lower()
