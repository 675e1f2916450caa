"""The help: the keys of each screen, and the manual."""

from __future__ import annotations

import textwrap

from rich.cells import cell_len
from textual.app import ComposeResult

from tui.manual import SUBJECTS, page, title
from tui.screens.head import HeadView
from tui.screens.key_footer import KeyFooter
from tui.screens.keys import FUNCTION_KEYS, KEYS, bind_pair, leave_keys
from tui.screens.list_screen import PanesScreen, static_view
from widgets.base.lines import Line, Run, Tone, line
from widgets.base.lines_view import LinesView
from widgets.base.markdown import markdown_lines

_KEY_CELLS = 11

# Each screen's keys by their names in the key table, and one sentence on what the screen is for.
_SCREENS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "OverviewScreen": (
        "OVERVIEW",
        "The whole node, live. Select a GPU or NIC to see its path to the best partner.",
        (
            *("open", "fix", "explain", "load", "select", "change", "views", "zoom"),
            *("columns", "pause", "pace", "refresh", "record", "back", "quit"),
        ),
    ),
    "LiveScreen": (
        "LIVE",
        "Jobs, their ranks, paths and rates, now and in the last hour, and what changed.",
        (
            *("open", "moment", "event", "ras", "ras_events", "moments", "ends", "filter", "view", "columns"),
            *("zoom", "write", "copy", "pause", "record"),
        ),
    ),
    "NcclScreen": (
        "NCCL",
        "Job logs on this node: whether GPUDirect RDMA is used, why not, and what errors mean.",
        ("open", "file", "ras", "filter", "write", "refresh", "zoom"),
    ),
    "ReadScreen": (
        "PASTED TEXT",
        "What a pasted text means. Paste a log, the output of a command or a script on any screen.",
        ("write", "copy"),
    ),
    "RasScreen": (
        "RAS",
        "What NCCL's RAS service knows about a job's ranks. Nothing is sent until you confirm.",
        ("open", "verbose", "ras_events", "diagnostics", "write", "refresh", "zoom"),
    ),
    "ReplayScreen": (
        "RECORDING",
        "The overview of a recorded node (gdrtop --replay FILE), with keys to move through time.",
        ("moment", "moments", "ends", "pause"),
    ),
    "DoctorScreen": (
        "DOCTOR",
        "Findings with impact, cause, evidence and fix. Findings with the same cause are grouped.",
        ("open", "fix", "explain", "all", "filter", "refresh", "zoom"),
    ),
    "SetupScreen": (
        "SETUP",
        "The steps from a new node to working, measured GPUDirect RDMA that survives a reboot.",
        ("open", "view", "path", "leave_out", "write", "filter", "refresh", "zoom"),
    ),
    "ActionsScreen": (
        "ACTIONS",
        "What gdrtop can do here. Nothing runs until you have seen and confirmed the plan.",
        ("open", "filter", "refresh", "zoom"),
    ),
    "ConfirmScreen": (
        "PLAN",
        "Review every step before it runs. If running jobs would be affected, type the host name to confirm.",
        ("open", "rehearse", "copy", "write"),
    ),
    "RunScreen": ("CONSOLE", "A running action. Leaving the screen does not stop it.", ("cancel", "write")),
    "BandwidthSetupScreen": (
        "BANDWIDTH TEST",
        "Settings of a test between GPU and NIC, and the commands that would run.",
        ("open", "yes", "select", "change", "peer", "copy", "zoom"),
    ),
    "BandwidthRunScreen": (
        "BANDWIDTH RESULTS",
        "Running tests and their results. Leaving the screen does not stop them.",
        ("cancel", "skip", "view", "again", "write", "copy", "baseline", "zoom"),
    ),
    "RegistrationScreen": (
        "PROVE",
        "Which NICs can register which GPU's memory. Nothing is registered until you confirm.",
        ("open", "cancel", "write", "refresh"),
    ),
    "FleetScreen": (
        "FLEET",
        "Many nodes, read every minute (gdrtop fleet watch). Enter opens the dashboard of the selected node.",
        ("open", "view", "filter", "refresh", "back", "quit", "zoom"),
    ),
    "HistoryScreen": ("HISTORY", "What gdrtop ran on this node, newest run first.", ("open", "undo", "zoom")),
}
_EVERYWHERE = (
    *("help", "overview", "doctor", "live", "nccl", "setup", "bandwidth", "prove", "actions"),
    *("history", "fleet", "palette", "pane", "select", "page", "first", "last", "open", "back"),
    *("quit", "exit"),
)
# The manual's subject of each screen; the others belong to the overview.
_SUBJECTS = {
    "ReplayScreen": "recording",
    "DoctorScreen": "doctor",
    "LiveScreen": "live",
    "NcclScreen": "nccl-log",
    "ReadScreen": "read",
    "RasScreen": "ras",
    "SetupScreen": "setup",
    "ActionsScreen": "actions",
    "ConfirmScreen": "actions",
    "RunScreen": "actions",
    "FleetScreen": "fleet",
    "HistoryScreen": "actions",
    "BandwidthSetupScreen": "bandwidth",
    "RegistrationScreen": "prove",
    "BandwidthRunScreen": "bandwidth",
}


