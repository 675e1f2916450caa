"""Guided setup: the steps in order, and the selected one with its reason and its commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tui.screens import save_and_copy
from tui.screens.keys import bind, leave_keys
from tui.screens.list_screen import FILTER_KEY, REFRESH_KEY, ExaminedListScreen
from tui.screens.list_state import ExaminedListState
from tui.screens.request import Request
from widgets.base.lines import Line, Tone, wrapped

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
        if now is not None and now.is_over and before is not None and not before.is_over:
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
        steps = () if self.guide is None else self.guide.listed
        return [step for step in steps if self.word in f"{step.id} {step.title} {step.state.value}".lower()]

    # Drawing

    def _draw_summary(self, examination: Examination, as_of: str, width: int) -> list[Line]:
        """Draw the path, how many steps are done, and what comes next."""
        from widgets.setup import draw_summary

        lines = [] if self.guide is None else draw_summary(self.guide, width, as_of)
        why = f"gdrtop cannot run commands here: {self._refusal}." if self._refusal else ""
        return [*lines, *(wrapped(why, width, Tone.WARNING) if why else ())]

    def list_lines(self, width: int) -> list[Line]:
        """Draw the list."""
        from widgets.setup import draw_step_row

        listed = self._listed()
        if listed:
            return [draw_step_row(step, width, step.id == self.selected) for step in listed]
        return wrapped(f"No step contains {self.word!r}.", width, Tone.DIM) if self.word else []

    def detail_lines(self, width: int) -> list[Line]:
        """Draw the selected step, the paths, or the node."""
        from widgets.setup import draw_path_table, draw_situation, draw_step

        if self.guide is None:
            return []
        if self.view == "paths":
            return draw_path_table(self.guide, width)
        if self.view == "node":
            return draw_situation(self.guide, width)
        step = self.step
        return [] if step is None else draw_step(step, width)


class SetupScreen(ExaminedListScreen[GuideState]):
    """The steps, with the selected one below."""

    BINDINGS = [  # noqa: RUF012 - Textual's own type
        FILTER_KEY,
        REFRESH_KEY,
        bind("view", "view"),
        bind("path", "path"),
        bind("leave_out", "leave_out"),
        bind("write", "write", label="Script"),
        *leave_keys("setup"),
    ]
    CONDITIONAL = ("path", "leave_out", "write")

    LIST = "guide"
    DETAILS = "step"
    TITLES = ("Setup", "Steps", "Step")
    FILTER = "A word in the title or the state. Esc: clear"

    def _draw_panes(self) -> None:
        self._details.border_title = self._state.detail_title
        super()._draw_panes()

    def on_screen_resume(self) -> None:
        """Have the guide read again."""
        self.post_message(Request("read_setup"))

    def why_not(self, action: str) -> str | None:
        if action in self.CONDITIONAL and self._state.guide is None:
            return "still reading the node."
        return super().why_not(action)

    # Keys

    def action_open(self) -> None:
        """Show the plan or the test of the selected step, else the step alone."""
        step = self._state.step
        if self._state.view == "step" and step is not None and step.can_begin:
            self.post_message(Request("begin_step", step.id))
        else:
            super().action_open()

    def action_view(self) -> None:
        self._state.next_view()
        self._draw_from_top()

    def action_path(self) -> None:
        self.post_message(Request("change_path"))

    def action_leave_out(self) -> None:
        if self._state.selected:
            self.post_message(Request("skip_step", self._state.selected))

    def action_write(self) -> None:
        """Write all remaining commands to a script."""
        from probes.facts.node import derivation
        from probes.setup.steps.guide import remaining_plans
        from tui.actions.script import script_of_all

        guide = self._state.guide
        plans = () if guide is None else remaining_plans(guide)
        if guide is None or not plans:
            self.notify("No command is left to run.", markup=False)
            return
        text = script_of_all("Set up GPUDirect RDMA", plans, derivation(guide.situation.examination.node))
        save_and_copy.save(self, "gdrtop-setup", sh=text)
