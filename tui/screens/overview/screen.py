"""The overview: the whole node on one screen, live."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Input

from probes.base.origin import Origin, Source
from tui.runtime.sampler import Failed, Probed, Replayed, Sampled
from tui.screens.key_footer import KeyFooter
from tui.screens.keys import bind, move_keys
from widgets.base.figures import local_time
from widgets.base.lines import Line, Run, Tone, rows_of
from widgets.base.lines_view import LinesView
from widgets.node import head as head_drawing
from widgets.node.head import Head

if TYPE_CHECKING:
    from probes.bandwidth.model.result import Result
    from probes.queries.finding import Finding
    from probes.snapshot.examination import Examination
    from probes.snapshot.rates import Reading
    from tui.screens.overview.state import OverviewState

PANELS = {
    "findings": "Findings",
    "jobs": "Jobs",
    "topology": "Topology",
    "matrix": "GPU × NIC",
    "rates": "NIC rates",
    "modules": "Modules",
    "gpudirect": "GPUDirect RDMA",
    "traffic": "Traffic",
    "path": "Path",
}
_END = 1 << 20
_FILTER_ROWS = 3
_ENDPOINTS = ("topology", "matrix", "rates")  # panels whose rows are GPUs and NICs


class Panel(LinesView):
    """A panel with a border, which can be shown alone."""


class OverviewScreen(Screen[None]):
    """Verdict, findings, jobs, topology, matrix, rates, modules, GPUDirect state, traffic, path."""

    BINDINGS = [  # noqa: RUF012 - Textual's own type
        *move_keys(),
        bind("open", "open"),
        bind("change", "partner(1)", "right", show=False),
        bind("change", "partner(-1)", "left", show=False),
        bind("zoom", "zoom"),
        bind("pane", "pane(1)", "tab", show=False),
        bind("pane", "pane(-1)", "shift+tab", show=False),
        bind("filter", "filter"),
        bind("load", "app.act('load-modules')", show=False),
        bind("back", "back", show=False),
    ]

    @dataclass
    class FindingWanted(Message):
        """This finding is to be shown in the doctor."""

        finding: str

    def __init__(self, origin: Origin) -> None:
        super().__init__()
        self._origin = origin
        self._state: OverviewState | None = None
        self._zoomed = ""
        self._pace = ""
        self._recording = ""
        self._acting = ""
        self._measuring = ""
        self._silence = 0.0
        self._is_slow = False
        self._failure = ""
        self._taken_at = 0.0
        self._arranged: object = None
        self.readings = 0

    def compose(self) -> ComposeResult:
        """The panels; what each shows comes with the readings."""
        panels = {name: Panel(title, id=name) for name, title in PANELS.items()}
        verdict, strips = LinesView(id="verdict"), LinesView(id="strips")
        verdict.can_focus = strips.can_focus = False
        yield verdict
        with Horizontal(id="top"):
            yield panels.pop("findings")
            yield panels.pop("jobs")
        with Horizontal(id="body"):
            with Vertical(id="left"):
                for name in ("topology", "matrix", "rates"):
                    yield panels.pop(name)
            with Vertical(id="right"):
                yield from panels.values()
        yield strips
        word = Input(placeholder="A part of a name, model, address or role; Esc clears", id="filter")
        word.display = False
        yield word
        yield KeyFooter()

    def on_mount(self) -> None:
        """Says at once that it is reading."""
        for name in PANELS:
            self._panel(name).display = name == "topology"
        self._panel("topology").show([(Run("Reading the node …", Tone.DIM),)])
        self._panel("topology").focus()
        self._draw_verdict()

    def on_lines_view_resized(self) -> None:
        """Draws again: every drawing depends on its panel's width."""
        self.draw()

    def on_resize(self) -> None:
        """Shares the rows out again."""
        self.draw()

    def on_lines_view_picked(self, picked: LinesView.Picked) -> None:
        """Select the finding, GPU or NIC that was clicked."""
        if self._state is not None:
            if picked.view.id == "findings":
                self._state.pick_finding(picked.id)
            else:
                self._state.select_end(picked.id)
            self.draw()

    def on_lines_view_title_picked(self, picked: LinesView.TitlePicked) -> None:
        """Show a panel alone whose title was clicked, or all again."""
        if picked.view.id in PANELS:
            self._toggle_zoom(picked.view.id)

    # What the sampler reports

    def take(self, report: Probed | Sampled | Replayed | Failed) -> None:
        """Shows what was read."""
        if isinstance(report, Failed):
            self._failure = report.what
            self._draw_verdict()
            return
        if self._state is None:
            from tui.screens.overview.state import OverviewState

            self._state = OverviewState()
        self._failure = ""
        self._state.take(report)
        newest = report.reports[-1] if isinstance(report, Replayed) else report
        if isinstance(newest, Sampled):
            self._taken_at = newest.taken_at
            self.readings += 1
            self.draw()

    def take_findings(
        self,
        findings: tuple[Finding, ...],
        examination: Examination | None = None,
        detours: frozenset[tuple[str, str]] = frozenset(),
    ) -> None:
        """Lists and marks what the checks found."""
        if self._state is not None:
            self._state.take_findings(findings, examination, detours)
            self.draw()

    def fail_check(self, what: str) -> None:
        """Says that the node could not be checked."""
        if self._state is not None:
            self._state.fail_check(what)
            self.draw()

    def tell_pace(self, pace: str) -> None:
        """Shows the interval, or that readings have stopped."""
        if self._pace != pace:
            self._pace = pace
            if self.is_mounted:
                self._draw_verdict()

    def tell_recording(self, state: str) -> None:
        """Shows that this node is being recorded, and how far; "" when it is not."""
        self._recording = state
        self._draw_verdict()

    def tell_acting(self, state: str) -> None:
        """Shows that an action runs here, and how far; "" when none does."""
        if self._acting != state:
            self._acting = state
            if self.is_mounted:
                self._draw_verdict()

    def tell_measuring(self, state: str) -> None:
        """Shows that a bandwidth test runs here, and how far; "" when none does."""
        if self._measuring != state:
            self._measuring = state
            if self.is_mounted:
                self._draw_verdict()

    def take_measured(self, results: tuple[Result, ...]) -> None:
        """Shows what was measured beside the paths."""
        if self._state is not None:
            self._state.take_measured(results)
            self.draw()

    @property
    def selected_pair(self) -> tuple[str, str]:
        """The selected GPU's and NIC's ids; "" for what is not selected."""
        return self._state.selected_pair if self._state else ("", "")

    @property
    def newest_readings(self) -> tuple[Reading | None, Reading | None]:
        """The newest reading and the one before it."""
        return self._state.newest_readings if self._state else (None, None)

    @property
    def hostname(self) -> str:
        """The node's name; "" while it is not known."""
        return self._state.hostname if self._state else ""

    def tell_silence(self, seconds: float, is_slow: bool = False) -> None:
        """Show how long an answer takes, from a node that is slow or silent; 0: it answers."""
        if int(seconds) != int(self._silence) or is_slow != self._is_slow:
            self._silence, self._is_slow = seconds, is_slow
            self._draw_verdict()

    # Keys

    @property
    def _focused_panel(self) -> str:
        focused = self.focused
        return (focused.id or "") if isinstance(focused, Panel) else ""

    def action_move(self, how: str) -> None:
        """Move the selection of the focused panel; scroll a panel without rows to select."""
        page = max(1, self._panel(self._focused_panel or "topology").size.height - 1)
        steps = {"up": -1, "down": 1, "page_up": -page, "page_down": page, "first": -_END, "last": _END}
        self._select(steps[how], wraps=how in ("up", "down"))

    def _select(self, step: int, wraps: bool) -> None:
        if self._state is None:
            return
        name = self._focused_panel
        if name == "findings":
            self._state.select_finding(step, wraps)
            self.draw()
            self._show_row(name, self._state.selected_finding)
            return
        view = self._panel(name) if name else None
        if view is not None and name not in _ENDPOINTS and view.max_scroll_y:
            view.scroll_to(y=view.scroll_offset.y + step, animate=False)
            return
        order = list(rows_of(self._panel("topology").lines))
        self._state.select(step, order, wraps)
        self.draw()
        self._show_row("topology", self._state.selected)

    def _show_row(self, panel: str, id: str) -> None:  # noqa: A002 - a run's own word
        view = self._panel(panel)
        row = rows_of(view.lines).get(id)
        if row is not None:
            view.scroll_to_row(row)

    def action_partner(self, step: int) -> None:
        """Shows the path to the next of the partners, nearest first."""
        if self._state is not None and self._state.selected:
            self._state.other_partner(step)
            self.draw()

    def action_open(self) -> None:
        """Opens what is selected: a finding in the doctor, a GPU or NIC in detail, else the panel alone."""
        state, name = self._state, self._focused_panel
        if state is None:
            return
        if name == "findings":
            if state.finding_to_open:
                self.post_message(self.FindingWanted(state.finding_to_open))
        elif state.selected and not self._zoomed and name in ("", *_ENDPOINTS):
            self._toggle_zoom("path")
        elif name and not self._zoomed:
            self._toggle_zoom(name)

    def action_filter(self) -> None:
        """Asks for a word that GPUs and NICs must contain."""
        self._word.display = True
        self._word.focus()
        self.draw()

    @property
    def _word(self) -> Input:
        return self.query_one("#filter", Input)

    def on_input_changed(self, changed: Input.Changed) -> None:
        """Shows only the GPUs and NICs that match."""
        if self._state is not None:
            self._state.filter(changed.value)
            self.draw()

    def on_input_submitted(self) -> None:
        """Back to the topology; the word stays."""
        self._word.display = bool(self._word.value.strip())
        self._panel("topology").focus()
        self.draw()

    def action_back(self) -> None:
        """Clears the filter, else leaves a panel shown alone, else clears the selection."""
        if self._word.display:
            self._word.value = ""
            self._word.display = False
            self._panel("topology").focus()
            self.draw()
        elif self._zoomed:
            self._toggle_zoom(self._zoomed)
        elif self._state is not None:
            self._state.select_nothing()
            self.draw()

    def action_pane(self, step: int) -> None:
        """Focus the next panel; where one is shown alone, show the next one alone, also of those hidden."""
        if self._zoomed:
            names = list(PANELS)
            self._toggle_zoom(names[(names.index(self._zoomed) + step) % len(names)])
        elif step > 0:
            self.focus_next()
        else:
            self.focus_previous()

    def action_zoom(self) -> None:
        """Shows the focused panel alone, or all again."""
        self._toggle_zoom(self._zoomed or self._focused_panel or "topology")

    def _toggle_zoom(self, panel: str) -> None:
        before, self._zoomed = self._zoomed, "" if self._zoomed == panel else panel
        self._arranged = None
        self.draw()
        focused = self._zoomed or (
            "topology" if before == "path" and self.selected_pair != ("", "") else before
        )
        if self._panel(focused).display:
            self._panel(focused).focus()

    # Drawing

    def _panel(self, name: str) -> LinesView:
        return self.query_one(f"#{name}", LinesView)

    def draw(self) -> None:
        """Draws every panel that is seen."""
        head_rows = self._draw_verdict()
        if self._state is None or not self.children or not self.readings:
            return
        topology_rows = self._arrange(self._state, head_rows)
        for name in PANELS:
            panel = self._panel(name)
            if panel.display and panel.room:
                rows = topology_rows if name == "topology" else 0
                panel.show(self._state.lines(name, panel.room, self._zoomed == name, rows))
        title = self._state.topology_title
        self._panel("topology").set_title(f"Topology · {title}" if title else "Topology")
        strips = self._panel("strips")
        if strips.display:
            strips.show(self._state.strips(self.size.width))

    def _arrange(self, state: OverviewState, head_rows: int) -> int:
        """Gives every panel its place; the rows that the topology has."""
        from tui.screens.overview import layout as overview_layout

        width, height = self.size
        height -= _FILTER_ROWS if self._word.display else 0
        if self._zoomed:
            arranged = overview_layout.zoomed(self._zoomed, width, height, head_rows)
        else:
            arranged = state.arrange(width, height, head_rows)
        if arranged == self._arranged:
            return arranged.topology_rows
        self._arranged = arranged
        with self.app.batch_update():
            for name in PANELS:
                panel = self._panel(name)
                panel.display = name in arranged.rows
                panel.styles.height = arranged.rows.get(name, 0)
            self._panel("modules").set_class(
                arranged.rows.get("modules") == overview_layout.FOLDED_ROWS, "folded"
            )
            self.set_class(arranged.is_one_column, "one-column")
            self.query_one("#right").styles.width = "1fr" if arranged.is_one_column else arranged.right_cells
            for name, panels in (
                ("top", ("findings", "jobs")),
                ("left", ("topology", "matrix", "rates")),
                ("right", ("modules", "gpudirect", "traffic", "path")),
            ):
                self.query_one(f"#{name}").display = any(panel in arranged.rows for panel in panels)
            self._panel("strips").display = bool(arranged.strip_rows)
        if self.focused is not None and not self.focused.display:
            self._panel(self._zoomed or "topology").focus()
        return arranged.topology_rows

    def _draw_verdict(self) -> int:
        """The verdict with what it is of, in at most two rows; the number of these rows."""
        if not self.children:  # not composed yet, or gone: a last reading may still come in
            return 0
        lines = head_drawing.draw(self._head(), self.size.width)
        self._panel("verdict").show(lines)
        return len(lines)

    def _head(self) -> Head:
        verdict: Line = (Run("reading…", Tone.DIM),)
        reason = ""
        if self._failure:
            verdict, reason = (Run("✗ reading failed", Tone.BAD),), self._failure
        elif self._state is not None and self._state.verdict is not None:
            verdict, reason = self._state.verdict_line(), self._state.verdict.reason
        is_live = self._origin.source is Source.LIVE
        is_usual = self._pace.startswith("every")
        silence = (
            f"slow: {self._silence:.0f} s so far" if self._is_slow else f"no answer for {self._silence:.0f} s"
        )
        words = (
            (silence if self._silence else "", Tone.WARNING if self._is_slow else Tone.BAD),
            (self._acting, Tone.WARNING),
            (self._measuring, Tone.WARNING),
            (self._recording, Tone.BAD),
            ("" if is_usual else self._pace, Tone.DIM),
        )
        return Head(
            verdict,
            reason,
            self.hostname,
            "" if is_live else self._origin.source.name,
            "" if is_live else self._origin.label,
            tuple(Run(f"  {word}", tone) for word, tone in words if word),
            self._pace if is_usual else "",
            local_time(self._taken_at) if self.readings else "",
        )
