"""A plan before it runs: what it affects, its steps, the question, and what was typed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.widgets import Input

from probes.base.origin import Origin, Source
from tui.files.new_file import file_word
from tui.screens import save_and_copy
from tui.screens.ask import EnterDelay
from tui.screens.head import HeadView
from tui.screens.key_footer import KeyFooter, typing_items
from tui.screens.keys import KEYS, bind, leave_keys
from tui.screens.list_screen import PanesScreen, scroll, static_view
from tui.screens.request import Request
from widgets.base.lines import Line, Run, Tone, paragraphs, section, wrapped
from widgets.base.lines_view import LinesView

if TYPE_CHECKING:
    from probes.base.plan import Step
    from probes.checks.judgment import Judgment
    from tui.actions.dispatcher import Prepared
    from tui.actions.guards import Clearance


# The state of the confirmation screen: the plan and what was typed. It does not use Textual.

_DETACHED = (
    "The steps run detached from this terminal and finish even if the connection drops. "
    f"Log in again and press {KEYS['history'].display} to see how they ended."
)


class ConfirmState:
    """A prepared action, and what was typed to confirm it."""

    def __init__(self, prepared: Prepared, origin: Origin) -> None:
        self.prepared = prepared
        self.origin = origin
        self.typed = ""
        self.is_unfolded = False  # show each of many similar steps
        self.is_rehearsing = False
        self.rehearsal: tuple[Judgment, Judgment, tuple[str, ...]] | str = ""  # of the twin, or why it failed

    @property
    def can_rehearse(self) -> bool:
        """Return whether a twin can be made: a rehearsal asks the node itself."""
        return self.origin.is_running or self.origin.source is Source.SIMULATED

    def _rehearsal_lines(self, width: int) -> list[Line]:
        from widgets.doctor.changes import draw_rehearsal

        if self.is_rehearsing:
            return wrapped("Rehearsing on a simulated copy of this node…", width, Tone.TITLE)
        if isinstance(self.rehearsal, str):
            failed = f"The rehearsal failed: {self.rehearsal}"
            return wrapped(failed, width, Tone.WARNING) if self.rehearsal else []
        return [*draw_rehearsal(*self.rehearsal, width), ()]

    @property
    def word(self) -> str:
        """Return the host name if it must be typed, else ""."""
        clearance = self.prepared.clearance
        return "" if clearance.refused else clearance.word

    @property
    def can_run(self) -> bool:
        """Return whether it can run."""
        return not self.prepared.clearance.refused

    @property
    def is_confirmed(self) -> bool:
        """Return whether the host name was typed, if it must be."""
        return self.can_run and self.typed.strip() == self.word

    @property
    def title_line(self) -> Line:
        """Draw the action."""
        return (Run(self.prepared.title, Tone.TITLE),)

    def lines(self, width: int) -> list[Line]:
        """Draw the consequences, the warnings, the steps, and the manual steps."""
        from tui.actions.manual_steps import ALL_MANUAL, left_to_do, runnable, why_manual
        from widgets.doctor.plan import draw_consequences, draw_group

        plan, clearance = self.prepared.plan, self.prepared.clearance
        titles = wrapped(plan.title, width, Tone.TITLE) if plan.title != self.prepared.title else []
        consequences = draw_consequences(plan, width, bool(clearance.affected))
        lines: list[Line] = [*self._rehearsal_lines(width), *titles, *consequences]
        if clearance.refused and clearance.refused != ALL_MANUAL:  # the line below says it too
            lines.extend(wrapped(not_run(clearance), width, Tone.WARNING))
        lines.extend(draw_cuts(clearance, width))
        note = wrapped(plan.note, width, Tone.DIM) if plan.note else []
        if note and plan.is_simulated:
            lines.extend([(), *note])
        number = 1
        for steps in self._groups(runnable(plan)):
            last = number + len(steps) - 1
            heading = f"STEP {number}" if len(steps) == 1 else f"STEPS {number}–{last}"
            lines.extend([(), (Run(heading, Tone.TITLE),), *draw_group(steps, width)])
            number = last + 1
        left, manual = left_to_do(plan), list[Line]()
        if left and not left[0].is_instruction:
            why = why_manual(left[0], plan.is_simulated)
            manual += wrapped(f"{next(iter(left[0].argv), left[0].command)}: {why}", width, Tone.DIM, "  ")
        for place, steps in enumerate(self._groups(left), 1):
            manual += draw_group(steps, width, f"{place}. ")
        lines += section("MANUAL STEPS", manual)
        if note and not plan.is_simulated:
            lines.extend([(), *note])
        return [*lines, *draw_affected(clearance, width)]

    def _groups(self, steps: Sequence[Step]) -> list[tuple[Step, ...]]:
        from widgets.doctor.plan import step_groups

        return [(step,) for step in steps] if self.is_unfolded else step_groups(steps)

    @property
    def can_unfold(self) -> bool:
        """Return whether the plan has similar steps that are folded."""
        from widgets.doctor.plan import step_groups

        return any(len(steps) > 1 for steps in step_groups(self.prepared.plan.steps))

    @property
    def question(self) -> str:
        """Return what the keys do here, as a sentence."""
        if not self.can_run:
            return not_run(self.prepared.clearance)
        if self.word:
            affected = self.prepared.clearance.affected
            more = f" (+{len(affected) - 1} more)" if len(affected) > 1 else ""
            return f"▲ {affected[0]}{more}" if affected else "▲ This can cut off the node."
        return "Press Enter to run it."

    def script(self) -> str:
        """Return the plan as a shell script."""
        from tui.actions.script import script_of

        return script_of(self.prepared.plan, self.prepared.source)

    @property
    def script_name(self) -> str:
        """Return the script's file name."""
        return f"gdrtop-{file_word(self.prepared.action)}-{file_word(self.prepared.node)}.sh"


