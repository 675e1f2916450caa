"""Recordings of the dashboard for asciinema (asciicast v2), made from the program and equal each time.

The clock only steps, and each event is what changes from one settled screen to the next one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from rich.color import ColorSystem
from textual.pilot import Pilot
from textual.widgets import Input

from tests.support.pilot import SteppedClock, readings
from tui.terminal.diff import TerminalContent

_START = "\x1b[?25l\x1b[?7l\x1b[2J"  # no cursor, no line wrap, an empty screen


@dataclass
class Cast:
    """What a terminal shows over time; `now` is in seconds since its start."""

    title: str
    now: float = 0.0
    events: list[tuple[float, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._content = TerminalContent()

    def note(self, pilot: Pilot[None]) -> None:
        """Add what the screen shows now, if it differs; cursors blink by another clock, so they stay lit."""
        for entry in pilot.app.screen.query(Input):
            entry.cursor_blink = False
        strips = pilot.app.screen._compositor.render_strips()
        size = pilot.app.screen.outer_size
        parts = [(row, 0, [strip]) for row, strip in enumerate(strips)]
        written = self._content.draw(size, parts, ColorSystem.STANDARD)
        if not self.events:
            self.size, written = size, _START + written
        if written:
            self.events.append((self.now, written))

    async def watch(self, pilot: Pilot[None], clock: SteppedClock, seconds: int) -> None:
        """Let so many seconds pass, each with a reading."""
        for _ in range(seconds):
            await readings(pilot, clock, 2)
            self.now += 1.0
            self.note(pilot)

    def write(self, path: Path) -> None:
        """Write the file: a header, then an event a line."""
        columns, lines = self.size
        header = {"version": 2, "width": columns, "height": lines, "title": self.title}
        rows = [header, *([round(at, 2), "o", written] for at, written in self.events)]
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        path.write_text(text, encoding="utf-8")
