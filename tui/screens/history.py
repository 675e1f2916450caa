"""The history: what gdrtop ran on this node, how it ended, and its undo."""

from __future__ import annotations

import shlex

from tui.actions.audit_log import PastRun, PastStep
from tui.actions.events import mark_of, step_result
from tui.screens.keys import bind, leave_keys
from tui.screens.list_screen import ListScreen
from tui.screens.list_state import ListState
from tui.screens.request import Request
from widgets.base.figures import local_time
from widgets.base.lines import Line, Run, Tone, fit, line, paragraphs, sentence, wrapped


class HistoryState(ListState):
    """Past runs and selection."""

    def __init__(self, node: str) -> None:
        super().__init__()
        self._node = node
        self._runs: tuple[PastRun, ...] | None = None
        self._unread: tuple[str, ...] = ()

    def set_runs(self, runs: tuple[PastRun, ...], unread: tuple[str, ...] = ()) -> None:
        """Show these runs, newest first, and why existing logs could not be read."""
        self._runs, self._unread = runs, unread
        self._keep_selection()

    @property
    def run(self) -> PastRun | None:
        """Return the selected run."""
        return next((run for run in self._runs or () if run.id == self.selected), None)

    def _order(self) -> list[str]:
        return [run.id for run in self._runs or ()]

    def list_lines(self, width: int) -> list[Line]:
        """Draw a line per run: outcome, time, user, title, and the node if it is another one."""
        if self._runs is None:
            return self._draw_absent("Reading the audit log …", width)
        lines = paragraphs(map(sentence, self._unread), width, Tone.WARNING)
        if not self._runs and not lines:
            return wrapped("The audit log is empty: gdrtop has not run anything here yet.", width, Tone.DIM)
        return [*lines, *(fit(self._row(run), width) for run in self._runs)]

    def _row(self, run: PastRun) -> Line:
        at = local_time(run.at, "%Y-%m-%d %H:%M:%S %Z")
        elsewhere = f"  on {run.actor.host}" if run.actor.host != self._node else ""
        tone = Tone.CURSOR if run.id == self.selected else Tone.PLAIN
        return line(
            *(mark_of(run.outcome), f" {run.outcome.value:<14}", Run(at, tone, run.id)),
            *(f"  {run.actor.user:<8}  {run.title}", elsewhere),
        )

    def detail_lines(self, width: int) -> list[Line]:
        """Draw the selected run, step by step."""
        run = self.run
        if run is None:
            return []
        lines: list[Line] = [line(Run(run.title, Tone.TITLE), Run(f"  {run.action}", Tone.DIM))]
        lines += paragraphs((run.why, f"Measured: {run.measured}" if run.measured else ""), width)
        for number, step in enumerate(run.steps, 1):
            lines.extend(_step(number, step, width))
        return lines


def _step(number: int, step: PastStep, width: int) -> list[Line]:
    command = shlex.join(step.argv) if step.argv else f"change {step.path}"
    lines: list[Line] = [(), *wrapped(f"# {step.why}", width, Tone.DIM)]
    lines.extend(wrapped(f"{number} {command}", width, Tone.TITLE))
    lines += step_result(step.outcome, step.exit_status, step.seconds, step.explanation, width)
    kept = f"backup of the file: {step.kept}" if step.kept else ""
    return [*lines, *paragraphs((kept,), width, Tone.DIM, "    ")]


class HistoryScreen(ListScreen[HistoryState]):
    """The list of past runs, newest first, with the steps of the selected one below."""

    BINDINGS = [  # noqa: RUF012 - Textual's own type
        bind("undo", "undo"),
        *leave_keys("history"),
    ]

    LIST = "runs"
    DETAILS = "steps"
    TITLES = ("History", "Runs", "Steps")

    def why_not(self, action: str) -> str | None:
        if action == "undo" and self._state.run is None:
            return "gdrtop has not run anything on this node."
        return super().why_not(action)

    def action_undo(self) -> None:
        if self._state.run is not None:
            self.post_message(Request("undo", self._state.run))
