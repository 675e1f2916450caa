"""The key table: bindings, footer and help come from it. A key has one meaning on all screens.

A key that acts on the node or on a job is no other key with Shift, because Caps Lock must not run anything.
Function keys do what they do in htop, where gdrtop has the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from textual.binding import Binding
from textual.keys import format_key

if TYPE_CHECKING:
    from textual.app import App


class Key(NamedTuple):
    """A meaning, and its keys."""

    keys: str  # Textual's names, the main one first
    display: str  # as shown in the footer and the help
    label: str  # in the footer: one or two words
    meaning: str  # in the help and as a tooltip


# In the order in which the footer shows them, as long as there is room: see key_footer.py.
KEYS: dict[str, Key] = {
    "yes": Key("y", "y", "Yes", "Confirm"),
    "open": Key("enter", "Enter", "Open", "Open what is selected; in a plan, run it"),
    "ras": Key("i", "i", "Query RAS", "RAS: ask NCCL which ranks respond or are behind. Asks you first"),
    "moment": Key(
        *("right_square_bracket,left_square_bracket", "[ ]", "Time"),
        "Live and recordings: previous or next moment",
    ),
    "event": Key(
        "right_parenthesis,left_parenthesis", "( )", "Event", "Live: go to the previous or next event"
    ),
    "fix": Key("f", "f", "Fix", "Show the fix for this finding, step by step. Nothing runs yet"),
    "doctor": Key("d", "d", "Doctor", "Doctor: what is wrong, why, and how to fix it"),
    "live": Key("t", "t", "Live", "Live: which jobs use GPUDirect RDMA now, how fast, and what changed"),
    "setup": Key("s", "s", "Setup", "Setup: the steps from a new node to measured GPUDirect RDMA"),
    "actions": Key("x", "x", "Actions", "Actions: what gdrtop can do on this node"),
    "filter": Key("slash,f3,f4", "/", "Filter", "Show only lines that contain a word"),
    "undo": Key("u", "u", "Undo", "Show the steps that undo this run. Nothing runs yet"),
    "cancel": Key("ctrl+k,f9", "Ctrl+K", "Cancel", "Cancel the running test or action. Asks first"),
    "skip": Key("ctrl+n", "Ctrl+N", "Next test", "Stop this test and start the next one"),
    "again": Key("ctrl+r", "Ctrl+R", "Run again", "Run the same tests again"),
    "verbose": Key("v", "v", "Name ranks", "RAS: query again, and have the job name more ranks"),
    "diagnostics": Key(
        *("ctrl+d", "Ctrl+D", "Diagnostics"),
        "RAS: run NCCL's diagnostics in the job. First shows what they run",
    ),
    "write": Key("w", "w", "Write", "Write what is shown to a file in the current directory"),
    "copy": Key("c", "c", "Copy", "Copy the plan, the command for the peer, or a rank's py-spy command"),
    "view": Key(
        *("o,f6", "o", "View"), "Switch view: chart and console, paths and node. In a table: sort the rows"
    ),
    "path": Key("P", "P", "Path", "Setup: choose the other path, or go back to the recommended one"),
    "leave_out": Key("S", "S", "Skip", "Setup: skip this step, or stop skipping it"),
    "rehearse": Key(
        "T", "T", "Rehearse", "Plan: run it on a simulated copy of this node, and show the expected verdict"
    ),
    "load": Key("l", "l", "Load", "Show the plan that loads the missing modules"),
    "columns": Key(
        *("C,f2", "C", "Columns"),
        "Live: choose the columns of this table. Overview: hide this panel, or show it again",
    ),
    "explain": Key("e", "e", "Explain", "Explain in plain words what the finding means"),
    "all": Key("a", "a", "All", "Show everything, including ok checks and similar steps"),
    "peer": Key("p", "p", "Peer", "Type the host name of the peer"),
    "file": Key("O", "O", "Open file", "NCCL: type the path of a log"),
    "baseline": Key("B", "B", "Baseline", "Save the results as the baseline of this machine type"),
    "views": Key(
        "2,3,4", "1-4", "View", "Overview: 1 all panels, 2 matrix and path, 3 rates, 4 jobs and modules"
    ),
    "nccl": Key("n", "n", "NCCL", "NCCL: what a job's log says about GPUDirect RDMA"),
    "ras_events": Key("m", "m", "RAS events", "Follow a job's RAS events, or stop following"),
    "prove": Key(
        *("ctrl+g", "Ctrl+G", "Prove"),
        "Prove: register the memory of each GPU with each NIC for a moment. Asks you first",
    ),
    "bandwidth": Key("b", "b", "Bandwidth", "Bandwidth: measure between GPU and NIC"),
    "fleet": Key("F", "F", "Fleet", "Fleet: many nodes, the worst first, and what changed"),
    "select": Key("down,up,j,k", "↑↓", "Select", "Select the next or previous row, or scroll"),
    "change": Key("right,left", "←→", "Change", "Next or previous partner, or value of the selected row"),
    "zoom": Key("z", "z", "Zoom", "Maximize this panel, or show all panels"),
    "history": Key("H", "H", "History", "History: what gdrtop ran on this node, and how to undo it"),
    "pause": Key("space", "Space", "Pause", "Pause or resume the readings. In a list of marks: change one"),
    "refresh": Key("r,f5", "r", "Refresh", "Read and check the whole node again"),
    "repaint": Key("ctrl+l", "Ctrl+L", "Repaint", "Redraw the screen if something else wrote over it"),
    "record": Key("R", "R", "Record", "Start or stop recording this node to a file"),
    "overview": Key("1", "1", "Overview", "Overview: GPUs, NICs, jobs and how they are connected"),
    "first": Key("home,g", "g Home", "First", "Go to the first row or the top"),
    "last": Key("end,G", "G End", "Last", "Go to the last row or the end"),
    "page": Key("pagedown,pageup", "PgDn PgUp", "Page", "Move or scroll one page down or up"),
    "moments": Key(
        *("right_curly_bracket,left_curly_bracket,shift+right,shift+left", "{ }", "Ten moments"),
        "Live and recordings: ten moments back or forward",
    ),
    "ends": Key(
        "greater_than_sign,less_than_sign", "< >", "Start, end", "Live and recordings: first or last moment"
    ),
    "pace": Key("plus,equals_sign,minus", "+ -", "Interval", "Halve or double the interval between readings"),
    "pane": Key("tab,shift+tab", "Tab", "Pane", "Next pane"),
    "palette": Key("colon,ctrl+p", ":", "Commands", "Find a command by name"),
    "back": Key("escape", "Esc", "Back", "Close the prompt, filter or selection, or go one step back"),
    "exit": Key("ctrl+c,ctrl+q,f10", "Ctrl+C", "Quit", "Quit gdrtop. Asks if a test or an action is running"),
    "help": Key("question_mark,f1,h", "?", "Help", "Help for this screen"),
    "quit": Key("q", "q", "Back", "Go one step back. On the first screen, quit gdrtop"),
}


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
