"""What a pasted text means: a paste on any screen opens it."""

from __future__ import annotations

import asyncio

from textual.app import ComposeResult

from probes.base.text import plural
from probes.read.reading import Reading
from probes.read.text import TextReader
from tui.screens import save_and_copy
from tui.screens.head import HeadView
from tui.screens.key_footer import KeyFooter
from tui.screens.keys import bind, leave_keys
from tui.screens.list_screen import PanesScreen, static_view
from widgets.base.lines import Tone, as_text, line, wrapped
from widgets.base.lines_view import LinesView
from widgets.read import draw

LEAST_CHARACTERS = 20
"""Of a paste that is read: a word or two was meant for something else."""
_TEXT_WIDTH = 160  # of a written file


class ReadScreen(PanesScreen):
    """The answer to a text."""

    BINDINGS = [bind("write", "write"), bind("copy", "copy"), *leave_keys()]  # noqa: RUF012 - Textual's own

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text.replace("\r\n", "\n").replace("\r", "\n")  # as terminals send the ends of lines
        self._reading: Reading | None = None

    @property
    def leading_keys(self) -> tuple[str, ...]:
        return "write", "copy"

    def compose(self) -> ComposeResult:
        yield HeadView("Pasted text")
        yield static_view("summary")
        yield LinesView("What it means", id="reading")
        yield KeyFooter()

    async def on_mount(self) -> None:
        self._view("reading").focus()
        self.run_worker(self._read())

    async def _read(self) -> None:
        # The first text loads the whole catalogue of messages.
        self._reading = await asyncio.to_thread(read_text, self._text)
        self.refresh_bindings()
        self.on_lines_view_resized()

    def on_lines_view_resized(self) -> None:
        lines = self._text.count("\n") + 1
        what = f"{plural(lines, 'line')} pasted: the answer is about them, not this node (gdrtop help read)"
        self._view("summary").show([line(what)])
        view = self._view("reading")
        if view.room:
            reading = self._reading
            shown = wrapped("Reading …", view.room, Tone.DIM) if reading is None else draw(reading, view.room)
            view.show(shown)

    def why_not(self, action: str) -> str | None:
        if action in ("write", "copy") and self._reading is None:
            return "the text is still being read."
        return super().why_not(action)

    def _answer(self) -> str:
        return "" if self._reading is None else as_text(draw(self._reading, _TEXT_WIDTH))

    def action_write(self) -> None:
        save_and_copy.save(self, "gdrtop-read", txt=self._answer())

    def action_copy(self) -> None:
        save_and_copy.copy(self, self._answer())


def read_text(text: str) -> Reading:
    """Return what a text says."""
    reader = TextReader()
    reader.begin("paste")
    reader.feed(text.encode("utf-8", "replace"))
    reader.end()
    return reader.reading()
