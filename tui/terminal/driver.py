"""Textual's terminal driver, extended for terminals that go away.

A terminal can vanish without SIGHUP: under nohup, or where gdrtop is not in the foreground. Textual's input
thread then reads EOF in a loop, its writer thread dies of EIO, and the main thread waits forever for room in
the writer's queue. The input thread also wakes up ten times a second, to see whether it shall end and whether
an Escape was a key of its own: a tenth of what gdrtop may cost.
"""

from __future__ import annotations

import asyncio
import os
import select
import termios
import threading
import time
from codecs import getincrementaldecoder
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, Full
from typing import TYPE_CHECKING, Any

from textual import events
from textual.app import App
from textual.drivers.linux_driver import LinuxDriver
from textual.message import Message

from probes.base.text import printable
from tui.terminal.size import clamped
from tui.terminal.textual_version import is_tested

if TYPE_CHECKING or is_tested():  # an untested version may not have it, and then nothing here uses it
    from tui.terminal.input_parser import InputParser

_READ_BYTES = 4096
_ESCAPE_MILLISECONDS = 100  # as long as InputParser waits for the rest of a sequence
# Keys and clicks that gdrtop has not taken yet. No person types that far ahead; what comes then is dropped.
MOST_TYPED_AHEAD = 1000
_FULL_SECONDS = 0.2
_CLOSE_SECONDS = 2.0
# Push and pop the titles of window and icon: XTWINOPS of xterm, which tmux, kitty and VTE know too.
_SAVE_TITLE, _RESTORE_TITLE = "\x1b[22;0t", "\x1b[23;0t"
_TITLE_LENGTH = 80
# Textual wants each move of the mouse (1003), which mosh and slow links carry in vain: nothing here follows
# it. Moves while a button is held (1002) are what dragging needs.
_MOUSE_ON, _MOUSE_OFF = "\x1b[?1003l\x1b[?1002h", "\x1b[?1002l"


class WakingEvent(threading.Event):
    """An event whose `descriptor` is readable while it is set, so that poll(2) can wait for it too."""

    def __init__(self) -> None:
        super().__init__()
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def set(self) -> None:
        """Set it."""
        if not self.is_set():
            super().set()
            os.eventfd_write(self.descriptor, 1)

    def clear(self) -> None:
        """Reset it."""
        if self.is_set():
            super().clear()
            os.eventfd_read(self.descriptor)


def read_input(
    terminal: int, end: WakingEvent, parser: InputParser, process: Callable[[Message], None]
) -> None:
    """Process what comes from a terminal until `end` is set; at its end of file, only wait for that."""
    decode = getincrementaldecoder("utf-8")(errors="replace").decode
    poll = select.poll()
    for descriptor in (terminal, end.descriptor):
        poll.register(descriptor, select.POLLIN)
    while not end.is_set():
        ready = dict(poll.poll(_ESCAPE_MILLISECONDS if parser.waits else None))
        if terminal in ready:
            try:
                came = os.read(terminal, _READ_BYTES)
            except OSError:  # it has hung up
                came = b""
            if not came:
                poll.unregister(terminal)
            for message in parser.feed(decode(came), time.monotonic()):
                process(message)
        for message in parser.tick(time.monotonic()):
            process(message)


