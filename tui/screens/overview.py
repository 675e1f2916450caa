"""The overview: the whole node on one screen, live."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.screen import Screen

from probes.origin import Origin, Source
from tui.keys import bind
from tui.sampler import Failed, Probed, Replayed, Sampled
from tui.screens.key_footer import KeyFooter
from widgets.lines import Line, Run, Tone, fit, rows_of, width_of, wrapped
from widgets.lines_view import LinesView

if TYPE_CHECKING:
    from probes.bandwidth.result import Result
    from probes.checks.finding import Finding
    from probes.rates import Reading
    from tui.overview_state import OverviewState

PANELS = {
    "topology": "Topology",
    "matrix": "GPU × NIC",
    "modules": "Modules · refcnt",
    "gpudirect": "GPUDirect RDMA",
    "traffic": "Traffic",
    "path": "Path",
}
NARROW = 100


class OverviewScreen(Screen[None]):
    """Verdict, topology, matrix, ladder, GPUDirect state, traffic, and the path of what is selected."""

    BINDINGS = [  # noqa: RUF012 - Textual's own type
        Binding("down,j", "select(1)", "Select", key_display="↑↓", tooltip="Select a GPU or NIC", id="next"),
        Binding("up,k", "select(-1)", "Select", show=False, id="previous"),
        Binding("left,comma", "partner(-1)", "Partner", show=False, id="partner_before"),
        Binding("right", "partner(1)", "Partner", key_display="←→", tooltip="Another partner", id="partner"),
        Binding("full_stop", "partner(1)", "Partner", show=False, id="partner_after"),
        *(
            Binding(str(number), f"zoom('{panel}')", "Panel", show=number == 1, key_display="1-6", id=panel)
            for number, panel in enumerate(PANELS, 1)
        ),
        bind("load", "app.act('load-modules')", show=False),
        Binding("escape", "back", "Back", show=False, id="back"),
        Binding("pagedown", "page(1)", "Page", show=False, id="page_down"),
        Binding("pageup", "page(-1)", "Page", show=False, id="page_up"),
    ]

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
        self._failure = ""
        self._taken_at = 0.0
        self.readings = 0

    def compose(self) -> ComposeResult:
        """The panels; what each shows comes with the readings."""
        panels = {name: LinesView(title, id=name) for name, title in PANELS.items()}
        verdict, strips = LinesView(id="verdict"), LinesView(id="strips")
        verdict.can_focus = strips.can_focus = False
        yield verdict
        with Horizontal(id="body"):
            with Vertical(id="left"):
                yield panels.pop("topology")
                yield panels.pop("matrix")
            with Vertical(id="right"):
                yield from panels.values()
        yield strips
        yield KeyFooter()

    def on_mount(self) -> None:
        """Says at once that it is reading."""
        self._panel("topology").show([(Run("Reading the node …", Tone.DIM),)])
        self._panel("topology").focus()
        self._draw_verdict()

    def on_lines_view_resized(self) -> None:
        """Draws anew: every drawing depends on its pane's width."""
        self.draw()

    # What the sampler reports

    def take(self, report: Probed | Sampled | Replayed | Failed) -> None:
        """Shows what was read."""
        if isinstance(report, Failed):
            self._failure = report.what
            self._draw_verdict()
            return
        if self._state is None:
            from tui.overview_state import OverviewState

            self._state = OverviewState()
        self._failure = ""
        self._state.take(report)
        newest = report.reports[-1] if isinstance(report, Replayed) else report
        if isinstance(newest, Sampled):
            self._taken_at = newest.taken_at
            self.readings += 1
            self.draw()

    def take_findings(self, findings: tuple[Finding, ...]) -> None:
        """Marks what the doctor found."""
        if self._state is not None:
            self._state.take_findings(findings)
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

    def tell_silence(self, seconds: float) -> None:
        """Shows for how long the node has not answered; 0: it answers."""
        if int(seconds) != int(self._silence):
            self._silence = seconds
            self._draw_verdict()

    # Keys

    def action_select(self, step: int) -> None:
        """Selects the next GPU or NIC, drawn below or above."""
        if self._state is None:
            return
        topology = self._panel("topology")
        self._state.select(step, list(rows_of(topology.lines)))
        self.draw()
        row = rows_of(topology.lines).get(self._state.selected)
        if row is not None:
            topology.scroll_to_row(row)

    def action_partner(self, step: int) -> None:
        """Shows the path to the next of the partners, nearest first."""
        if self._state is not None and self._state.selected:
            self._state.other_partner(step)
            self.draw()

    def action_back(self) -> None:
        """Leaves a panel shown alone, else gives the selection up."""
        if self._zoomed:
            self.action_zoom(self._zoomed)
        elif self._state is not None:
            self._state.select_nothing()
            self.draw()

    def action_page(self, step: int) -> None:
        """Scrolls the focused panel by a page."""
        if isinstance(self.focused, LinesView):
            (self.focused.action_page_down if step > 0 else self.focused.action_page_up)()

    def action_zoom(self, panel: str) -> None:
        """Shows one panel alone, or all again."""
        if self._zoomed:
            self.remove_class(f"zoom-{self._zoomed}")
        self._zoomed = "" if self._zoomed == panel else panel
        self.set_class(bool(self._zoomed), "zoomed")
        if self._zoomed:
            self.add_class(f"zoom-{panel}")
            self._panel(panel).focus()
        self.call_after_refresh(self.draw)

    # Drawing

    def _panel(self, name: str) -> LinesView:
        return self.query_one(f"#{name}", LinesView)

    def draw(self) -> None:
        """Draws every panel that is seen."""
        self._draw_verdict()
        if self._state is None or not self.children:
            return
        as_list = self.size.width < NARROW and not self._zoomed
        for name in PANELS:
            panel = self._panel(name)
            if panel.display and panel.room:
                panel.show(self._state.lines(name, panel.room, self._zoomed == name, as_list))
        strips = self._panel("strips")
        if strips.display:
            strips.show(self._state.strips(self.size.width))

    def _draw_verdict(self) -> None:
        if not self.children:  # not composed yet, or gone: a last reading may still come in
            return
        width = self.size.width
        host = self.hostname
        left: Line = (
            Run("gdrtop ", Tone.TITLE),
            Run(f"{host} " if host and not self._origin.label.startswith(host) else ""),
        )
        head = left
        if self._origin.source is not Source.LIVE:
            left = (*head, Run(f" {self._origin.source.name} {self._origin.label} ", Tone.CURSOR), Run(" "))
        reason = ""
        verdict: Line = (Run("reading …", Tone.DIM),)
        if self._failure:
            verdict, reason = (Run("✗ reading failed", Tone.BAD),), self._failure
        elif self._state is not None and self._state.verdict is not None:
            verdict, reason = self._state.verdict_line(), self._state.verdict.reason
        clock = time.strftime("%H:%M:%S", time.gmtime(self._taken_at)) if self.readings else ""
        silence = f" no answer for {self._silence:.0f} s " if self._silence else ""
        right: Line = (
            Run(silence, Tone.BAD),
            Run(f" {self._acting} " if self._acting else "", Tone.WARNING),
            Run(f" {self._measuring} " if self._measuring else "", Tone.WARNING),
            Run(f" {self._recording} " if self._recording else "", Tone.BAD),
            Run(f" {self._pace} {clock}", Tone.DIM),
        )
        told: Line = (*left, *verdict, Run(f" · {reason}" if reason else ""))
        room = width - width_of(right)
        if self._pace.startswith("every") and width_of((*left, *verdict)) > room:
            right = (*right[:-1], Run(f" {clock}", Tone.DIM))
            room = width - width_of(right)
        # A recording's label has a time in it, and gives way before the reason does.
        firm = told if self._origin.source is Source.RECORDED else (*left, *verdict)
        if self._origin.source is not Source.LIVE and width_of(firm) > room:
            # What this is of may take much room, and the verdict stands first.
            left = (*head, Run(f" {self._origin.source.name} ", Tone.CURSOR), Run(" "))
            reason = " · ".join(filter(None, (self._origin.label, reason)))
        if width_of(told) <= room:
            lines: list[Line] = [(*fit(told, room), *right)]
        else:
            lines = [(*fit((*left, *verdict), room), *right), *wrapped(reason, width - 2, Tone.PLAIN, "  ")]
        self._panel("verdict").show(lines)
