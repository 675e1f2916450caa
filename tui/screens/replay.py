"""The overview of a recording: the same screen, and keys to move in time."""

from __future__ import annotations

from textual.binding import Binding

from tui.screens.overview import OverviewScreen


class ReplayScreen(OverviewScreen):
    """The overview in which ← and → move in time; the partners are on , and . as everywhere."""

    BINDINGS = [  # noqa: RUF012 - Textual's own type
        # These before the focused panel's own keys for scrolling.
        Binding("left", "app.move(-1)", "Move", show=False, priority=True, id="moment_before"),
        Binding(
            "right",
            "app.move(1)",
            "Move",
            key_display="←→",
            tooltip="A moment back or on",
            priority=True,
            id="moment_after",
        ),
        Binding("home", "app.move_to_end(-1)", "First", show=False, priority=True, id="first_moment"),
        Binding("end", "app.move_to_end(1)", "Last", show=False, priority=True, id="last_moment"),
        Binding("shift+left,left_square_bracket", "app.move(-10)", "Move", show=False, id="moments_before"),
        Binding("shift+right,right_square_bracket", "app.move(10)", "Move", show=False, id="moments_after"),
    ]
