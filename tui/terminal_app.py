"""What gdrtop's apps share: colors, output of few bytes, errors, and keys of a slow link."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, TypeVar

from rich.segment import Segment
from textual import events, on
from textual.app import App
from textual.color import Color
from textual.filter import LineFilter
from textual.geometry import Size
from textual.reactive import Reactive
from textual.widgets import Input

from tui.launch import EXIT_CRASHED
from tui.runtime.printing import ascii_cells
from tui.runtime.signals import TERMINAL_GONE, ExitSignals
from tui.screens.head import HeadState
from tui.screens.keys import KEYS, bind, why_dead
from tui.settings.current import current, is_configured
from tui.terminal.clipboard import clipboard_sequence, wrapped_for_screen
from tui.terminal.diff import MinimalOutput
from tui.terminal.driver import MOST_TYPED_AHEAD, TerminalDriver, driver_of
from tui.terminal.size import clamped
from widgets.base.themes import ANSI_LIGHT, OWN_THEMES

if TYPE_CHECKING:
    from rich.console import RenderableType
    from textual.await_complete import AwaitComplete
    from textual.screen import Screen
    from textual.theme import Theme
    from textual.types import CSSPathType

    from probes.base.origin import Origin

R = TypeVar("R")
_EXPLAINED_SECONDS = 4.0
# After a step back, the key that goes one step further back may have been pressed once too often.
QUIT_DELAY_SECONDS = 1.0


class AsciiFilter(LineFilter):
    """Replace every character outside ASCII, cell by cell."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Replace the characters of a line."""
        return [Segment(_ascii(text), style, control) for text, style, control in segments]


def _configured_theme() -> str:
    return str(current().configured("theme").value) if is_configured() else "ansi-dark"


@lru_cache(4096)
def _ascii(text: str) -> str:
    return text if text.isascii() else ascii_cells(text)


