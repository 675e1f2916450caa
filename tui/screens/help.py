"""The help: what the keys do on each screen, and what the words and marks mean."""

from __future__ import annotations

import textwrap

from rich.cells import cell_len
from textual.app import ComposeResult

from probes.base.origin import Origin
from tui.screens.key_footer import KeyFooter
from tui.screens.keys import KEYS, leave_keys
from tui.screens.list_screen import PanesScreen
from widgets.base.lines import Line, Run, Tone, line
from widgets.base.lines_view import LinesView
from widgets.node.verdict import origin_run

_KEY_CELLS = 11

# Each screen's keys by their names in the key table, and one sentence on what the screen is for.
_SCREENS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "OverviewScreen": (
        "OVERVIEW",
        "The whole node, live. Select a GPU or NIC to see its path to the best partner.",
        ("open", "select", "change", "zoom", "load", "pause", "pace", "refresh", "record", "back", "quit"),
    ),
    "ReplayScreen": (
        "RECORDING",
        "The overview of a recorded node (gdrtop --replay FILE), with keys that move in time.",
        ("moment", "moments", "ends", "pause"),
    ),
    "DoctorScreen": (
        "DOCTOR",
        "Findings with impact, cause, evidence and fix. Findings with one cause stand under it.",
        ("open", "fix", "explain", "all", "filter", "refresh"),
    ),
    "ActionsScreen": (
        "ACTIONS",
        "What gdrtop can do here. Nothing runs before its plan was shown and confirmed.",
        ("open", "filter", "refresh"),
    ),
    "ConfirmScreen": (
        "PLAN",
        "Every step before it runs. If running jobs would be affected, type the host name to confirm.",
        ("open", "copy", "write"),
    ),
    "RunScreen": ("CONSOLE", "A running action. Leaving the screen does not stop it.", ("cancel", "write")),
    "BandwidthSetupScreen": (
        "BANDWIDTH TEST",
        "Settings of a test between GPU and NIC, and the commands that would run.",
        ("open", "yes", "select", "change", "peer", "copy"),
    ),
    "BandwidthRunScreen": (
        "BANDWIDTH RESULTS",
        "Running tests and their results. Leaving the screen does not stop them.",
        ("cancel", "skip", "view", "again", "write", "copy", "baseline"),
    ),
    "HistoryScreen": ("HISTORY", "What gdrtop ran on this node, the newest run first.", ("open", "undo")),
}
_EVERYWHERE = (
    *("help", "overview", "doctor", "bandwidth", "actions", "history", "palette", "pane"),
    *("select", "page", "first", "last", "open", "back", "quit", "exit"),
)
_WORDS = """\
VERDICT
ACTIVE          GPUDirect RDMA is usable, in use now, and nothing on the data path is below what
                the hardware can do
READY           the same, but not in use now
DEGRADED        usable, but not for every GPU, or something on the data path costs bandwidth:
                ACS, a translating IOMMU, a port that is down, half rate, a narrow or slow link,
                wrong NUMA placement, a job that does not use it
BROKEN          no usable path
UNKNOWN         what decides could not be read. The line says what would make it readable
NOT APPLICABLE  no NVIDIA GPU or no RDMA NIC, or this hardware cannot do it by design

PATHS           nvidia-smi's words. NCCL's stand in brackets where they differ
PIX             at most one PCIe bridge between them
PXB             several PCIe bridges, but no host bridge
PHB             through a PCIe host bridge (the CPU)
NODE            between host bridges of one NUMA node
SYS             across NUMA nodes
NV#             that many bonded NVLinks
To NCCL, NODE is PHB too. P2C is GPU–C2C–CPU–PCIe–NIC, PXN goes through an NVLink peer.
NCCL uses GPUDirect RDMA up to PXB (P2C with C2C) unless NCCL_NET_GDR_LEVEL says otherwise.

MARKS
✓ loaded or ok   … loading   – not needed   ✗ critical or missing   ▲ warning   · note   ? unknown
• best NIC of the GPU   ✓387G last measured to its best NIC, in Gb/s   ▲ below the limit of its path
↑ sent by the device   ↓ received by the device   ◄ the link with the least bandwidth
━ ╌             in a chart: the lowest limit of the path, and the other limits

REFCNT          memory regions registered through nvidia-peermem now. With DMA-BUF it stays 0,
                which is no fault. It does not show whether data moves.

MOUSE           A click selects a row or presses a key of the footer. To select text for copying,
                hold Shift (in some terminals Option or Fn) while dragging.
"""


def _folded(text: str, width: int) -> list[Line]:
    """A line of the text; what is too wide goes on below, under the words that explain a key."""
    tone = Tone.TITLE if text.isupper() and "  " not in text else Tone.PLAIN
    gap = text.find("  ")
    after = text[gap:].lstrip() if gap > 0 else ""
    indent = " " * (len(text) - len(after)) if after else ""
    pieces = textwrap.wrap(text, max(20, width), subsequent_indent=indent, break_on_hyphens=False) or [""]
    return [(Run(piece, tone),) for piece in pieces]


def _keys(names: tuple[str, ...], width: int) -> list[Line]:
    lines: list[Line] = []
    for name in names:
        key = KEYS[name]
        room = max(20, width - _KEY_CELLS - 2)
        first, *rest = textwrap.wrap(key.meaning, room, break_on_hyphens=False)
        shown = f"  {key.display}{' ' * (_KEY_CELLS - cell_len(key.display))}"
        lines.append((Run(shown, Tone.TITLE), Run(first)))
        lines.extend((Run(" " * (_KEY_CELLS + 2) + piece),) for piece in rest)
    return lines


class HelpScreen(PanesScreen):
    """Keys and words; it opens at the screen from which it was called."""

    BINDINGS = [*leave_keys("help")]  # noqa: RUF012 - Textual's own type

    def __init__(self, origin: Origin, called_from: str = "") -> None:
        super().__init__()
        self._origin, self._called_from = origin, called_from

    def compose(self) -> ComposeResult:
        """Compose the head and one pane that scrolls."""
        summary = LinesView(id="summary")
        summary.can_focus = False
        yield summary
        yield LinesView("Keys and words", id="help")
        yield KeyFooter()

    def on_mount(self) -> None:
        """Let the keys scroll the text."""
        self.query_one("#help", LinesView).focus()

    def on_lines_view_resized(self) -> None:
        """Draw the text for the pane's width."""
        self.query_one("#summary", LinesView).show([line(Run("Help ", Tone.TITLE), origin_run(self._origin))])
        view = self.query_one("#help", LinesView)
        if view.room:
            view.show(self._lines(view.room))

    def _lines(self, width: int) -> list[Line]:
        here = self._called_from if self._called_from in _SCREENS else "OverviewScreen"
        lines = self._section(here, width)
        lines.extend([(Run("EVERYWHERE", Tone.TITLE),), *_keys(_EVERYWHERE, width), ()])
        for name in _SCREENS:
            if name != here:
                lines.extend(self._section(name, width))
        return [*lines, *(of for text in _WORDS.splitlines() for of in _folded(text, width))]

    def _section(self, name: str, width: int) -> list[Line]:
        title, purpose, keys = _SCREENS[name]
        lines: list[Line] = [(Run(title, Tone.TITLE),)]
        lines.extend((Run(piece, Tone.DIM),) for piece in textwrap.wrap(purpose, max(20, width)))
        return [*lines, *_keys(keys, width), ()]
