"""Which panels of the overview are shown: one alone, those of a view, or all that have room."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.screen import Screen
from textual.widgets import Input

from tui.screens.keys import KEYS
from tui.screens.overview import layout as overview_layout
from tui.screens.overview.layout import START_VIEW, Arrangement
from tui.screens.overview.panel_grid import PANELS, Panel, place_panels
from tui.screens.own_settings import HIDE_PANELS, HIDEABLE
from tui.settings.current import current, is_configured
from widgets.base.lines_view import LinesView
from widgets.node.head import HEAD_ROWS

if TYPE_CHECKING:
    from tui.screens.overview.state import OverviewState

_FILTER_ROWS = 3


class PanelScreen(Screen[None]):
    """A head, and panels below it."""

    def __init__(self) -> None:
        super().__init__()
        self._state: OverviewState | None = None
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
        return self._state.selected_pair if self._state else ("", "")

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
        """Show the focused panel alone, or all panels again."""
        self._toggle_zoom(self._zoomed or self._focused_panel or "topology")

    def action_view(self, number: int) -> None:
        """Show all panels that have room, or those of another view."""
        self._view, self._zoomed, self._arranged = number, "", None
        self.draw()

    def action_hide(self) -> None:
        """Hide the focused panel, or show it again if it is hidden and maximized; save that."""
        name = self._zoomed or self._focused_panel
        if self._view != 1:
            keys = f"{KEYS['columns'].display} hides panels of view 1"
            self.notify(f"A view from 2 to 4 always has the same panels; {keys}.", markup=False)
            return
        if self._state is None or name not in HIDEABLE:
            self.notify(
                "Findings, jobs and topology are always shown. Tab selects another panel.", markup=False
            )
            return
        from tui.screens.save_setting import save_setting

        hidden = set(self._state.hidden) ^ {name}
        keys = f"{KEYS['zoom'].display}, Tab and {KEYS['columns'].display}"
        words = f"hidden; {keys} show it again" if name in hidden else "shown"
        save_setting(self.app, HIDE_PANELS, ", ".join(sorted(hidden)), f"{PANELS[name]} is {words}")
        self._zoomed, self._arranged = "", None
        self.draw()

    def save_start(self) -> None:
        """Save the view that is shown as the one at the start."""
        from tui.screens.save_setting import save_setting

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
