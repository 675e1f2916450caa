"""`gdrtop record`: a reading a second into a file, with progress."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

from probes.base.origin import Source
from probes.checks.judgment import only_in_logs
from probes.host.protocol import Host
from probes.recording.format import RecordingError
from tui.command_line.arguments import EXIT_WRONG_USAGE, add_arguments, duration
from tui.runtime.node_monitor import NodeMonitor
from tui.runtime.open_host import open_host
from tui.runtime.printing import ProgressLine
from tui.runtime.recorder import Recorded, Recorder, refuse_recorded
from tui.runtime.signals import handled_by

INTERVAL_SECONDS = 1.0
_MOST_SECONDS = 3600
_PATIENCE = 3  # times the requested seconds


def add_options(parser: argparse.ArgumentParser) -> None:
    add_arguments(
        parser,
        {
            "FILE": "the .tar.gz file to write; it must not exist yet",
            "--seconds TIME": f"seconds to record, one reading each, 1 to {_MOST_SECONDS} (default: 10); "
            "Ctrl-C stops early",
            "--redact": "replace names, addresses, GUIDs, serial numbers and arguments with tokens",
        },
        seconds={"type": duration(1, _MOST_SECONDS), "default": 10},
    )


def run(options: argparse.Namespace, _: object) -> int:
    """Record the node that the options name; progress and result are printed to stderr."""
    try:
        record(open_host(options), options.file, options.seconds, options.redact, sys.stderr)
    except RecordingError as error:
        print(f"gdrtop: {error}", file=sys.stderr)
        return EXIT_WRONG_USAGE
    return 0


def record(
    host: Host,
    path: str,
    seconds: int,
    redact: bool,
    out: TextIO | None,
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], object] = time.sleep,
) -> Recorded:
    """Record a moment at once and one after each second; an interrupt stops early and keeps the file.

    A slow node gets up to three times as long. Moments that are still missing then are reported.

    RecordingError: the file cannot be written.
    """
    refuse_recorded(host)
    recorder = Recorder(host, path, redact)
    monitor = NodeMonitor(recorder.host)
    progress = ProgressLine(out)
    try:
        with _hangups_as_interrupts():
            try:
                _readings(monitor, recorder, progress, seconds, clock, wait)
            except KeyboardInterrupt:
                if not recorder.moments:
                    raise
                early = "Interrupted.\n"
            else:
                early = _why_fewer(recorder, seconds + 1)
            progress.show("")
            _say(early, out)
            recorded = recorder.finish()
    except BaseException:
        progress.show("")
        recorder.drop()
        raise
    assert recorded is not None
    node = f" of SIMULATED {host.origin.label}" if host.origin.source is Source.SIMULATED else ""
    _say(f"recorded {recorded}{node}\n{recorded.privacy()}\n", out)
    examination = monitor.examination
    if examination is not None and (shown := only_in_logs(examination, monitor.judgment.findings)):
        names = ", ".join(finding.id for finding in shown)
        _say(f"The recording has no job logs. Of what only they show, it has the titles: {names}.\n", out)
    return recorded


def _readings(
    monitor: NodeMonitor,
    recorder: Recorder,
    progress: ProgressLine,
    seconds: int,
    clock: Callable[[], float],
    wait: Callable[[float], object],
) -> None:
    def show(elapsed: float) -> None:
        done, size = min(seconds, round(elapsed)), f"{recorder.size_bytes / 1000:.0f} kB"
        progress.show(f"recording {done}/{seconds} s, {size} · Ctrl-C stops and keeps the file")

    began = clock()
    show(0.0)
    while not recorder.is_full:
        reading_began = clock()
        monitor.read()
        if monitor.is_probed:
            recorder.host.note_probe()
        if monitor.needs_check:  # at first, and when an event says so: a replay is judged as the node itself
            monitor.check()
        recorder.host.end_moment()
        show(reading_began - began)
        # Never faster, however slow the one before was.
        next_at = max(reading_began + INTERVAL_SECONDS, clock())
        if recorder.moments > seconds or next_at - began > _PATIENCE * seconds + INTERVAL_SECONDS / 2:
            return
        wait(max(0.0, next_at - clock()))


def _why_fewer(recorder: Recorder, wanted: int) -> str:
    """Return a line that says why moments are missing; "" if none is."""
    if recorder.is_full:
        return "Stopped early: the recording has reached its maximum size.\n"
    missing = wanted - recorder.moments
    return f"{missing} of {wanted} samples are missing: the node is slow.\n" if missing > 0 else ""


@contextmanager
def _hangups_as_interrupts() -> Iterator[None]:
    """Let a closed terminal or a `kill` end a recording as Ctrl-C does; under nohup(1) it continues."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    numbers = (signal.SIGTERM, signal.SIGHUP)
    with handled_by(interrupt, [each for each in numbers if signal.getsignal(each) is signal.SIG_DFL]):
        yield


def _say(text: str, out: TextIO | None) -> None:
    """Write, as long as stderr is open."""
    with suppress(OSError):
        if out is not None:
            out.write(text)
            out.flush()