def _keys(names: tuple[str, ...], width: int) -> list[Line]:
    lines: list[Line] = []
    for name in names:
        key = KEYS[name]
        room = max(20, width - _KEY_CELLS - 2)
        first, *rest = textwrap.wrap(key.meaning, room, break_on_hyphens=False)
        functions = (part.upper() for part in key.keys.split(",") if part in FUNCTION_KEYS)
        display = " ".join([key.display, *(part for part in functions if part not in key.display.upper())])
        shown = f"  {display}{' ' * (_KEY_CELLS - cell_len(display))}"
        lines.append((Run(shown, Tone.TITLE), Run(first)))
        lines.extend((Run(" " * (_KEY_CELLS + 2) + piece),) for piece in rest)
    return lines


class HelpScreen(PanesScreen):
    """Keys, and the manual; it opens at the subject of the screen from which it was opened."""

    BINDINGS = [  # noqa: RUF012 - Textual's own type
        *bind_pair("change", "turn", label="Subject"),
        *leave_keys("help"),
    ]

    def __init__(self, opened_from: str = "") -> None:
        super().__init__()
        self._screen = opened_from if opened_from in _SCREENS else "OverviewScreen"
        self._opened_at = self._subject = _SUBJECTS.get(self._screen, "dashboard")

    def compose(self) -> ComposeResult:
        yield HeadView("Help")
        yield static_view("summary")
        yield LinesView("Keys and manual", id="help")
        yield KeyFooter()

    def on_mount(self) -> None:
        self._view("help").focus()

    def action_turn(self, pages: int) -> None:
        self._subject = SUBJECTS[(SUBJECTS.index(self._subject) + pages) % len(SUBJECTS)]
        self.on_lines_view_resized()
        self._view("help").scroll_home(animate=False)

    def on_lines_view_resized(self) -> None:
        subject = line(Run(title(self._subject), Tone.TITLE), f"  (gdrtop help {self._subject})")
        self._view("summary").show([subject])
        view = self._view("help")
        if view.room:
            view.show(self._lines(view.room))

    def _lines(self, width: int) -> list[Line]:
        manual = markdown_lines(page(self._subject), width)
        if self._subject != self._opened_at:
            return manual
        others = (line for name in _SCREENS if name != self._screen for line in _section(name, width))
        where = "IN THE DASHBOARD" if self._screen == "FleetScreen" else "EVERYWHERE"
        everywhere: list[Line] = [(Run(where, Tone.TITLE),), *_keys(_EVERYWHERE, width), ()]
        return [*_section(self._screen, width), *everywhere, *manual, (), *others]


def _section(name: str, width: int) -> list[Line]:
    """List the keys of a screen."""
    heading, purpose, keys = _SCREENS[name]
    lines: list[Line] = [(Run(heading, Tone.TITLE),)]
    lines.extend((Run(piece, Tone.DIM),) for piece in textwrap.wrap(purpose, max(20, width)))
    return [*lines, *_keys(keys, width), ()]
