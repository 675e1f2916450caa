"""The registration screen: which NICs can register which GPU's memory."""

from __future__ import annotations

from collections.abc import Sequence

from probes.bandwidth.prove import GpuTrial, PairResult
from probes.base.text import plural
from probes.snapshot.examination import Examination
from tui.screens import save_and_copy
from tui.screens.keys import bind, leave_keys
from tui.screens.list_screen import REFRESH_KEY, ListScreen
from tui.screens.list_state import ListState
from tui.screens.request import Request
from widgets.bandwidth.prove import NOT_PROVEN, NOTICE, draw_results, gpu_marks
from widgets.base.lines import Line, Run, Tone, as_text, fit, line, wrapped

_TEXT_WIDTH = 160  # of a written file


class RegistrationState(ListState):
    """The GPUs, the selected one, and the results of each."""

    def __init__(self) -> None:
        super().__init__()
        self.trials: tuple[GpuTrial, ...] | None = None
        self.examination: Examination | None = None  # that the trials were planned with
        self._results: dict[str, tuple[PairResult, ...]] = {}  # by GPU
        self.is_running = False

    def set_trials(self, examination: Examination, trials: Sequence[GpuTrial]) -> None:
        """Show what would be tried now; results stay."""
        self.examination, self.trials, self._failure = examination, tuple(trials), ""
        self._keep_selection()

    def fail(self, message: str) -> None:
        """Show why nothing can be registered."""
        super().fail(message)
        self.is_running = False

    def begin(self) -> None:
        """Note that a run begins."""
        self.is_running, self._failure, self._results = True, "", {}

    def add(self, results: tuple[PairResult, ...]) -> None:
        """Show the results of a GPU, and select it."""
        self._results[results[0].gpu] = results

    @property
    def results(self) -> tuple[PairResult, ...]:
        """Return all results of the newest run."""
        return tuple(result for results in self._results.values() for result in results)

    def _order(self) -> list[str]:
        return [trial.label for trial in self.trials or ()]

    # Drawing

    def list_lines(self, width: int) -> list[Line]:
        """Draw a line per GPU: its results, or what would be tried."""
        lines = wrapped(f"✗ {self._failure}", width, Tone.BAD) if self._failure else []
        if self.trials is None:
            return lines or wrapped("Reading the node …", width, Tone.DIM)
        for trial in self.trials:
            tone = Tone.CURSOR if trial.label == self.selected else Tone.PLAIN
            head = Run(f"{trial.label:<6}", tone, trial.label)
            lines.append(fit(line(head, "  ", *self._word(trial)), width))
        return lines

    def _word(self, trial: GpuTrial) -> Line:
        results = self._results.get(trial.label)
        if results is not None:
            return gpu_marks(results)
        if trial.not_tried:
            return line(Run(f"not tried: {trial.not_tried}", Tone.DIM))
        if self.is_running:
            return line(Run("waiting …", Tone.DIM))
        text = f"{plural(len(trial.words), 'NIC')}, not registered yet"
        return line(Run(text, Tone.DIM), *([Run(f"  ▲ {trial.users}", Tone.WARNING)] if trial.users else ()))

    def detail_lines(self, width: int) -> list[Line]:
        """Draw the results of the selected GPU, or what a run does."""
        results = self._results.get(self.selected)
        if results is not None:
            return [*draw_results(results, width), (), *wrapped(NOT_PROVEN, width, Tone.DIM)]
        lines = wrapped(NOTICE, width)
        if self.trials is not None and not self.is_running:
            lines += [(), *wrapped("Press Enter to register. Nothing has been registered yet.", width)]
        return lines

    def text(self) -> str:
        """Return all results as text."""
        lines = self.list_lines(_TEXT_WIDTH)
        if self._results:
            lines += [(), *draw_results(self.results, _TEXT_WIDTH), (), *wrapped(NOT_PROVEN, _TEXT_WIDTH)]
        return as_text(lines)


class RegistrationScreen(ListScreen[RegistrationState]):
    """The GPUs, and what registers with the selected one."""

    BINDINGS = [  # noqa: RUF012 - Textual's own type
        bind("open", "ask", label="Register"),
        bind("cancel", "cancel"),
        bind("write", "write"),
        REFRESH_KEY,
        *leave_keys("prove"),
    ]
    LIST = "registered"
    DETAILS = "reasons"
    TITLES = ("Prove", "GPUs", "NICs")

    def why_not(self, action: str) -> str | None:
        if action == "ask" and self._state.is_running:
            return "a registration is running."
        if action == "ask" and self._state.trials is None:
            return "still reading the node."
        is_idle = action == "cancel" and not self._state.is_running
        return "nothing is running." if is_idle else super().why_not(action)

    def action_ask(self) -> None:
        self.post_message(Request("register"))

    def action_cancel(self) -> None:
        self.post_message(Request("cancel_registration"))

    def action_refresh(self) -> None:
        self.post_message(Request("plan_registration"))

    def action_write(self) -> None:
        save_and_copy.save(self, "gdrtop-prove", txt=self._state.text())
