"""The state of the setup screen: the guide, the selected step, and what the lower pane shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from probes.setup.step import StepState
from tui.screens.list_state import ExaminedListState
from widgets.base.lines import Line, Run, Tone, wrapped

if TYPE_CHECKING:
    from probes.setup.step import SetupStep
    from probes.setup.steps.guide import Guide
    from probes.snapshot.examination import Examination

VIEWS = ("step", "paths", "node")
_TITLES = {"step": "Step", "paths": "What each path requires", "node": "State of this node"}


class GuideState(ExaminedListState):
    """The guide and the selection; only `set_guide`, `fail` and the methods of keys change it."""

    def __init__(self) -> None:
        super().__init__()
        self.guide: Guide | None = None
        self.view = VIEWS[0]
        self._refusal = ""

    def set_guide(self, guide: Guide, refusal: str) -> None:
        """Show this guide; `refusal` is why nothing can run here, or ""."""
        before, now = self.step, guide.step(self.selected)
        self._examined(guide.situation.examination)
        self.guide, self._refusal = guide, refusal
        is_over = now is not None and now.state in (StepState.DONE, StepState.SKIPPED)
        if is_over and before is not None and before.state not in (StepState.DONE, StepState.SKIPPED):
            following = guide.next_step  # the selected step was completed: go on
            self.selected = self.selected if following is None else following.id
        self._keep_selection()

    @property
    def step(self) -> SetupStep | None:
        """Return the selected step."""
        return None if self.guide is None else self.guide.step(self.selected)

    def next_view(self) -> None:
        """Show the next view in the lower pane."""
        self.view = VIEWS[(VIEWS.index(self.view) + 1) % len(VIEWS)]

    @property
    def detail_title(self) -> str:
        """Return the title of the lower pane."""
        return _TITLES[self.view]

    def _order(self) -> list[str]:
        return [step.id for step in self._listed()]

    def _first(self) -> str:
        following = None if self.guide is None else self.guide.next_step
        listed = self._order()
        return following.id if following is not None and following.id in listed else super()._first()

    def _listed(self) -> list[SetupStep]:
        steps = () if self.guide is None else self.guide.steps
        return [step for step in steps if self.word in f"{step.id} {step.title} {step.state.value}".lower()]

    # Drawing

    def _draw_summary(self, examination: Examination, as_of: str, width: int) -> list[Line]:
        """Draw the path, how many steps are done, and what comes next."""
        from widgets.node.verdict import origin_run
        from widgets.setup.guide import draw_summary

        head: Line = (
            Run("Setup ", Tone.TITLE),
            origin_run(examination.node.origin),
            Run(f" · {as_of}", Tone.DIM),
        )
        lines = [head, *(draw_summary(self.guide, width) if self.guide is not None else ())]
        why = f"gdrtop cannot run commands here: {self._refusal}." if self._refusal else ""
        return [*lines, *(wrapped(why, width, Tone.WARNING) if why else ())]

    def list_lines(self, width: int) -> list[Line]:
        """Draw the list."""
        from widgets.setup.guide import draw_step_row

        listed = self._listed()
        if listed:
            return [draw_step_row(step, width, step.id == self.selected) for step in listed]
        return wrapped(f"No step contains {self.word!r}.", width, Tone.DIM) if self.word else []

    def detail_lines(self, width: int) -> list[Line]:
        """Draw the selected step, the paths, or the node."""
        from widgets.setup.guide import draw_path_table, draw_situation, draw_step

        if self.guide is None:
            return []
        if self.view == "paths":
            return draw_path_table(self.guide, width)
        if self.view == "node":
            return draw_situation(self.guide, width)
        step = self.step
        return [] if step is None else draw_step(step, width)
