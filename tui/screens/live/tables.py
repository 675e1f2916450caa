"""The columns of Live's tables and the order of their rows: chosen on the screen, and saved."""

from __future__ import annotations

from collections.abc import Callable

from textual.screen import Screen

from tui.screens.live.columns import ColumnsScreen, SortScreen
from tui.screens.live.state import LiveState
from tui.screens.own_settings import HIDE, SORT
from tui.screens.save_setting import save_setting
from widgets.live import TABLE_NAMES
from widgets.live.columns import order_text

Draw = Callable[[], None]
"""Draws the screen with the new choice."""


def choose_columns(screen: Screen[None], draw: Draw, state: LiveState, table: str) -> None:
    """Let the user choose the columns of a table, and save them."""
    before = state.hidden[table]

    def apply(hidden: tuple[str, ...] | None) -> None:
        if hidden is not None and frozenset(hidden) != frozenset(before):
            state.hidden[table] = hidden
            draw()
            save_setting(screen.app, f"{HIDE}{table}", ", ".join(hidden), f"Columns of {TABLE_NAMES[table]}")

    screen.app.push_screen(ColumnsScreen(table, before), apply)


def choose_order(screen: Screen[None], draw: Draw, state: LiveState, table: str) -> None:
    """Let the user choose the order of a table's rows, and save it."""

    def apply(sort: str | None) -> None:
        if sort is not None:
            set_order(screen, draw, state, table, sort)

    screen.app.push_screen(SortScreen(table, state.sorts[table]), apply)


def set_order(screen: Screen[None], draw: Draw, state: LiveState, table: str, sort: str) -> None:
    """Sort a table, and save the order."""
    if sort == state.sorts[table]:
        return
    state.sorts[table] = sort
    draw()
    name = TABLE_NAMES[table]
    save_setting(screen.app, f"{SORT}{table}", sort, f"{name[0].upper()}{name[1:]} {order_text(sort)}")
