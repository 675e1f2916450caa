"""The overview: the whole node on one screen."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widgets import Input

from tui.runtime.reading_thread import Failed, Probed, Replayed, Sampled
from tui.screens.head import HeadView, draw_head
from tui.screens.key_footer import KeyFooter
from tui.screens.keys import bind, bind_pair, move_keys
from tui.screens.overview.panel_screen import PANELS, PanelScreen, mount_panels, new_panel
from tui.screens.request import Request
from tui.terminal.partial_compositor import draw_partially
from widgets.base.lines import Run, Tone, rows_of
from widgets.base.lines_view import LinesView

if TYPE_CHECKING:
    from probes.bandwidth.model.result import Result
    from probes.checks.judgment import Judgment
    from probes.snapshot.examination import Examination
    from probes.snapshot.rates import Reading
    from tui.files.since_ok import SinceOk
    from tui.screens.overview.state import OverviewState


# Panels that are drawn for the rows that they have.
_FITTED = ("jobs", "topology", "rates", "path", "traffic")
_ENDPOINTS = ("topology", "matrix", "rates")  # panels whose rows are GPUs and NICs


class OverviewScreen(PanelScreen):
    """Verdict, findings, jobs, topology, matrix, rates, modules, GPUDirect state, traffic, path."""

    AUTO_FOCUS = "#topology"
    BINDINGS = [  # noqa: RUF012 - Textual's own type
        *move_keys(show=False),
        bind("open", "open", show=False),
        *bind_pair("change", "partner", show=False),
        bind("views", "view(2)", "2", show=False),
        bind("views", "view(3)", "3", show=False),
        bind("views", "view(4)", "4", show=False),
        bind("overview", "view(1)", show=False),
        bind("zoom", "zoom", show=False),
        bind("columns", "hide", show=False),
        *bind_pair("pane", "pane", show=False),
        bind("filter", "filter"),
        bind("fix", "fix"),
        bind("explain", "explain", show=False),
        bind("load", "load"),
        bind("load", "app.act('load-modules')", show=False),  # which says why nothing can be loaded
        bind("back", "back", show=False),
        bind("quit", "back_or_quit", label="Quit"),
    ]

    def __init__(self) -> None:
        super().__init__()
        draw_partially(self)
        self._is_outdated = False  # changed while another screen covered this one
        self._has_findings = False
        # Whether there is a fix, whether modules can be loaded, and which key comes first.
        self._shown_keys = (False, False, "")
        self.readings = 0

    def compose(self) -> ComposeResult:
        """Yield what the first frame shows; the other panels come with the first reading."""
        yield HeadView("Overview", has_hint=True)
        yield Horizontal(id="top")
        with Horizontal(id="body"):
            with Vertical(id="left"):
                yield new_panel("topology")
            yield Vertical(id="right")
        yield KeyFooter()

    def on_mount(self) -> None:
        """Show at once that the node is being read."""
        self._panel("topology").show([(Run("Reading the node…", Tone.DIM),)])

    def on_lines_view_resized(self) -> None:
        """Draw again: every drawing depends on the width of its panel."""
        self.draw()

    def on_resize(self) -> None:
        self.draw()

    def on_lines_view_picked(self, picked: LinesView.Picked) -> None:
        is_finding = picked.view.id == "findings"
        self._change(
            lambda state: (state.pick_finding if is_finding else state.selection.select_end)(picked.id)
        )

    def on_lines_view_title_picked(self, picked: LinesView.TitlePicked) -> None:
        """Show the panel whose title was clicked alone, or all panels again."""
        if picked.view.id in PANELS:
            self._toggle_zoom(picked.view.id)

    # What was read, checked and measured

    def apply(self, report: Probed | Sampled | Replayed | Failed) -> None:
        """Show what was read."""
        if isinstance(report, Failed):
            return
        if self.state is None:
            from tui.screens.overview.state import OverviewState

            self.state = OverviewState()
        self.state.apply(report)
        newest = report.reports[-1] if isinstance(report, Replayed) else report
        if isinstance(newest, Sampled):
            self.readings += 1
            self.draw()

    def apply_check(
        self,
        examination: Examination,
        judgment: Judgment,
        detours: frozenset[tuple[str, str]],
        since_ok: SinceOk,
    ) -> None:
        """List and mark what the checks found."""
        self._change(lambda state: state.apply_check(examination, judgment, detours, since_ok))

    def fail_check(self, what: str) -> None:
        """Show that the node could not be checked."""
        self._change(lambda state: state.fail_check(what))

    def apply_results(self, results: tuple[Result, ...]) -> None:
        """Show bandwidth results beside the paths."""
        self._change(lambda state: state.apply_results(results))

    def _change(self, change: Callable[[OverviewState], object]) -> None:
        """Change what is shown, once something was read, and draw it."""
        if self.state is not None:
            change(self.state)
            self.draw()

    @property
    def hostname(self) -> str:
        """The node's host name; "" while it is unknown."""
        return self.state.readings.hostname if self.state else ""

    @property
    def leading_keys(self) -> tuple[str, ...]:
        """The key that matters most now, which comes first in the footer."""
        return (self.state.next_key,) if self.state is not None and self.state.next_key else ()

    @property
    def newest_readings(self) -> tuple[Reading | None, Reading | None]:
        """The newest reading and the one before it."""
        return (self.state.readings.newest, self.state.readings.before) if self.state else (None, None)

    # Keys

    def action_move(self, how: str) -> None:
        """Move the selection of the focused panel; scroll a panel without rows to select."""
        panel = self._panel(self._focused_panel or "topology")
        self._select(panel.rows_moved(how), wraps=how in ("up", "down"))

    def _select(self, step: int, wraps: bool) -> None:
        if self.state is None:
            return
        name = self._focused_panel
        if name == "findings":
            self.state.select_finding(step, wraps)
            self.draw()
            self._show_row(name, self.state.selection.finding)
            return
        view = self._panel(name) if name else None
        if view is not None and name not in _ENDPOINTS and view.max_scroll_y:
            view.scroll_to(y=view.scroll_offset.y + step, animate=False)
            return
        order = list(rows_of(self._panel("topology").lines))
        self.state.select(step, order, wraps)
        self.draw()
        self._show_row("topology", self.state.selection.end)

    def _show_row(self, panel: str, id: str) -> None:  # noqa: A002 - a run's own word
        view = self._panel(panel)
        row = rows_of(view.lines).get(id)
        if row is not None:
            view.scroll_to_row(row)

    def action_partner(self, step: int) -> None:
        if self.state is not None and self.state.selection.end:
            self.state.selection.next_partner(step)
            self.draw()

    def action_open(self) -> None:
        """Open the selection: a finding in the doctor, a GPU or NIC in detail, else the panel alone."""
        state, name = self.state, self._focused_panel
        if state is None:
            return
        if name == "findings":
            if state.finding_to_open:
                self.post_message(Request("finding", state.finding_to_open))
        elif state.selection.end and not self._zoomed and name in ("", *_ENDPOINTS):
            self._toggle_zoom("path")
        elif name and not self._zoomed:
            self._toggle_zoom(name)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return self.why_not(action) is None

    def why_not(self, action: str) -> str | None:
        state = self.state
        if action in ("fix", "explain") and (state is None or not state.finding_to_open):
            return f"nothing was found that needs {'a fix' if action == 'fix' else 'an explanation'}."
        if action == "fix" and state is not None and not state.has_fix:
            return "gdrtop has no fix for this finding. Enter shows all of it."
        return "" if action == "load" and (state is None or not state.checked.can_load_modules) else None

    def action_explain(self) -> None:
        """Explain the selected finding, else the first one, in plain words."""
        if self.state is not None:
            self.post_message(Request("finding", self.state.finding_to_open, True))

    def action_fix(self) -> None:
        """Show the fix of the selected finding, else that of the first one."""
        if self.state is not None:
            self.post_message(Request("fix", self.state.finding_to_open))

    async def action_load(self) -> None:
        await self.run_action("app.act('load-modules')")

    def on_descendant_focus(self) -> None:
        """Mark the finding that Enter opens."""
        if self.state is not None:
            self.state.selection.is_on_findings = self._focused_panel == "findings"
            self.draw()

    def action_filter(self) -> None:
        if self._word is None:
            self._word = Input(placeholder="Part of a name, model, address or role; Esc clears", id="filter")
            self.mount(self._word, before=self.query_one(KeyFooter))
        self._word.display = True
        self.set_focus(self._word)
        self.draw()

    def on_input_changed(self, changed: Input.Changed) -> None:
        self._change(lambda state: state.filter(changed.value))

    def on_input_submitted(self, submitted: Input.Submitted) -> None:
        submitted.input.display = bool(submitted.value.strip())
        self._focus_home()
        self.draw()

    async def action_back_or_quit(self) -> None:
        """Go one step back; if there is none, quit."""
        selection = None if self.state is None else self.state.selection
        is_selected = selection is not None and bool(selection.end or selection.finding)
        if self._is_filter_shown or self._zoomed or self._view != 1 or is_selected:
            self.action_back()
            await self.run_action("app.note_step_back")
        else:
            await self.run_action("app.leave_app")

    def action_back(self) -> None:
        """Clear the filter, else show all panels again, else clear the selection."""
        if self._word is not None and self._word.display:
            self._word.value = ""
            self._word.display = False
            self._focus_home()
            self.draw()
        elif self._zoomed:
            self._toggle_zoom(self._zoomed)
        elif self._view != 1:
            self.action_view(1)
        else:
            self._change(lambda state: state.selection.clear())

    # Drawing

    def draw(self) -> None:
        """Draw every visible panel."""
        self._is_outdated = bool(self.readings) and not self._is_visible
        if self._is_outdated:
            return
        if self.state is None or not self.children or not self.readings:
            return
        if not self._has_panels:
            self._has_panels = True
            mount_panels(self)
        arranged = self._arrange(self.state)
        self._focus_findings(self.state)
        for name in PANELS:
            panel = self._panel(name)
            if panel.display and (room := panel.room):
                rows = arranged.inside(name)
                if name == "findings":
                    lines = self.state.findings_lines(room, rows)
                else:
                    lines = self.state.lines(name, room, self._zoomed == name, rows if name in _FITTED else 0)
                panel.show(lines)
        keys = self.state.has_fix, self.state.checked.can_load_modules, self.state.next_key
        if keys != self._shown_keys:
            self._shown_keys = keys
            self.refresh_bindings()
        topology = self._panel("topology")
        title = self.state.topology_title(topology.room, arranged.inside("topology"))
        topology.set_title(f"Topology · {title}" if title else "Topology")
        strips = self._panel("strips")
        if strips.display:
            strips.show(self.state.strips(arranged.strips, self.size.width))

    def _focus_findings(self, state: OverviewState) -> None:
        """Focus the findings when the first ones appear, unless the user is busy elsewhere."""
        had, self._has_findings = self._has_findings, bool(state.finding_to_open)
        is_idle = self._focused_panel == "topology" and not self._zoomed and not state.selection.end
        if self._has_findings and not had and is_idle:
            self._panel("findings").focus()

    @property
    def _is_visible(self) -> bool:
        """Return whether no other screen covers this one; a question leaves it visible."""
        stack = self.app.screen_stack
        return all(screen.is_modal for screen in stack[stack.index(self) + 1 :]) if self in stack else True

    def on_screen_resume(self) -> None:
        """Draw what has changed while another screen covered this one."""
        draw_head(self)
        if self._is_outdated:
            self.draw()


class ReplayScreen(OverviewScreen):
    """The overview with keys that move in time."""

    BINDINGS = [  # noqa: RUF012 - Textual's own type
        *bind_pair("moment", "app.move"),
        *bind_pair("moments", "app.move", 10, show=False),
        *bind_pair("ends", "app.move_to_end", show=False),
    ]
