"""Read keys and the mouse without waking up while nothing is typed.

Textual's input thread wakes up ten times a second, to see whether it shall end and whether an Escape was a
key of its own: a tenth of what gdrtop may cost.
"""

from __future__ import annotations

import os
import select
import threading
from codecs import getincrementaldecoder
from collections.abc import Callable

from textual._xterm_parser import XTermParser
from textual.message import Message

_READ_BYTES = 4096
# Textual decides after this time that an Escape begins no sequence.
_ESCAPE_MILLISECONDS = 100


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
    terminal: int, end: WakingEvent, parser: XTermParser, process: Callable[[Message], None]
) -> None:
    """Process what comes from a terminal until `end` is set; at its end of file, only wait for that."""
    decode = getincrementaldecoder("utf-8")(errors="replace").decode
    poll = select.poll()
    for descriptor in (terminal, end.descriptor):
        poll.register(descriptor, select.POLLIN)
    while not end.is_set():
        is_open = parser._timeout_time is not None
        ready = dict(poll.poll(_ESCAPE_MILLISECONDS if is_open else None))
        if terminal in ready:
            try:
                came = os.read(terminal, _READ_BYTES)
            except OSError:  # it has hung up
                came = b""
            if not came:
                poll.unregister(terminal)
            text = decode(came)
            for message in parser.feed(text) if text else ():  # "" would be the end to the parser
                process(message)
        for message in parser.tick():
            process(message)