def not_run(clearance: Clearance) -> str:
    """Return why the plan cannot run, as a sentence."""
    from tui.actions.manual_steps import ALL_MANUAL

    if clearance.refused == ALL_MANUAL:
        return "You do these steps. gdrtop cannot run them."
    return f"gdrtop cannot run this: {clearance.refused}."


def draw_warnings(clearance: Clearance, width: int) -> list[Line]:
    """Draw what the plan may cut off, and which jobs it would affect."""
    return [*draw_cuts(clearance, width), *draw_affected(clearance, width)]


def draw_cuts(clearance: Clearance, width: int) -> list[Line]:
    """Draw what the plan may cut off."""
    detached = wrapped(_DETACHED, width, Tone.PLAIN, "  ") if clearance.is_detached else []
    return [*_warnings("THIS CAN CUT OFF THE NODE", clearance.cuts, width), *detached]


def draw_affected(clearance: Clearance, width: int) -> list[Line]:
    """Draw which jobs the plan would affect, a line each."""
    return _warnings("RUNNING JOBS WOULD BE AFFECTED", clearance.affected, width)


def _warnings(title: str, texts: Sequence[str], width: int) -> list[Line]:
    return section(title, paragraphs((f"▲ {text}" for text in texts), width, Tone.WARNING, "  "))


