"""The help screen: keys, and what the words mean."""

from __future__ import annotations

import re
import textwrap

from textual.app import ComposeResult
from textual.binding import Binding
from textual.screen import ModalScreen

from widgets.lines import Line, Run, Tone
from widgets.lines_view import LinesView

_TEXT = """\
KEYS
↑ ↓ j k     select a GPU or NIC; its partner and the path between are lit
← →         another partner of the selected one, nearest first
1 … 6       one panel alone: topology, matrix, modules, GPUDirect, traffic, path
Tab         next panel; PgUp PgDn scroll it
d           the doctor: what is wrong, why, and what to do
x           actions: what can be done about it, and its plan; the console of one that runs
l           the plan that loads the modules that are missing
b           bandwidth: measure between GPU and NIC; the tests that run
Space       pause and resume the readings
+ -         halve or double the interval
r F5        probe the whole node anew
R           record this node into a file here; again: end it
Esc         back
Ctrl+P      command palette, with every action that is possible
q           quit; an action ends its step first, a bandwidth test both its ends

RECORDINGS       of gdrtop record and R, shown by gdrtop --replay FILE
← →         a moment back or on, and pause; , . take another partner
[ ]         ten moments, as Shift+← Shift+→
Home End    the first moment, the last
Space       play and pause; at the end from the beginning

DOCTOR
↑ ↓         select a finding; PgUp PgDn scroll it
f           the plan of its fix
e           in plain words. Again or Esc: the finding
a /         also what passed; only what contains a word
r           examine the node again

ACTIONS          nothing runs before its plan was shown and confirmed
Enter       in the list: the plan; there: run it, where jobs would feel it after the node's name
c w         the plan as a shell script: to the clipboard; into a file here
s Ctrl+C    while it runs: stop after the step under way; again: wait no longer for it
Esc         leave the console; the run goes on, and x comes back
S           the console's text into a file here
H u         in the list: what was run before; there: the plan that takes it back

BANDWIDTH        of the GPU and NIC selected on the overview, or of any other
↑ ↓ ← →     settings and their values; PgUp PgDn scroll what would be run
Enter       run it; where somebody would feel it, y runs it all the same
p c         type the peer's name; copy the command for the peer
o           while it runs: chart and rows, the console, or both
n k         end this test and go on with the next; cancel all, at both ends (as Ctrl+C)
Esc         leave; the tests go on, and b comes back
s r         a text for a ticket; run the same again, whatever is set by now
B           the baseline of this machine type; asks before a bad figure or another one
━ ╌         what can be reached at most, and by which part; other parts' limits

VERDICT
ACTIVE           usable, and memory regions are registered now
READY            usable; nothing is registered now, which is no fault
DEGRADED         usable, but not for every GPU on a near NIC
BROKEN           neither DMA-BUF nor nvidia-peermem is usable
UNKNOWN          what decides could not be read; the line says what and why
NOT APPLICABLE   no NVIDIA GPU, or no RDMA NIC

PATHS            nvidia-smi's words; NCCL's in brackets where they differ
PIX         at most one PCIe bridge between
PXB         several bridges, no host bridge
PHB         through a PCIe host bridge (the CPU)
NODE        between host bridges of a NUMA node
SYS         across NUMA nodes
NV#         that many bonded NVLinks
To NCCL, NODE is PHB too; P2C is GPU–C2C–CPU–PCIe–NIC, PXN by way of an NVLink peer.
NCCL uses GPUDirect RDMA up to PXB (P2C with C2C) unless NCCL_NET_GDR_LEVEL says otherwise.

MARKS
✓ there   … on its way   – not needed   ✗ missing   ? not known   • best NIC of the GPU
behind a name: ▲ a warning, ✗ a critical finding is about it
✓387G behind a GPU: what was last measured to its best NIC, Gb/s; ▲ below what the way carries
↑ sent, from the device   ↓ received, to the device   ◄ the link that carries least

refcnt counts the memory regions registered through nvidia-peermem now. With
DMA-BUF it stays 0: that is no fault. It does not show whether data moves.
"""

_EXPLAINED = re.compile(r"\S(?: ?\S)* {2,}")  # the key, and the gap behind it


def _folded(text: str, width: int) -> list[Line]:
    """A line of the text; what is too wide goes on below, under the words that explain a key."""
    tone = Tone.TITLE if text.isupper() and len(text) < 12 else Tone.PLAIN
    column = _EXPLAINED.match(text)
    indent = " " * (column.end() if column else 0)
    pieces = textwrap.wrap(text, max(20, width), subsequent_indent=indent) or [""]
    return [(Run(piece, tone),) for piece in pieces]


class HelpScreen(ModalScreen[None]):
    """Keys and words; any of Esc, q, ? closes it."""

    BINDINGS = [Binding("escape,q,question_mark,f1,h", "dismiss", "Close")]  # noqa: RUF012 - Textual's own type

    def compose(self) -> ComposeResult:
        """One pane, scrollable."""
        yield LinesView("Help · Esc closes")

    def on_lines_view_resized(self) -> None:
        """Shows the text once there is room, and again when there is more or less of it."""
        view = self.query_one(LinesView)
        view.show([line for text in _TEXT.splitlines() for line in _folded(text, view.room)])