class TerminalApp(App[R]):
    """An app that writes little to the terminal, and ends at an error with a file that describes it."""

    CSS_PATH: ClassVar[CSSPathType | None] = "app.tcss"
    TITLE = "gdrtop"
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-normal"), (160, "-wide")]  # noqa: RUF012 - Textual's own type
    VERTICAL_BREAKPOINTS = [(0, "-short"), (36, "-tall")]  # noqa: RUF012
    BINDINGS = [  # noqa: RUF012
        bind("help", "help"),
        bind("exit", "quit", show=False, priority=True),
        bind("repaint", "repaint", show=False),
    ]

    # The terminal's colors are right on light and dark backgrounds, and take a third of the bytes.
    # As the default: Textual computes all colors when it is constructed, and again when a theme is set.
    theme: Reactive[str] = Reactive(_configured_theme)

    def __init__(self, origin: Origin, ascii_only: bool = False) -> None:
        # With NO_COLOR, Textual removes the terminal's own colors, but turns those of a theme into grays.
        is_ansi = True if "NO_COLOR" in os.environ else None  # None: as the theme says
        super().__init__(driver_class=TerminalDriver, ansi_color=is_ansi)
        self._ascii_filters = (AsciiFilter(),) if ascii_only else ()
        self.animation_level = "none"
        self._output = MinimalOutput(self)
        self._last_size: Size | None = None
        self.head = HeadState(origin)
        self._stepped_back_at = -QUIT_DELAY_SECONDS  # by the monotonic clock
        self._explained = ("", 0.0)  # why a key did nothing, and when that was said
        self._has_signal = False  # that ends it
        self.signals = ExitSignals(self.hang_up, self._leave_at_once, self._end)
        self.finish: Callable[[str], int] = lambda why: 0
        """Do what is left after the screen if a signal (`why`) ends the process; return the exit status."""

    def action_note_step_back(self) -> None:
        """Note that a key has gone one step back."""
        self._stepped_back_at = time.monotonic()

    def action_help(self) -> None:
        from tui.screens.help import HelpScreen

        self.push_screen(HelpScreen(type(self.screen).__name__))

    def on_paste(self, event: events.Paste) -> None:
        """Open what a pasted text means; an input line has taken what was pasted into it."""
        from tui.screens.read import LEAST_CHARACTERS, ReadScreen

        if len(event.text) < LEAST_CHARACTERS:
            self._explain("To read a text, paste it whole: a log, the output of a command, a script.")
        elif isinstance(self.screen, ReadScreen):
            self.switch_screen(ReadScreen(event.text))
        elif not getattr(self.screen, "is_question", False):
            self.push_screen(ReadScreen(event.text))

    def pop_screen(self) -> AwaitComplete:
        """Go back to the screen below."""
        self.action_note_step_back()
        return super().pop_screen()

    async def action_leave_app(self) -> None:
        """Quit with the key that goes back, unless it has just gone one step back."""
        if time.monotonic() - self._stepped_back_at < QUIT_DELAY_SECONDS:
            self._stepped_back_at = -QUIT_DELAY_SECONDS
            self.notify(f"Press {KEYS['quit'].display} again to quit gdrtop.", timeout=2)
        else:
            await self.run_action("app.quit")

    @property
    def available_themes(self) -> dict[str, Theme]:
        """The themes of Textual and those of gdrtop, by name."""
        return super().available_themes | {ANSI_LIGHT.name: ANSI_LIGHT} | OWN_THEMES

    def _handle_exception(self, error: Exception) -> None:
        """Leave at once; Textual would spend seconds on a traceback with the values of all variables.

        While the app ends, its screens go in any order, and a handler of one that is gone finds nothing
        there: that is no crash.
        """
        if self._is_ending:
            self._close_messages_no_wait()
            return
        self._return_code = EXIT_CRASHED
        if self._exception is None:
            self._exception = error
            self._exception_event.set()
        self._close_messages_no_wait()

    @property
    def crash(self) -> Exception | None:
        """The error that has ended the app."""
        return self._exception

    # The end

    def on_load(self) -> None:
        """Handle SIGTERM and SIGHUP before the terminal is changed."""
        self.signals.watch(asyncio.get_running_loop())

    @property
    def _is_ending(self) -> bool:
        # Textual also ends an app without `exit`: where a test leaves it, or something above it fails.
        return self._has_signal or self._exit or (self._is_mounted and not self.is_running)

    def hang_up(self, why: str) -> None:
        """Quit without a question; `why`: the signal, or that the terminal has gone."""
        del why
        self.exit()

    @on(TerminalDriver.Gone)
    def _hang_up(self) -> None:
        self.hang_up(TERMINAL_GONE)

    @property
    def is_stuck(self) -> bool:
        """Return whether output still waits for a terminal that takes none; Python would wait for it too."""
        return (driver := driver_of(self)) is not None and driver.is_stuck

    def _leave_at_once(self) -> None:
        """Take no more keys, and do not wait for the terminal; called in the handler of a signal."""
        self._has_signal = True
        if (driver := driver_of(self)) is not None:
            driver.leave()

    def _end(self, why: str) -> None:
        """End the process where it is, with a terminal that works; called in a thread of its own."""
        status = 0
        with suppress(Exception):
            if (driver := driver_of(self)) is not None:
                driver.restore_at_once()
        with suppress(Exception):
            status = self.finish(why)
        os._exit(status)

    # The terminal

    @property
    def size(self) -> Size:
        """The size of the terminal, also before it has told it."""
        return Size(*clamped(*super().size))

    async def on_event(self, event: events.Event) -> None:
        """Drop keys and clicks that come while the app ends, or faster than the screen takes them."""
        if isinstance(event, events.InputEvent | events.Paste) and not event.is_forwarded:
            taker = self.focused or self.screen
            if self._is_ending or taker.message_queue_size >= MOST_TYPED_AHEAD:
                return
        await super().on_event(event)

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Return Textual's filters and the one of `--ascii`."""
        return [*super().get_line_filters(), *self._ascii_filters]

    def _display(self, screen: Screen[object], renderable: RenderableType | None) -> None:
        super()._display(screen, self._output.minimized(screen, renderable))

    def copy_to_clipboard(self, text: str) -> None:
        """Send a text to the terminal's clipboard (OSC 52).

        GNU screen shows the end of a longer sequence as text. It passes on what is wrapped in short pieces.
        """
        driver = driver_of(self)
        if os.environ.get("STY") and driver is not None:
            driver.write(wrapped_for_screen(clipboard_sequence(text)))
        else:
            super().copy_to_clipboard(text)

    def on_resize(self, event: events.Resize) -> None:
        """Draw everything again if the terminal got its old size back before Textual saw the other one."""
        if event.size == self._last_size:
            self.action_repaint()
        self._last_size = event.size

    def on_key(self, event: events.Key) -> None:
        """Give an input what was typed before it had the focus, else say why a key did nothing.

        A slow link delivers several keys at once.
        """
        if isinstance(self.focused, Input):
            if event.is_printable:  # which it would not have let pass
                event.prevent_default()
                self.focused.post_message(events.Key(event.key, event.character))
        elif event.key not in self.screen.active_bindings and (why := why_dead(self, event.key)):
            self._explain(why)

    def _explain(self, why: str) -> None:
        """Say why a key does nothing, not again for each repetition of it."""
        now = time.monotonic()
        text, said_at = self._explained
        if why != text or now - said_at > _EXPLAINED_SECONDS:
            self._explained = (why, now)
            self.notify(why, timeout=_EXPLAINED_SECONDS, markup=False)

    def action_repaint(self) -> None:
        """Draw every cell again: something else may have written to the terminal."""
        self._output.forget()
        self.screen.refresh()

    @on(TerminalDriver.Restarted)
    def _repaint(self) -> None:
        self.action_repaint()