class TerminalDriver(LinuxDriver):
    """Read keys and write the screen until the terminal has gone, then end the program."""

    class Gone(Message):
        """The terminal has gone."""

    class Restarted(Message):
        """The terminal shows what others wrote: gdrtop was suspended."""

    def __init__(
        self, app: App[None], *, debug: bool = False, mouse: bool = True, size: tuple[int, int] | None = None
    ) -> None:
        super().__init__(app, debug=debug, mouse=mouse, size=size)
        self._gone = threading.Event()
        self._terminals = [descriptor for descriptor in (0, 1, 2) if os.isatty(descriptor)]
        self._is_leaving = False
        self._watcher: threading.Thread | None = None
        if is_tested():
            self.exit_event = WakingEvent()
        self.starts = 0
        """How many times it has taken over the terminal, which is then blank."""
        self._title = ""
        self._sent: deque[Future[bool]] = deque()  # messages that the app's thread has not taken yet
        self._last_words: list[str] | None = None  # what restores the terminal at once
        self._last_speaker = 0  # the thread that does

    @property
    def is_stuck(self) -> bool:
        """Return whether output still waits for a terminal that takes none."""
        return self._writer_thread is not None and self._writer_thread.is_alive()

    def leave(self) -> None:
        """Wait only briefly for a terminal that takes no output; safe in a signal handler."""
        self._is_leaving = True

    def start_application_mode(self) -> None:
        """Take over the terminal, and watch it."""
        # The kernel sends SIGCONT after SIGHUP, and Textual's handler would start a second pair of threads.
        if self._gone.is_set() or _have_hung_up(self._terminals):
            return
        if self._key_thread is not None and self._key_thread.is_alive():  # SIGSTOP, which no handler sees
            self.suspend_application_mode()
        loop = asyncio.get_running_loop()
        if self._watcher is None:
            self._watcher = threading.Thread(target=self._watch, args=(loop,), name="terminal", daemon=True)
            self._watcher.start()
        self.starts += 1
        super().start_application_mode()  # type: ignore[no-untyped-call]
        if self.starts > 1:  # Textual draws nothing after SIGCONT; this may be its handler
            loop.call_soon_threadsafe(self._app.post_message, self.Restarted())
        if self._title:
            self._write_title(_SAVE_TITLE)

    def stop_application_mode(self) -> None:
        """Give the terminal back as it was."""
        if self._title:
            self.write(_RESTORE_TITLE)
        super().stop_application_mode()

    def restore_at_once(self) -> None:
        """Give the terminal back from any thread, while others may hang; the app cannot go on then."""
        self._last_words, self._last_speaker = [], threading.get_ident()
        self._gone.set()
        if self._writer_thread is None:
            return
        self.exit_event.set()
        with suppress(Empty):
            while True:
                self._writer_thread._queue.get_nowait()
        self._disable_mouse_support()
        self._disable_bracketed_paste()
        self.stop_application_mode()
        if self._file is not None and select.select([], [self._file], [], _FULL_SECONDS)[1]:
            # The end of a synchronized update (2026), which may be half written.
            words = "\x1b[?2026l\x1b[m" + "".join(self._last_words)
            os.write(self._file.fileno(), words.encode())

    def disable_input(self) -> None:
        """Read no more; do not wait for the input thread when the terminal is restored at once."""
        if self._last_words is None:
            super().disable_input()
        else:
            with suppress(termios.error):
                termios.tcflush(self.fileno, termios.TCIFLUSH)

    def _get_terminal_size(self) -> tuple[int, int]:
        return clamped(*super()._get_terminal_size())

    def send_message(self, message: Message) -> None:
        """Pass on what came from the terminal, from its thread; drop what is typed too far ahead."""
        if isinstance(message, events.Resize):
            pixels = message.pixel_size
            size = clamped(*message.size)
            message = events.Resize.from_dimensions(size, None if pixels is None else (*pixels,))
        else:
            while self._sent and self._sent[0].done():
                self._sent.popleft()
            if max(len(self._sent), self._app.message_queue_size) >= MOST_TYPED_AHEAD:
                return
        self._sent.append(asyncio.run_coroutine_threadsafe(self._app._post_message(message), self._loop))

    def show_title(self, title: str) -> None:
        """Show a title of the terminal's window; its own title is back when gdrtop leaves the terminal."""
        if title != self._title:
            save = "" if self._title else _SAVE_TITLE
            self._title = title
            self._write_title(save)

    def _write_title(self, save: str) -> None:
        self.write(f"{save}\x1b]0;{printable(self._title, _TITLE_LENGTH)}\x07")

    def _enable_mouse_support(self) -> None:
        super()._enable_mouse_support()
        if self._mouse:
            self.write(_MOUSE_ON)
            self.flush()

    def _disable_mouse_support(self) -> None:
        if self._mouse:
            self.write(_MOUSE_OFF)
        super()._disable_mouse_support()

    def run_input_thread(self) -> None:
        """Process keys and the mouse until `exit_event` is set."""
        if isinstance(self.exit_event, WakingEvent):
            read_input(self.fileno, self.exit_event, InputParser(self._debug), self.process_message)
        else:
            super().run_input_thread()

    def write(self, data: str | None) -> None:
        """Hand output to the writer thread (None ends it); drop it once the terminal has gone."""
        assert self._writer_thread is not None, "the driver is not in application mode"
        if self._last_words is not None and self._last_speaker == threading.get_ident():
            self._last_words.append(data or "")
        waits = 0
        while not self._gone.is_set():
            try:
                self._writer_thread._queue.put(data, timeout=_FULL_SECONDS)
                return
            except Full:
                waits += self._is_leaving
                if waits * _FULL_SECONDS >= _CLOSE_SECONDS:
                    self._gone.set()

    def close(self) -> None:
        """End the writer thread; one that cannot write is left behind."""
        writer = self._writer_thread
        if writer is None:
            return
        self.write(None)
        if self._gone.is_set():
            with suppress(Empty):
                while True:
                    writer._queue.get_nowait()
            with suppress(Full):
                writer._queue.put_nowait(None)
        writer.join(_CLOSE_SECONDS if self._gone.is_set() or self._is_leaving else None)

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wait until input or output has hung up, then replace both with /dev/null."""
        _have_hung_up(self._terminals, wait=True)
        self._gone.set()
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in self._terminals:  # so that no thread dies of an I/O error before the program ends
            os.dup2(null, descriptor)
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._app.post_message, self.Gone())


def _have_hung_up(descriptors: list[int], wait: bool = False) -> bool:
    """Return whether one of these has hung up, which poll(2) always reports; with `wait`, wait for it."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, 0)
    return bool(poll.poll(None if wait else 0))


def driver_of(app: App[Any]) -> TerminalDriver | None:
    """Return the driver of a running app; None in a test."""
    driver = getattr(app, "_driver", None)  # a private name of Textual
    return driver if isinstance(driver, TerminalDriver) else None
