"""The state of the doctor screen: examination, selection and filter. It does not use Textual."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tui.screens.keys import KEYS
from tui.screens.list_state import ExaminedListState
from widgets.base.lines import Line, Tone, at_most, wrapped

if TYPE_CHECKING:
    from probes.checks.judgment import Judgment
    from probes.queries.finding import Finding
    from probes.snapshot.examination import Examination
    from tui.files.since_ok import SinceOk
    from widgets.doctor.findings import Entry

_TITLES = {"finding": "Finding", "explanation": "In plain words"}


class DoctorState(ExaminedListState):
    """Findings and selection; only `begin`, `set_examination`, `fail` and the methods of keys change it."""

    def __init__(self) -> None:
        super().__init__()
        self.shows = "finding"
        self.judgment: Judgment | None = None
        self._since_ok: SinceOk = None
        self._all = False

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Return all findings of the judgment."""
        return () if self.judgment is None else self.judgment.findings

    def set_examination(self, examination: Examination, judgment: Judgment, since_ok: SinceOk = None) -> None:
        """Show a new examination, and what has changed since the node last worked."""
        self._examined(examination)
        self.judgment, self._since_ok = judgment, since_ok
        self._keep_selection()

    def follow(self, judgment: Judgment, at: float) -> bool:
        """Show the judgment of a reading at this time; return whether there is something new to draw."""
        if self.examination is None or not judgment.is_checked:
            return False
        before, self.judgment = self.judgment, judgment
        is_older = self._set_time(at)
        if before is None or judgment.findings != before.findings:
            self._keep_selection()
        return judgment != before or is_older

    def _keep_selection(self) -> None:
        """Keep the row that a person has chosen; else select the first row, the worst finding."""
        if not self._is_chosen:
            self.selected = ""
        super()._keep_selection()

    # Keys

    def select(self, step: int) -> None:
        """Move the selection by `step` findings, and show the selected finding."""
        super().select(step)
        if self.selected:
            self.shows = "finding"

    def show(self, what: str) -> None:
        """Show "finding" or "explanation"; if that is already shown, the finding."""
        self.shows = "finding" if self.shows == what else what
        self._is_chosen = True  # it is being read

    def toggle_all(self) -> None:
        """List or hide the checks that are ok."""
        self._all = not self._all
        self._keep_selection()

    def _order(self) -> list[str]:
        return [entry.id for entry in self._entries()]

    def _entries(self) -> list[Entry]:
        """Return the rows of the list."""
        from probes.queries.finding import Status
        from widgets.doctor.findings import entries_of

        labels = self._labels
        return entries_of(
            [
                finding
                for finding in self.findings
                if (self._all or finding.status is not Status.PASSED) and self.word in _words(finding, labels)
            ]
        )

    # Drawing

    @property
    def _labels(self) -> Mapping[str, str]:
        """Return the names of GPUs and NICs by BDF."""
        return {} if self.examination is None else self.examination.topology.labels

    @property
    def _entry(self) -> Entry | None:
        return next((entry for entry in self._entries() if entry.id == self.selected), None)

    @property
    def is_finding(self) -> bool:
        """Return whether a finding is selected."""
        return self._entry is not None and self._entry.is_found

    @property
    def has_fix(self) -> bool:
        """Return whether the selected finding has a fix."""
        entry = self._entry
        return entry is not None and entry.first.is_present and entry.first.fix is not None

    @property
    def details_title(self) -> str:
        """Return the title of the lower pane."""
        return _TITLES[self.shows]

    def _draw_summary(self, examination: Examination, as_of: str, width: int) -> list[Line]:
        """Draw the number of findings, and what has changed since the node last worked."""
        from widgets.doctor import findings as findings_drawing

        text = f"{findings_drawing.counted(self.findings)} · {as_of}"
        return [*at_most(wrapped(text, width, Tone.DIM), 1, width), *self._since_line(width)]

    def _since_line(self, width: int) -> list[Line]:
        """Return the line, if there is one and the node has not begun to work since its last check."""
        if self._since_ok is None or self.judgment is None or self.judgment.verdict.is_green:
            return []
        from widgets.fleet.differences import draw_line

        return [draw_line(self._since_ok, width)]

    def list_lines(self, width: int) -> list[Line]:
        """Draw the list."""
        if self.examination is None:
            return []
        from widgets.doctor import findings as findings_drawing

        entries = self._entries()
        if entries:
            return findings_drawing.draw_entries(entries, width, self._labels, self.selected)
        if self.word:
            return wrapped(f"No finding contains {self.word!r}.", width, Tone.DIM)
        how = f"Press {KEYS['all'].display} to list the checks that are ok."
        return wrapped(f"Nothing found. {how}", width, Tone.GOOD)

    def detail_lines(self, width: int) -> list[Line]:
        """Draw the selected entry, or its explanation."""
        entry = self._entry
        if entry is None or self.judgment is None:
            return []
        from widgets.doctor import findings as findings_drawing

        if self.shows == "explanation":
            lines = wrapped(entry.first.title, width, Tone.TITLE)
            lines.extend(wrapped(entry.first.cause, width))
            return [*lines, (), *findings_drawing.explain_path(self.judgment.verdict, width)]
        return findings_drawing.draw_entry(entry, width, self._labels)


def _words(finding: Finding, labels: Mapping[str, str]) -> str:
    names = (labels.get(device, "") for device in finding.devices)
    words = (finding.id, finding.title, finding.ok, finding.area, finding.cause, *finding.devices, *names)
    return " ".join(words).lower()
