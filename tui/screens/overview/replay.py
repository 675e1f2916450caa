"""The overview of a recording: the same screen, and keys to move in time."""

from __future__ import annotations

from tui.screens.keys import bind
from tui.screens.overview.screen import OverviewScreen


class ReplayScreen(OverviewScreen):
    """The overview with keys that move in time."""

    BINDINGS = [  # noqa: RUF012 - Textual's own type
        bind("moment", "app.move(1)", "right_square_bracket"),
        bind("moment", "app.move(-1)", "left_square_bracket", show=False),
        bind("moments", "app.move(10)", "right_curly_bracket,shift+right", show=False),
        bind("moments", "app.move(-10)", "left_curly_bracket,shift+left", show=False),
        bind("ends", "app.move_to_end(1)", "greater_than_sign", show=False),
        bind("ends", "app.move_to_end(-1)", "less_than_sign", show=False),
    ]
