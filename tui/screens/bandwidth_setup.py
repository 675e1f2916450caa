"""The settings of a bandwidth test, the tests that gdrtop would run, and whom they would affect."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.widgets import Input

from probes.bandwidth.model.command import Refused
from probes.bandwidth.model.planned_series import Series
from probes.bandwidth.model.result import Result, planned_key
from probes.bandwidth.results.against_earlier import baseline_result, newest
from probes.bandwidth.results.percentiles import OF_TYPE, Standing, standings
from probes.base.frozen import frozen
from probes.base.origin import Origin, Source, origin_word
from probes.base.unknown import known
from probes.facts.node import host_name
from probes.snapshot.examination import Examination
from tui.bandwidth.settings import BandwidthSettings
from tui.screens import save_and_copy
from tui.screens.head import HeadView
from tui.screens.key_footer import KeyFooter
from tui.screens.keys import bind, bind_pair, leave_keys
from tui.screens.list_screen import ZOOM_KEY, PanesScreen, static_view
from tui.screens.request import Request
from widgets.bandwidth.result import draw_last_result
from widgets.bandwidth.series import draw_affected, draw_planned, draw_settings, peer_command
from widgets.base.lines import Line, Run, Tone, paragraphs, rows_of, sentence, wrapped
from widgets.base.lines_view import LinesView

# What the setup screen of bandwidth tests shows: settings, planned tests, and whom they would affect.
#
# Independent of Textual.

_MOST_EARLIER = 3  # tests of a series whose earlier results are shown


@frozen
class ToRun:
    """A series that is about to run; later changes of the settings do not change it."""

    examination: Examination
    series: Series
    is_again: bool = False  # an earlier series, which the settings may not match
    affected_by: tuple[str, ...] | None = None  # None: not checked yet


class BandwidthSetupState:
    """The settings, and what follows from them."""

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self.chosen = BandwidthSettings()
        self.examination: Examination | None = None
        self.refusal = ""  # why no test can run here
        self.planned: Series | Refused | None = None
        self.affected_by: tuple[str, ...] = ()  # the planned series, by the newest reading
        self.to_run: ToRun | None = None
        self.earlier: tuple[Result, ...] = ()
        self._standings: tuple[tuple[Result, Standing], ...] = ()
        self.baseline: tuple[Result, ...] = ()
        self.now = 0.0  # seconds since 1970, by the node's clock
        self._failure = ""
        self._unread = self._no_baseline = ""  # why earlier results, or a baseline, are missing

    # Facts

    def set_examination(self, examination: Examination) -> None:
        """Set the facts of the node."""
        self.examination, self._failure = examination, ""
        self.chosen.set_examination(examination)

    def fail(self, message: str) -> None:
        """Note that the node could not be read, or the tests could not be planned."""
        self._failure = message

    def set_earlier(self, earlier: tuple[Result, ...], unread: str) -> None:
        """Set the earlier results, or why existing ones could not be read."""
        self.earlier, self._unread, self._standings = earlier, unread, standings(earlier)

    def set_baseline(self, baseline: tuple[Result, ...], why_none: str) -> None:
        """Set the baseline of this machine type, or why there is none although one might be expected."""
        self.baseline, self._no_baseline = baseline, why_none

    # Changes

    def change(self, step: int) -> bool:
        """Change the selected setting to its next or previous value; return whether it has another."""
        if not self.chosen.change(step):
            return False
        self._forget_plan()
        return True

    def set_peer(self, text: str) -> str:
        """Set the name of the peer; return an error message if it is not valid, else ""."""
        error = self.chosen.set_peer(text)
        if not error:
            self._forget_plan()
        return error

    def _forget_plan(self) -> None:
        self.planned, self.affected_by = None, ()
        self.cancel_run()

    # The run

    @property
    def is_checking(self) -> bool:
        """Return whether gdrtop is checking whom the series would affect."""
        return self.to_run is not None and self.to_run.affected_by is None

    @property
    def is_asking(self) -> bool:
        """Return whether a person must confirm that running jobs may be affected."""
        return self.to_run is not None and bool(self.to_run.affected_by)

    def cancel_run(self) -> None:
        """Do not run the series that was about to run."""
        self.to_run = None

    # Text

    def summary(self) -> list[Line]:
        """Return what is missing, if anything is."""
        if self._failure:
            return [(Run(f"✗ {self._failure}", Tone.BAD),)]
        if self.examination is None and not self.refusal:
            return [(Run("Checking the node …", Tone.DIM),)]
        return []

    @property
    def hostname(self) -> str:
        """Return the host name; "" if it is unknown."""
        return "" if self.examination is None else known(host_name(self.examination.node), "")

    @property
    def node(self) -> str:
        """Return a name of the node for display."""
        return self.hostname or self.origin.label or "this node"

    def settings(self) -> list[Line]:
        """Return the settings, a line each."""
        return draw_settings(self.chosen.rows(), self.chosen.selected)

    def lines(self, width: int) -> list[Line]:
        """Return the planned tests, or those that are about to run."""
        if self.refusal:
            return wrapped(f"No test can run here: {self.refusal}.", width, Tone.WARNING)
        if self.to_run is not None and self.to_run.affected_by:
            return self._draw(self.to_run.series, width)
        if self.planned is None:
            return [] if self.examination is None else [(Run("…", Tone.DIM),)]
        return self._draw(self.planned, width, self.affected_by)

    def question_lines(self, to_run: ToRun, width: int) -> list[Line]:
        """Return the question whether a series may affect running jobs."""
        lines = draw_affected(to_run.affected_by or (), width)
        if self.origin.source is Source.SIMULATED:
            text = "The job is simulated. On a real node it would slow down."
            lines += wrapped(text, width, Tone.DIM)
        words = "Run again with the same settings: " if to_run.is_again else ""
        return [*lines, (), *wrapped(f"{words}{to_run.series.title}", width, Tone.TITLE), ()]

    def _draw(self, series: Series | Refused, width: int, affected: tuple[str, ...] = ()) -> list[Line]:
        earlier = self._earlier_lines(series, width) if isinstance(series, Series) else []
        return draw_planned(series, width, self.hostname, affected, earlier)

    def _earlier_lines(self, series: Series, width: int) -> list[Line]:
        """Return the newest results of the first tests on this node, and their baseline."""
        lines: list[Line] = []
        origin = origin_word(self.origin)
        for test in series.tests[:_MOST_EARLIER]:
            key = planned_key(test)
            for label, result in (
                ("last measured", newest(self.earlier, key, self.hostname, origin)),
                ("baseline", baseline_result(self.baseline, key, origin)),
            ):
                if result is not None:
                    title = f", {test.title}:" if len(series.tests) > 1 else ""
                    lines += draw_last_result(result, self.now, width, f"{label}{title}")
                    standing = (found.words(OF_TYPE) for each, found in self._standings if each is result)
                    lines += paragraphs(standing, width, Tone.DIM, "  ")
        notes = (sentence(why) for why in (self._unread, self._no_baseline) if why)
        return lines + paragraphs(notes, width, Tone.WARNING)

    @property
    def peer_command(self) -> str:
        """Return the command for the peer; "" if none is needed."""
        series = self.to_run.series if self.to_run is not None and self.is_asking else self.planned
        return peer_command(series.tests[0], self.hostname) if isinstance(series, Series) else ""

    @property
    def question(self) -> Line:
        """Return what the keys do here, as a sentence."""
        if self.refusal:
            return (Run("q goes back.", Tone.DIM),)
        if self.is_checking:
            return (Run("Checking what it would affect …", Tone.DIM),)
        if isinstance(self.planned, Refused):
            return (Run("This cannot run. ↑↓ ←→ change the settings.", Tone.WARNING),)
        return (Run("Enter: run   ↑↓: select a row   ←→: change its value", Tone.DIM),)


_END = 1 << 20


class BandwidthSetupScreen(PanesScreen):
    """Change settings by keys; Enter runs the tests, and asks first where running jobs would be affected."""

    BINDINGS = [  # noqa: RUF012 - Textual's own type
        bind("open", "start", label="Run"),
        *bind_pair("change", "change"),
        bind("peer", "name_peer"),
        bind("copy", "copy"),
        ZOOM_KEY,
        *leave_keys("bandwidth"),
    ]
    CONDITIONAL = ("start", "name_peer", "copy")

    def __init__(self, state: BandwidthSetupState) -> None:
        super().__init__()
        self.state = state

    def compose(self) -> ComposeResult:
        yield HeadView("Bandwidth")
        yield static_view("summary")
        yield LinesView("Settings", id="settings")
        yield LinesView("Planned tests", id="planned")
        yield static_view("question")
        yield Input(placeholder="Host name or address of the peer. Esc cancels", id="peer", max_length=300)
        yield KeyFooter()

    def on_mount(self) -> None:
        self._peer.display = False
        self._view("settings").focus()
        self.post_message(Request("plan_tests"))

    @property
    def _peer(self) -> Input:
        return self.query_one("#peer", Input)

    def on_lines_view_resized(self) -> None:
        self.draw()

    def draw(self) -> None:
        """Draw the panes, once they exist."""
        if not self.is_mounted:
            return
        self._view("summary").show(self.state.summary())
        settings, planned = self._view("settings"), self._view("planned")
        settings.display = not self.state.refusal
        if settings.room:
            settings.show(self.state.settings())
            row = rows_of(settings.lines).get(self.state.chosen.selected)
            if row is not None:
                settings.scroll_to_row(row)
        if planned.room:
            planned.show(self.state.lines(planned.room))
        self._view("question").show([self.state.question])
        self._refresh_changed_bindings()

    def why_not(self, action: str) -> str | None:
        if action in ("start", "change(1)", "change(-1)") and self.state.refusal:
            return f"no test can run here: {self.state.refusal}."
        if action == "name_peer" and not self.state.chosen.has_peer:
            return "this test needs no peer."
        if action == "copy" and not self.state.peer_command:
            return "these tests need no command on a peer."
        return super().why_not(action)

    # Keys

    def action_move(self, how: str) -> None:
        """Select another row, or scroll the lower pane."""
        if self._view("planned").has_focus:
            super().action_move(how)
            return
        steps = {"up": -1, "down": 1, "page_up": -_END, "page_down": _END, "first": -_END, "last": _END}
        self.state.chosen.select(steps[how])
        self.draw()

    def on_lines_view_picked(self, picked: LinesView.Picked) -> None:
        if picked.view is self._view("settings"):
            self.state.chosen.selected = picked.id
            self.draw()

    def action_change(self, step: int) -> None:
        if self.state.change(step):
            self._view("planned").scroll_to(y=0, animate=False)
            self.draw()
            self.post_message(Request("plan_tests"))
        elif self.state.chosen.selected == "peer":
            self.action_name_peer()

    def action_name_peer(self) -> None:
        self._peer.value = self.state.chosen.peer
        self._peer.display = True
        self.set_focus(self._peer)

    def on_input_submitted(self, submitted: Input.Submitted) -> None:
        why = self.state.set_peer(submitted.value)
        if why:
            self.notify(why, severity="warning", markup=False)
            return
        self._leave_input()
        self.draw()
        self.post_message(Request("plan_tests"))

    def _leave_input(self) -> None:
        self._peer.display = False
        self._view("settings").focus()

    def action_start(self) -> None:
        """Run the tests; ask for the peer's name first if it is missing."""
        if self.state.chosen.has_peer and not self.state.chosen.peer:
            self.action_name_peer()
        else:
            self.post_message(Request("run_tests"))

    def action_copy(self) -> None:
        save_and_copy.copy(self, self.state.peer_command)

    def action_leave(self) -> None:
        """Close the input, then stop the check before a run, then close the screen."""
        if self._peer.display:
            self._leave_input()
        elif self.state.is_checking:
            self.state.cancel_run()
            self.draw()
            self.post_message(Request("plan_tests"))  # nothing was planned during the check
        else:
            super().action_leave()

    def action_close(self) -> None:
        """Leave at once, without running anything."""
        self.state.cancel_run()
        super().action_close()
