"""Which panels of the overview are shown: one alone, those of a view, or all that have room."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from textual.screen import Screen
from textual.widgets import Input

from tui.screens.head import HEAD_ROWS
from tui.screens.keys import KEYS
from tui.screens.overview import layout as overview_layout
from tui.screens.overview.layout import START_VIEW, Arrangement
from tui.screens.own_settings import HIDE_PANELS, HIDEABLE, PLACES, save_setting
from tui.settings.current import current, is_configured
from widgets.base.lines_view import LinesView

if TYPE_CHECKING:
    from tui.screens.overview.state import OverviewState


PANELS = {
    "findings": "Findings",
    "jobs": "Jobs",
    "topology": "Topology",
    "matrix": "GPU × NIC",
    "rates": "NIC rates",
    "modules": "Modules",
    "gpudirect": "GPUDirect RDMA",
    "traffic": "Traffic · 2 min",
    "path": "Path",
}
_MANY_IN_A_ROW = ("topology", "matrix")  # a row has several GPUs and NICs


class Panel(LinesView):
    """A panel with a border, which can be shown alone."""


def new_panel(name: str) -> Panel:
    """Return a new panel."""
    return Panel(PANELS[name], id=name, picks_rows=name not in _MANY_IN_A_ROW)


def mount_panels(screen: Screen[Any]) -> None:
    """Mount all panels but the topology, which the first frame has, and the strips."""
    for place, names in PLACES.items():
        panels = [new_panel(name) for name in names if name != "topology"]
        screen.query_one(f"#{place}").mount(*panels)
    strips = LinesView(id="strips")
    strips.can_focus = False
    screen.mount(strips, after="#body")


def place_panels(screen: Screen[Any], arranged: Arrangement) -> None:
    """Give each panel its rows, and hide those without."""
    with screen.app.batch_update():
        for name in PANELS:
            panel = screen.query_one(f"#{name}")
            panel.display = name in arranged.rows
            panel.styles.height = arranged.rows.get(name, 0)
        screen.set_class(arranged.is_one_column, "one-column")
        screen.query_one("#right").styles.width = "1fr" if arranged.is_one_column else arranged.right_cells
        for place, names in PLACES.items():
            screen.query_one(f"#{place}").display = any(name in arranged.rows for name in names)
        # Without a panel it would still take a row, and the screen would scroll.
        below = (*PLACES["left"], *PLACES["right"])
        screen.query_one("#body").display = any(name in arranged.rows for name in below)
        screen.query_one("#strips").display = bool(arranged.strips)


_FILTER_ROWS = 3


class PanelScreen(Screen[None]):
    """A head, and panels below it."""

    def __init__(self) -> None:
        super().__init__()
        self.state: OverviewState | None = None
        self._has_panels = False  # those that show what was read
        self._zoomed = ""
        # 1: the panels that have room; 2 to 4: VIEWS of tui/screens/overview/layout.py
        self._view = int(str(current().configured(START_VIEW).value)) if is_configured() else 1
        self._word: Input | None = None  # the filter, once it has been asked for
        self._arranged: Arrangement | None = None

    def draw(self) -> None:
        """Draw every visible panel."""
        raise NotImplementedError

    def _panel(self, name: str) -> LinesView:
        return self.query_one(f"#{name}", LinesView)

    @property
    def selected_pair(self) -> tuple[str, str]:
        """The selected GPU's and NIC's ids; "" for what is not selected."""
        return self.state.selected_pair if self.state else ("", "")

    @property
    def _focused_panel(self) -> str:
        focused = self.focused
        return (focused.id or "") if isinstance(focused, Panel) else ""

    def _focus_home(self) -> None:
        """Focus the topology, or the first panel where it is not shown."""
        names = ("topology",) if self._arranged is None else self._arranged.rows
        self._panel("topology" if "topology" in names else next(iter(names))).focus()

    @property
    def _is_filter_shown(self) -> bool:
        return self._word is not None and self._word.display

    def action_pane(self, step: int) -> None:
        """Focus the next panel; if one is shown alone, show the next one alone, hidden ones included."""
        if self._zoomed:
            names = list(PANELS)
            self._toggle_zoom(names[(names.index(self._zoomed) + step) % len(names)])
        elif step > 0:
            self.focus_next()
        else:
            self.focus_previous()

    def action_zoom(self) -> None:
        self._toggle_zoom(self._zoomed or self._focused_panel or "topology")

    def action_view(self, number: int) -> None:
        self._view, self._zoomed, self._arranged = number, "", None
        self.draw()

    def action_hide(self) -> None:
        """Hide the focused panel, or show it again if it is hidden and maximized; save that."""
        name = self._zoomed or self._focused_panel
        if self._view != 1:
            keys = f"{KEYS['columns'].display} hides panels of view 1"
            self.notify(f"A view from 2 to 4 always has the same panels; {keys}.", markup=False)
            return
        if self.state is None or name not in HIDEABLE:
            self.notify(
                "Findings, jobs and topology are always shown. Tab selects another panel.", markup=False
            )
            return
        hidden = set(self.state.hidden) ^ {name}
        keys = f"{KEYS['zoom'].display}, Tab and {KEYS['columns'].display}"
        words = f"hidden; {keys} show it again" if name in hidden else "shown"
        save_setting(self.app, HIDE_PANELS, ", ".join(sorted(hidden)), f"{PANELS[name]} is {words}")
        self._zoomed, self._arranged = "", None
        self.draw()

    def save_start(self) -> None:
        """Save the view that is shown as the one at the start."""
        save_setting(self.app, START_VIEW, str(self._view), f"gdrtop starts with view {self._view}")

    def _toggle_zoom(self, panel: str) -> None:
        before, self._zoomed = self._zoomed, "" if self._zoomed == panel else panel
        self._arranged = None
        self.draw()
        focused = self._zoomed or (
            "topology" if before == "path" and self.selected_pair != ("", "") else before
        )
        if self._has_panels and self._panel(focused).display:
            self._panel(focused).focus()

    def _arrange(self, state: OverviewState) -> Arrangement:
        """Place every panel and return how."""
        width, height = self.size
        height -= HEAD_ROWS + (_FILTER_ROWS if self._is_filter_shown else 0)
        if self._zoomed:
            arranged = overview_layout.zoomed(self._zoomed, width, height)
        elif self._view != 1:
            arranged = state.view(self._view, width, height)
        else:
            arranged = state.arrange(width, height)
        if arranged == self._arranged:
            return arranged
        self._arranged = arranged
        place_panels(self, arranged)
        if self.focused is not None and not self.focused.display:
            self._focus_home()
        return arranged
