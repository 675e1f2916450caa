"""The footer: the keys of a screen, the most important first, none of them cut off."""

from __future__ import annotations

from typing import NamedTuple

from rich.cells import cell_len
from rich.text import Text
from textual import events
from textual.binding import Binding
from textual.geometry import Size
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Input

from tui.screens.keys import RANKS


class _Item(NamedTuple):
    key: str
    display: str
    label: str

    @property
    def cells(self) -> int:
        return cell_len(self.display) + cell_len(self.label) + 3


def typing_items(enter: str = "Done", tab: str = "") -> tuple[_Item, ...]:
    """Return what the footer shows while a field has the focus; the words say what the keys do."""
    items = (_Item("enter", "Enter", enter), _Item("tab", "Tab", tab), _Item("escape", "Esc", "Cancel"))
    return tuple(item for item in items if item.label)


class KeyFooter(Widget):
    """One line of keys. A click on one presses it.

    Textual's own footer cuts a key in half and builds ten widgets whenever a binding changes.
    """

    ALLOW_SELECT = False
    DEFAULT_CSS = """
    KeyFooter {
        dock: bottom;
        height: 1;
        color: $footer-foreground;
        background: $footer-background;
        text-wrap: nowrap;
    }
    """

    def __init__(self, typing: tuple[_Item, ...] = ()) -> None:
        super().__init__()
        self._typing = typing or typing_items()
        self._items: list[_Item] = []

    def on_mount(self) -> None:
        """Follow the bindings of the screen."""
        self.screen.bindings_updated_signal.subscribe(self, self._update)

    def on_unmount(self) -> None:
        """Stop following them."""
        self.screen.bindings_updated_signal.unsubscribe(self)

    def on_resize(self) -> None:
        """Show as many keys as fit."""
        self._update(self.screen)

    def _update(self, screen: Screen[object]) -> None:
        if screen is not self.screen or not self.is_attached:
            return
        if isinstance(screen.focused, Input):
            items = list(self._typing)
        else:
            bindings = [(binding, enabled) for _, binding, enabled, _ in screen.active_bindings.values()]
            items = items_that_fit(bindings, self.size.width)
        if items != self._items:
            self._items = items
            self.refresh()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Return one line."""
        return 1

    def render(self) -> Text:
        """Draw the keys."""
        parts: list[str | tuple[str, str]] = []
        for item in self._items:
            parts.extend([(f" {item.display}", "bold"), f" {item.label} "])
        return Text.assemble(*parts, no_wrap=True)

    def on_click(self, event: events.Click) -> None:
        """Press the key under the mouse."""
        column = event.x
        for item in self._items:
            if column < item.cells:
                self.app.simulate_key(item.key)
                return
            column -= item.cells


def items_that_fit(bindings: list[tuple[Binding, bool]], width: int) -> list[_Item]:
    """Return the keys that fit in `width` cells, the most important first, each once."""
    items: list[_Item] = []
    shown = {binding.action: binding for binding, enabled in reversed(bindings) if binding.show and enabled}
    for binding in sorted(shown.values(), key=lambda binding: RANKS.get(binding.key, len(RANKS))):
        item = _Item(binding.key, binding.key_display or binding.key, binding.description)
        if item.cells <= width:
            items.append(item)
            width -= item.cells
    return items
