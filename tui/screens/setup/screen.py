"""Guided setup: the steps in order, and the selected one with its reason and its commands."""

from __future__ import annotations

from dataclasses import dataclass

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import Input

from tui.screens import save_and_copy
from tui.screens.key_footer import KeyFooter
from tui.screens.keys import bind, leave_keys
from tui.screens.list_screen import FILTER_KEY, REFRESH_KEY, ExaminedListScreen, static_view
from tui.screens.setup.state import GuideState
from widgets.base.lines_view import LinesView


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

    @dataclass
    class StepChosen(Message):
        """Run what completes a step, after showing it."""

        step: str

    @dataclass
    class SkipRequested(Message):
        """Skip a step, or take it up again."""

        step: str

    class PathRequested(Message):
        """Use the other path."""

    class Resumed(Message):
        """The screen is shown again, after a test or an action perhaps."""

    def compose(self) -> ComposeResult:
        """Compose summary, steps and the selected step."""
        yield static_view("summary")
        with Vertical(id="setup"):
            yield LinesView("Steps", id="guide")
            yield LinesView("Step", id="step")
        yield Input(placeholder="A word in the title or the state. Esc: clear", id="word")
        yield KeyFooter()

    def _draw_panes(self) -> None:
        self._details.border_title = self._state.detail_title
        super()._draw_panes()

    def on_screen_resume(self) -> None:
        """Have the guide read again."""
        self.post_message(self.Resumed())

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable the keys that do nothing before the guide is there."""
        if action in self.CONDITIONAL:
            return self._state.guide is not None
        return super().check_action(action, parameters)

    # Keys

    def action_open(self) -> None:
        """Show the plan or the test of the selected step, else the step alone."""
        step = self._state.step
        if self._state.view == "step" and step is not None and step.can_begin:
            self.post_message(self.StepChosen(step.id))
        else:
            super().action_open()

    def action_view(self) -> None:
        """Show the step, what the paths require, or where the node stands."""
        self._state.next_view()
        self._draw_from_top()

    def action_path(self) -> None:
        """Use the other path."""
        self.post_message(self.PathRequested())

    def action_leave_out(self) -> None:
        """Skip the selected step, or take it up again."""
        if self._state.selected:
            self.post_message(self.SkipRequested(self._state.selected))

    def action_write(self) -> None:
        """Write all remaining commands to a script."""
        from probes.setup.steps.guide import remaining_plans
        from tui.actions.guards import node_name
        from tui.actions.script import script_of_all

        guide = self._state.guide
        plans = () if guide is None else remaining_plans(guide)
        if guide is None or not plans:
            self.notify("No command is left to run.", markup=False)
            return
        text = script_of_all("Set up GPUDirect RDMA", plans, node_name(guide.situation.examination))
        save_and_copy.save_all(self, "gdrtop-setup", {"sh": text})
