"""The footer: the keys of a screen, few and none of them cut off; those that matter now come first."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from rich.cells import cell_len
from rich.text import Text
from textual import events
from textual.binding import Binding
from textual.geometry import Size
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Input

from tui.screens.keys import KEYS, RANKS

MOST_ITEMS = 9
_ALWAYS = frozenset(key for name in ("help", "quit") for key in KEYS[name].keys.split(","))


@runtime_checkable
class HasLeadingKeys(Protocol):
    """A screen in whose situation some keys matter most."""

    @property
    def leading_keys(self) -> tuple[str, ...]:
        """Their names in the key table."""


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
        self.screen.bindings_updated_signal.unsubscribe(self)

    def on_resize(self) -> None:
        self._update(self.screen)

    def _update(self, screen: Screen[object]) -> None:
        if screen is not self.screen or not self.is_attached:
            return
        if isinstance(screen.focused, Input):
            items = list(self._typing)
        else:
            bindings = [
                (binding, is_enabled, node is not self.app)
                for node, binding, is_enabled, _ in screen.active_bindings.values()
            ]
            leading = screen.leading_keys if isinstance(screen, HasLeadingKeys) else ()
            items = items_that_fit(bindings, self.size.width, leading)
        if items != self._items:
            self._items = items
            self.refresh()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return 1

    def render(self) -> Text:
        parts: list[str | tuple[str, str]] = []
        for item in self._items:
            parts.extend([(f" {item.display}", "bold"), f" {item.label} "])
        return Text.assemble(*parts, no_wrap=True)

    def on_click(self, event: events.Click) -> None:
        column = event.x
        for item in self._items:
            if column < item.cells:
                self.app.simulate_key(item.key)
                return
            column -= item.cells


def items_that_fit(
    bindings: Sequence[tuple[Binding, bool, bool]], width: int, leading: Collection[str] = ()
) -> list[_Item]:
    """Return the keys that fit in `width` cells, in the order of the table, each once.

    `bindings`: with whether they are enabled, and whether they are the screen's own, which come before the
    app's where there is no room for all; `leading`: names of keys that matter now, which come first.
    """
    keys = {key for name in leading for key in KEYS[name].keys.split(",")}
    shown: dict[str, tuple[Binding, bool]] = {}
    for binding, is_enabled, is_own in reversed(bindings):
        if is_enabled and (binding.show or binding.key in keys):
            shown[binding.action] = binding, is_own

    def rank(binding: Binding) -> tuple[bool, int]:
        return binding.key not in keys, RANKS.get(binding.key, len(RANKS))

    def need(pair: tuple[Binding, bool]) -> tuple[bool, bool, bool, int]:
        binding, is_own = pair
        return binding.key not in _ALWAYS, binding.key not in keys, not is_own, rank(binding)[1]

    chosen: list[Binding] = []
    for binding, _ in sorted(shown.values(), key=need):
        item = _item(binding)
        if item.cells <= width and len(chosen) < MOST_ITEMS:
            chosen.append(binding)
            width -= item.cells
    return [_item(binding) for binding in sorted(chosen, key=rank)]


def _item(binding: Binding) -> _Item:
    return _Item(binding.key, binding.key_display or binding.key, binding.description)
