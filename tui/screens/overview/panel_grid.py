"""The panels of the overview: their titles, and their places on the screen."""

from __future__ import annotations

from typing import Any

from textual.screen import Screen

from tui.screens.overview.layout import Arrangement
from tui.screens.own_settings import PLACES
from widgets.base.lines_view import LinesView

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
