"""Read the lines that programs print to a pseudo-terminal, from its master end."""

from __future__ import annotations

import codecs
import os
import select
from collections.abc import Iterator

from tui.terminal.ansi_text import LineSplitter

_PIECE_BYTES = 1 << 16


class PtyReader:
    """Own the master's descriptor; lines are sanitized and at most `limit` characters long."""

    def __init__(self, master: int, limit: int) -> None:
        self._master = os.fdopen(master, "rb", buffering=0)
        self._splitter = LineSplitter(codecs.getincrementaldecoder("utf-8")("replace"), limit)

    def fileno(self) -> int:
        """Return the master's descriptor, for select; -1 after `close`."""
        return -1 if self._master.closed else self._master.fileno()

    def read(self, seconds: float) -> Iterator[str] | None:
        """Return the complete lines so far, or None if nothing came within this time.

        After every program has ended, None means that all output was read: poll(2) and read(2) of a master
        first fetch what is in flight (n_tty_poll in drivers/tty/n_tty.c).
        """
        ready = select.select([self._master], [], [], seconds)[0]
        piece = self._piece() if ready else b""
        return self._splitter.feed(piece) if piece else None

    def _piece(self) -> bytes:
        try:
            return self._master.read(_PIECE_BYTES) or b""
        except OSError:  # EIO: no process has the other end open
            return b""

    def rest(self) -> Iterator[str]:
        """Return what follows the last complete line; only once."""
        return self._splitter.rest()

    def close(self) -> None:
        """Close the master; the kernel then hangs up the terminal."""
        self._master.close()
