"""The help: the keys of each screen, and the manual."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rich.cells import cell_len
from textual.app import ComposeResult

from probes.base.data_files import read_toml
from tui.manual import SUBJECTS, page, title
from tui.screens.head import HeadView
from tui.screens.key_footer import KeyFooter
from tui.screens.keys import FUNCTION_KEYS, KEYS, bind_pair, leave_keys
from tui.screens.list_screen import PanesScreen, static_view
from widgets.base.lines import Line, Run, Tone, line
from widgets.base.lines_view import LinesView
from widgets.base.markdown import markdown_lines

_KEY_CELLS = 11

_SCREENS = read_toml(__name__, "help.toml")
_EVERYWHERE = (
    *("help", "overview", "doctor", "live", "nccl", "setup", "bandwidth", "prove", "actions"),
    *("history", "fleet", "palette", "pane", "select", "page", "first", "last", "open", "back"),
    *("quit", "exit"),
)


def _keys(names: Sequence[str], width: int) -> list[Line]:
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
        self._opened_at = self._subject = _SCREENS[self._screen].get("page", "dashboard")

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
    screen = _SCREENS[name]
    lines: list[Line] = [(Run(screen["title"], Tone.TITLE),)]
    lines.extend((Run(piece, Tone.DIM),) for piece in textwrap.wrap(screen["purpose"], max(20, width)))
    return [*lines, *_keys(screen["keys"], width), ()]
