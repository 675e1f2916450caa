"""What the doctor's screen shows: the newest examination, the selection, the filter.

Knows nothing of Textual.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tui.list_state import ExaminedListState
from widgets.lines import Line, Run, Tone, wrapped

if TYPE_CHECKING:
    from probes.checks.finding import Finding
    from probes.examination import Examination

_TITLES = {"finding": "Finding", "explanation": "In plain words"}


class DoctorState(ExaminedListState):
    """Findings and selection; changes only by `begin`, `take`, `fail` and the keys' methods."""

    def __init__(self) -> None:
        super().__init__()
        self.shows = "finding"
        self.findings: tuple[Finding, ...] = ()
        self._all = False

    def take(self, examination: Examination) -> None:
        """Takes an examination over."""
        from probes.checks.registry import findings

        self._examined(examination)
        self.findings = findings(examination)
        self._keep_selection()

    # Keys

    def select(self, step: int) -> None:
        """Selects the finding `step` further in the list, and shows it."""
        super().select(step)
        if self.selected:
            self.shows = "finding"

    def show(self, what: str) -> None:
        """Shows "finding" or "explanation"; what is shown already gives way to the finding."""
        self.shows = "finding" if self.shows == what else what

    def toggle_all(self) -> None:
        """Lists what passed too, or not."""
        self._all = not self._all
        self._keep_selection()

    def _order(self) -> list[str]:
        return [finding.id for finding in self._listed()]

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

    def _summed_up(self, examination: Examination, as_of: str, width: int) -> list[Line]:
        """The verdict with the findings, and how many there are."""
        from probes.checks.summary import summed_up
        from widgets import findings_drawing, verdict_drawing

        verdict = summed_up(examination.verdict, self.findings)
        head: Line = (
            Run("Doctor ", Tone.TITLE),
            verdict_drawing.origin_run(examination.node.origin),
            Run(" "),
            *verdict_drawing.draw(verdict),
        )
        counted = f"{findings_drawing.counted(self.findings)} · {as_of}"
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
