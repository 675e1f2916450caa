"""The lines that programs print to a pseudo-terminal, read at its master's end."""

from __future__ import annotations

import codecs
import os
import select
from collections.abc import Iterator

from tui.runtime.ansi_text import LineSplitter

_PIECE_BYTES = 1 << 16


class PtyReader:
    """Owns the master's descriptor; lines are harmless and of at most `limit` characters."""

    def __init__(self, master: int, limit: int) -> None:
        self._master = os.fdopen(master, "rb", buffering=0)
        self._splitter = LineSplitter(codecs.getincrementaldecoder("utf-8")("replace"), limit)

    def fileno(self) -> int:
        """The master's descriptor, for select; -1 once it is closed."""
        return -1 if self._master.closed else self._master.fileno()

    def read(self, seconds: float) -> Iterator[str] | None:
        """The lines that are whole by now; None where nothing came within so many seconds.

        Once every program has ended, None means that all they printed has been read: poll(2) and read(2)
        of a master first fetch what is under way (n_tty_poll in drivers/tty/n_tty.c).
        """
        ready = select.select([self._master], [], [], seconds)[0]
        piece = self._piece() if ready else b""
        return self._splitter.feed(piece) if piece else None

    def _piece(self) -> bytes:
        try:
            return self._master.read(_PIECE_BYTES) or b""
        except OSError:  # EIO: nobody has the other end open any more
            return b""

    def rest(self) -> Iterator[str]:
        """What stands behind the last line's end; once."""
        return self._splitter.rest()

    def close(self) -> None:
        """Closes the master: the kernel hangs the terminal up."""
        self._master.close()
