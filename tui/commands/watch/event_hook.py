"""Runs a command of the admin at an event of the node, with the event as JSON on its standard input."""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Callable, Sequence

from probes.base.text import printable

_MOST_SECONDS = 30.0
_MOST_WAITING = 16  # events; of more at once, the rest is not reported


class EventHook:
    """One command at a time, without a shell and without any other input; events wait for their turn.

    A command is ended after 30 s, and what it prints is not read: it must not be able to stop the watching
    of the node.
    """

    def __init__(self, argv: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        """`argv`: begins with an absolute path."""
        self._argv, self._clock = tuple(argv), clock
        self._waiting: list[str] = []
        self._running: subprocess.Popen[bytes] | None = None
        self._began = 0.0

    def tell(self, document: str) -> str:
        """Have the command run with this text; return why not, or ""."""
        if len(self._waiting) >= _MOST_WAITING:
            return f"{len(self._waiting)} earlier events still wait for {self.shown}"
        self._waiting.append(document)
        return self.step()

    @property
    def shown(self) -> str:
        """The command, for a person."""
        return printable(shlex.join(self._argv), 200)

    def step(self) -> str:
        """End a command that takes too long and begin the next; return what went wrong with one, or ""."""
        wrong = self._ended()
        if self._running is None and self._waiting:
            wrong = wrong or self._begin(self._waiting.pop(0))
        return wrong

    def close(self) -> None:
        """End the running command."""
        if self._running is not None:
            self._running.kill()
            self._running.wait()

    def _begin(self, document: str) -> str:
        try:
            self._running = subprocess.Popen(
                self._argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            assert self._running.stdin is not None
            with self._running.stdin as given:  # an event is smaller than a pipe
                given.write(document.encode())
        except BrokenPipeError:  # it does not read its input
            pass
        except OSError as error:
            return f"{self.shown} cannot be run: {error.strerror}"
        self._began = self._clock()
        return ""

    def _ended(self) -> str:
        running = self._running
        if running is None:
            return ""
        status = running.poll()
        if status is None:
            if self._clock() - self._began < _MOST_SECONDS:
                return ""
            self.close()
        self._running = None
        if status is None:
            return f"{self.shown} was ended after {_MOST_SECONDS:.0f} s"
        return f"{self.shown} ended with status {status}" if status else ""
