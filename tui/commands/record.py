"""`gdrtop record`: a reading a second into a file, with progress."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from probes.host.protocol import Host
from probes.recording.format import RecordingError
from probes.snapshot.examination import examine
from probes.snapshot.watch import Watch
from tui.runtime.recorder import Recorded, Recorder, refuse_recorded

INTERVAL_SECONDS = 1.0
_PATIENCE = 3  # times the seconds asked for


def record(
    host: Host,
    path: str,
    seconds: int,
    redact: bool,
    out: TextIO | None,
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], object] = time.sleep,
) -> Recorded:
    """Record a moment at once and one after each second; an interrupt ends it early and keeps it.

    A node that answers slowly gets more time, up to three times as long; what is missing then is reported.

    RecordingError where the file cannot be written.
    """
    refuse_recorded(host)
    recorder = Recorder(host, path, redact)
    progress = _Progress(out, seconds)
    try:
        with _hangups_as_interrupts():
            try:
                _readings(recorder, progress, seconds, clock, wait)
            except KeyboardInterrupt:
                if not recorder.moments:
                    raise
                progress.end("interrupted: ")
            else:
                progress.end(_why_fewer(recorder, seconds + 1))
            recorded = recorder.finish()
    except BaseException:
        progress.end()
        recorder.drop()
        raise
    assert recorded is not None
    progress.say(f"recorded {recorded}\n{recorded.privacy()}\n")
    return recorded


def _readings(
    recorder: Recorder,
    progress: _Progress,
    seconds: int,
    clock: Callable[[], float],
    wait: Callable[[float], object],
) -> None:
    watch = Watch(recorder.host)
    began = clock()
    progress.show(0.0, recorder)
    while not recorder.is_full:
        reading_began = clock()
        node = watch.probe()
        if node is not None:
            recorder.host.note_probe()
            if not recorder.moments:
                examine(recorder.host, node)  # once: a replay can be judged as the node itself
        watch.read()
        recorder.host.end_moment()
        progress.show(reading_began - began, recorder)
        # Never faster, however slow the one before was.
        next_at = max(reading_began + INTERVAL_SECONDS, clock())
        if recorder.moments > seconds or next_at - began > _PATIENCE * seconds + INTERVAL_SECONDS / 2:
            return
        wait(max(0.0, next_at - clock()))


def _why_fewer(recorder: Recorder, wanted: int) -> str:
    """The beginning of the last line where moments are missing."""
    if recorder.is_full:
        return "ended early, because no recording may be larger: "
    missing = wanted - recorder.moments
    return (
        f"{missing} of {wanted} moments are missing, because the node answers slowly: " if missing > 0 else ""
    )


@contextmanager
def _hangups_as_interrupts() -> Iterator[None]:
    """A terminal that closes, or a `kill`, ends a recording as Ctrl-C does; under nohup(1) it goes on."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = {}
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            before[number] = signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Progress:
    """One line that is written over on a terminal; elsewhere nothing but the last word.

    A terminal that has gone away is no reason to lose what was recorded.
    """

    def __init__(self, out: TextIO | None, seconds: int) -> None:
        self._out = out
        self._seconds = seconds
        self._is_terminal = out is not None and out.isatty()
        self._shown = ""

    def show(self, elapsed: float, recorder: Recorder) -> None:
        """Where it stands."""
        if not self._is_terminal:
            return
        done = min(self._seconds, round(elapsed))
        size = f"{recorder.size_bytes / 1000:.0f} kB"
        text = f"recording {done}/{self._seconds} s, {size} · Ctrl-C ends it and keeps the file"
        self.say("\r" + text.ljust(len(self._shown)))
        self._shown = text

    def end(self, word: str = "") -> None:
        """Clears the line."""
        if self._shown:
            self.say("\r" + " " * len(self._shown) + "\r")
            self._shown = ""
        self.say(word)

    def say(self, text: str) -> None:
        """Writes, as long as somebody reads."""
        try:
            if self._out is not None:
                self._out.write(text)
                self._out.flush()
        except OSError:
            self._out = None


def command(host: Host, path: str, seconds: int, redact: bool) -> int:
    """`gdrtop record`; gives the exit status."""
    try:
        record(host, path, seconds, redact, sys.stderr)
    except RecordingError as error:
        print(f"gdrtop: {error}", file=sys.stderr)
        return 3
    return 0