class ConfirmScreen(PanesScreen):
    """A plan, which can be run, copied or written to a file.

    Where the host name must be typed, its field has the focus at once, so that no letter of it is a command.
    The app's commands are dead here while there is something to run (`is_question`).
    """

    BINDINGS = [  # noqa: RUF012 - Textual's own type
        bind("open", "confirm", label="Run it"),
        bind("yes", "run", show=False),
        bind("rehearse", "rehearse"),
        bind("copy", "copy"),
        bind("write", "write"),
        bind("all", "unfold"),
        *leave_keys(),
    ]

    def __init__(self, state: ConfirmState) -> None:
        super().__init__()
        self._state = state
        self._is_confirmed = False
        self._delay = EnterDelay()

    def compose(self) -> ComposeResult:
        yield HeadView("Plan")
        yield static_view("summary")
        yield LinesView("Plan · nothing has been run", id="plan")
        yield static_view("question")
        if self._state.word:
            yield Input(placeholder=f"Type the host name {self._state.word} to run it", id="typed")
        yield KeyFooter(typing_items("Run it", tab="Plan"))

    def on_mount(self) -> None:
        """Focus the field of the host name, else the plan."""
        (self._typed if self._state.word else self._view("plan")).focus()

    @property
    def is_question(self) -> bool:
        """Whether there is a plan that Enter would run."""
        return self._state.can_run

    @property
    def _typed(self) -> Input:
        return self.query_one("#typed", Input)

    def on_lines_view_resized(self) -> None:
        plan = self._view("plan")
        if plan.room:
            plan.show(self._state.lines(plan.room))
        self._view("summary").show([self._state.title_line])
        tone = Tone.WARNING if self._state.word or not self._state.can_run else Tone.DIM
        self._view("question").show([(Run(self._state.question, tone),)])
        self._delay.note_drawn()

    def why_not(self, action: str) -> str | None:
        if action in ("run", "confirm") and not self._state.can_run:
            return self._state.question
        if action == "rehearse" and not self._state.can_rehearse:
            return "only a running or simulated node can be rehearsed."
        return "every step is shown." if action == "unfold" and not self._state.can_unfold else None

    # Keys

    def action_move(self, how: str) -> None:
        """Scroll the plan, also while the host name is typed."""
        scroll(self._view("plan"), how)

    def action_confirm(self) -> None:
        """Run it, unless Enter was pressed before the plan could be read."""
        if self._delay.is_over:
            self.action_run()

    def action_run(self) -> None:
        if self._state.word:
            self._typed.focus()
        elif self._state.can_run:
            self._confirm()

    def on_input_submitted(self, submitted: Input.Submitted) -> None:
        """Run it if the name is right, else say so in the line above the field."""
        self._state.typed = submitted.value
        if self._state.is_confirmed:
            self._confirm()
        elif submitted.value:
            wrong = f"That is not the host name ({self._state.word}). Nothing was run."
            self._view("question").show([(Run(wrong, Tone.BAD),)])

    def _confirm(self) -> None:
        if not self._is_confirmed:  # also if the key was pressed twice
            self._is_confirmed = True
            self.post_message(Request("run", self._state.prepared, self._state.typed))

    def action_unfold(self) -> None:
        """Show each of many equal steps, or only the first again."""
        self._state.is_unfolded = not self._state.is_unfolded
        self.on_lines_view_resized()

    # The rehearsal

    def action_rehearse(self) -> None:
        """Run the plan on a simulated twin first; this node stays as it is."""
        if self._state.can_rehearse and not self._state.is_rehearsing:
            self.post_message(Request("rehearse", self._state.prepared, self))

    def show_rehearsing(self) -> None:
        """Show that the rehearsal runs."""
        self._state.is_rehearsing = True
        self._redraw()

    def show_rehearsal(self, before: Judgment, after: Judgment, not_rehearsed: tuple[str, ...]) -> None:
        """Show what to expect afterwards, above the steps."""
        self._state.is_rehearsing, self._state.rehearsal = False, (before, after, not_rehearsed)
        self._redraw()

    def show_rehearsal_failure(self, message: str) -> None:
        """Show why the plan could not be rehearsed."""
        self._state.is_rehearsing, self._state.rehearsal = False, message
        self._redraw()

    def _redraw(self) -> None:
        if self.is_mounted:
            self._view("plan").scroll_home(animate=False)
            self.on_lines_view_resized()

    def action_copy(self) -> None:
        save_and_copy.copy(self, self._state.script(), " as a shell script")

    def action_write(self) -> None:
        save_and_copy.write(self, {self._state.script_name: self._state.script()})
