"""The key table: bindings, footer and help come from it. A key has one meaning on all screens.

A key that acts on the node or on a job is no other key with Shift, because Caps Lock must not run anything.
Function keys do what they do in htop, where gdrtop has the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from textual.binding import Binding
from textual.keys import format_key

from probes.base.data_files import read_toml

if TYPE_CHECKING:
    from textual.app import App


class Key(NamedTuple):
    """A meaning, and its keys."""

    keys: str  # Textual's names, the main one first
    display: str  # as shown in the footer and the help
    label: str  # in the footer: one or two words
    meaning: str  # in the help and as a tooltip


KEYS = {name: Key(*row) for name, row in read_toml(__name__, "keys.toml").items()}
FUNCTION_KEYS = frozenset(f"f{number}" for number in range(1, 13))


def ranks_of(table: Mapping[str, Key]) -> dict[str, int]:
    """Return the place in the footer of each key of a table."""
    return {name: rank for rank, key in enumerate(table.values()) for name in key.keys.split(",")}


RANKS = ranks_of(KEYS)
_NONE = "no_key"  # of a meaning whose keys the user has disabled; no terminal sends it


def bind(
    name: str, action: str, keys: str = "", *, show: bool = True, priority: bool = False, label: str = ""
) -> Binding:
    """Bind a key of the table, or some of its `keys`, to an action; `label` names it for this screen."""
    key = KEYS[name]
    return Binding(
        keys or key.keys or _NONE,
        action,
        label or key.label,
        show=show and bool(key.keys),
        key_display=key.display,
        priority=priority,
        tooltip=key.meaning,
    )


def bind_pair(
    name: str, action: str, step: int = 1, *, show: bool = True, label: str = ""
) -> tuple[Binding, Binding]:
    """Bind the keys that go forward to an action with this step, and those that go back to its opposite.

    The table has them in turn: "right,left", "down,up,j,k".
    """
    keys = KEYS[name].keys.split(",")
    forward, back = ",".join(keys[::2]), ",".join(keys[1::2])
    return (
        bind(name, f"{action}({step})", forward, show=show, label=label),
        bind(name, f"{action}({-step})", back, show=False),
    )


def move_keys(*, show: bool = True) -> tuple[Binding, ...]:
    """Bind the keys that move in the focused pane to `action_move`."""
    return (
        bind("select", "move('down')", "down,j", show=show),
        bind("select", "move('up')", "up,k", show=False),
        bind("page", "move('page_down')", "pagedown", show=False),
        bind("page", "move('page_up')", "pageup", show=False),
        bind("first", "move('first')", show=False),
        bind("last", "move('last')", show=False),
    )


def leave_keys(own: str = "") -> tuple[Binding, ...]:
    """Bind the keys that go one step back; `own`, by its name in the table, opens and closes the screen."""
    opener = (bind(own, "close", show=False),) if own else ()
    return (bind("quit", "leave"), bind("back", "leave", show=False), *opener)


# Nothing to say: they move, and there is nowhere to go.
_SILENT = frozenset(("open", "select", "change", "page", "first", "last", "pane", "back", "quit"))


@runtime_checkable
class SaysWhy(Protocol):
    """A screen or an app with keys that cannot always act."""

    def why_not(self, action: str) -> str | None:
        """Return why an action of a key cannot be done now, as a sentence, or ""; None: it can be done."""


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
