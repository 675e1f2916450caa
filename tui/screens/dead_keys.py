"""Why a pressed key does nothing: a key that seems broken sends people to the wrong conclusion."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

from textual.app import App
from textual.binding import Binding
from textual.keys import format_key

from tui.screens.keys import KEYS, RANKS

# Nothing to say: they move, and there is nowhere to go.
_SILENT = frozenset(("open", "select", "change", "page", "first", "last", "pane", "back", "quit"))


@runtime_checkable
class SaysWhy(Protocol):
    """A screen or an app with keys that cannot always act."""

    def why_not(self, action: str) -> str:
        """Return why this action of a key cannot be done now, as a sentence; "" if there is no reason."""


def why_dead(app: App[Any], key: str) -> str:
    """Return why a key of the table did nothing on the top screen; "" for a key that moves."""
    rank = RANKS.get(key)
    screen = app.screen
    if rank is None or screen.is_modal:
        return ""
    name = list(KEYS)[rank]
    is_main = key == KEYS[name].keys.split(",")[0]
    shown, label = KEYS[name].display if is_main else format_key(key).capitalize(), KEYS[name].label
    actions = [(node, action) for node in (screen, app) for action in _actions(type(node), key)]
    reasons = (node.why_not(action) for node, action in actions if isinstance(node, SaysWhy))
    reason = next(filter(None, reasons), "")
    if reason:
        return f"{shown} ({label}): {reason}"
    if name in _SILENT:
        return ""
    if actions:
        return f"{shown} ({label}) has nothing to act on here."
    return f"{shown} ({label}) does nothing on this screen. Press {KEYS['help'].display} for its keys."


def _actions(kind: type, key: str) -> Iterator[str]:
    """Yield what a class and its parents bind to a key."""
    for parent in kind.__mro__:
        for binding in Binding.make_bindings(parent.__dict__.get("BINDINGS", ())):
            if binding.key == key:
                yield binding.action
