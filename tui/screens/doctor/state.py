"""What the doctor screen shows: the newest examination, the selection, the filter.

Knows nothing of Textual.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tui.screens.list_state import ExaminedListState
from widgets.base.lines import Line, Run, Tone, at_most, width_of, wrapped

if TYPE_CHECKING:
    from probes.queries.finding import Finding
    from probes.snapshot.examination import Examination
    from widgets.doctor.findings import Entry

_MOST_SUMMARY = 4  # lines
_TITLES = {"finding": "Finding", "explanation": "In plain words"}


class DoctorState(ExaminedListState):
    """Findings and selection; changes only by `begin`, `take`, `fail` and the keys' methods."""

    def __init__(self) -> None:
        super().__init__()
        self.shows = "finding"
        self.findings: tuple[Finding, ...] = ()
        self._all = False

    def take(self, examination: Examination) -> None:
        """Take an examination over."""
        from probes.checks.registry import findings

        self._examined(examination)
        self.findings = findings(examination)
        self._keep_selection()

    # Keys

    def select(self, step: int) -> None:
        """Select the finding `step` further in the list, and show it."""
        super().select(step)
        if self.selected:
            self.shows = "finding"

    def show(self, what: str) -> None:
        """Show "finding" or "explanation"; the finding again where that is shown already."""
        self.shows = "finding" if self.shows == what else what

    def toggle_all(self) -> None:
        """Also list the checks that are ok, or not."""
        self._all = not self._all
        self._keep_selection()

    def _order(self) -> list[str]:
        return [entry.id for entry in self._entries()]

    def _entries(self) -> list[Entry]:
        """The rows of the list."""
        from probes.queries.finding import Status
        from widgets.doctor.findings import entries_of

        return entries_of(
            [
                finding
                for finding in self.findings
                if (self._all or finding.status is not Status.PASSED) and self.word in _words(finding)
            ]
        )

    # Drawing

    @property
    def _entry(self) -> Entry | None:
        """The selected row."""
        return next((one for one in self._entries() if one.id == self.selected), None)

    @property
    def is_finding(self) -> bool:
        """Whether a finding is selected."""
        return self._entry is not None and self._entry.is_found

    @property
    def has_fix(self) -> bool:
        """Whether the selected finding has a fix."""
        return self._entry is not None and self._entry.is_found and self._entry.first.fix is not None

    @property
    def details_title(self) -> str:
        """What the lower pane shows."""
        return _TITLES[self.shows]

    def _summed_up(self, examination: Examination, as_of: str, width: int) -> list[Line]:
        """The verdict with the findings, and how many there are."""
        from probes.checks.summary import summarize
        from widgets.doctor import findings as findings_drawing
        from widgets.node import verdict as verdict_drawing

        verdict = summarize(examination.verdict, self.findings)
        origin = verdict_drawing.origin_run(examination.node.origin)
        drawn = verdict_drawing.draw(verdict)
        head: Line = (Run("Doctor ", Tone.TITLE), origin, Run(" "), *drawn)
        if width_of(head) > width:  # the verdict goes before the node's name
            head = (head[0], origin._replace(text=" ".join(origin.text.split()[:1])), Run("  "), *drawn)
        counted = wrapped(f"{findings_drawing.counted(self.findings)} · {as_of}", width, Tone.DIM)
        room = max(1, _MOST_SUMMARY - 1 - len(counted))
        return [head, *counted, *at_most(wrapped(verdict.reason, width, Tone.PLAIN, "  "), room, width)]

    def list_lines(self, width: int) -> list[Line]:
        """The list."""
        if self.examination is None:
            return []
        from widgets.doctor import findings as findings_drawing

        entries = self._entries()
        if entries:
            return findings_drawing.draw_entries(entries, width, self.selected)
        if self.word:
            return wrapped(f"No finding contains {self.word!r}.", width, Tone.DIM)
        return wrapped("Nothing found. Press a to list the checks that are ok.", width, Tone.GOOD)

    def detail_lines(self, width: int) -> list[Line]:
        """The selected entry, or what the finding means."""
        entry = self._entry
        if entry is None or self.examination is None:
            return []
        from widgets.doctor import findings as findings_drawing

        if self.shows == "explanation":
            lines = wrapped(entry.first.title, width, Tone.TITLE)
            lines.extend(wrapped(entry.first.cause, width))
            return [*lines, (), *findings_drawing.explain_path(self.examination.verdict, width)]
        return findings_drawing.draw_entry(entry, width)


def _words(finding: Finding) -> str:
    words = (finding.id, finding.title, finding.ok, finding.area, finding.cause, *finding.devices)
    return " ".join(words).lower()
