"""`gdrtop watch`: without a screen, keep the last hours on disk and save what surrounds an event."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TextIO, TypedDict

from probes.base.evidence import Severity
from probes.base.origin import Source
from probes.base.text import printable
from probes.facts.node import Node
from probes.host.protocol import Host
from probes.live.model.sample import EventKind, LiveEvent
from tui.bandwidth.slow_results import note_slow_results
from tui.command_line.arguments import add_arguments, duration, require_running_node
from tui.command_line.options import OutputOptions, parsed
from tui.commands.live.live import INDENT, wrapped_below
from tui.commands.watch.ring_directory import RingDirectory
from tui.commands.watch.ring_recorder import Limits, Notice, NoticeKind, RingRecorder
from tui.files.reliability.database import HistoryRecorder, history_path
from tui.files.since_ok import since_ok
from tui.files.xdg import STATE, own_directory
from tui.runtime.json_values import node_document, write_json_line
from tui.runtime.node_monitor import NodeMonitor
from tui.runtime.open_host import NoSuchHost, open_host
from tui.runtime.printing import heading_of, print_lines, text_width
from tui.runtime.signals import signals_stop

# Runs a command of the admin at an event of the node, with the event as JSON on its standard input.

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


_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_LEAST_BYTES = 16 << 20
_MOST_BYTES = 1 << 40
_LOG_WIDTH = 8192
_PAUSE_SECONDS = 0.25  # a signal ends the wait for the next sample after this time
_TROUBLE = (NoticeKind.PAUSED, NoticeKind.NOT_SAVED, NoticeKind.NO_HISTORY, NoticeKind.HOOK_FAILED)


class WatchDocument(TypedDict):
    """`gdrtop watch --json, one line an event`."""

    kind: EventKind | NoticeKind
    severity: Severity
    subject: str
    text: str
    explanation: str
    file: str | None  # the recording, if kind is saved


def add_options(parser: argparse.ArgumentParser) -> None:
    add_arguments(
        parser,
        {
            "--dir DIR": "directory of the ring and the saved recordings (default: gdrtop/watch in "
            "$XDG_STATE_HOME)",
            "--keep TIME": "length of the ring (default: 6h)",
            "--max-size SIZE": "maximum size of the directory; saved recordings get half of it (default: "
            "200M)",
            "--freeze": "save a recording around events of this severity or higher (default: warning)",
            "--before TIME": "saved before the event (default: 2m)",
            "--after TIME": "saved after the event (default: 1m)",
            "--on-event COMMAND": "also run this command at such an event, with the event as JSON on its "
            "standard input; it begins with an absolute path, has no shell, and 30 s",
            "--redact": "redact the saved recordings as gdrtop record does; the ring is not redacted",
            "--json": "print events as JSON, one object per line (gdrtop schema watch)",
            "--unit": "print a systemd unit with these options and exit",
        },
        keep={"type": duration(60, 30 * 86400), "default": "6h"},
        max_size={"type": size, "default": "200M"},
        freeze={"choices": ("critical", "warning", "note"), "default": "warning"},
        before={"type": duration(1, 600), "default": "2m"},
        after={"type": duration(1, 600), "default": "1m"},
        on_event={"type": _hook, "default": ()},
    )


def size(text: str) -> int:
    """Return the bytes of "200M" or "2G": powers of 1024."""
    matched = re.fullmatch(r"([0-9]{1,15})([KMGT]?)(?:i?B)?", text, re.IGNORECASE | re.ASCII)
    value = int(matched[1]) * _UNITS[matched[2].upper()] if matched else 0
    if not matched:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size like 200M or 2G")
    if not _LEAST_BYTES <= value <= _MOST_BYTES:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size from 16M to 1T")
    return value


def _hook(text: str) -> tuple[str, ...]:
    try:
        argv = tuple(shlex.split(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} cannot be read: {error}") from None
    if not argv or not os.path.isabs(argv[0]):
        raise argparse.ArgumentTypeError(f"{text!r} does not begin with an absolute path")
    return argv


def run(options: argparse.Namespace, out: TextIO) -> int:
    """Watch the node that the options name until a signal, or print the unit."""
    if options.unit:
        from tui.commands.watch.unit import unit_text

        out.write(unit_text(options))
        return 0
    host = open_host(options)
    require_running_node(host, "watch")
    if host.origin.source is Source.RECORDED:
        raise NoSuchHost("a recording cannot be watched")
    limits = Limits(
        keep_seconds=options.keep,
        max_bytes=options.max_size,
        severity=Severity(options.freeze),
        before_seconds=options.before,
        after_seconds=options.after,
        redact=options.redact,
    )
    directory = RingDirectory(_directory(options.dir))
    if host.origin.source is Source.SIMULATED and not options.json:
        print_lines([heading_of(host.origin.label, host.origin, host.wall_clock())], out, options.ascii)
    hook = None
    if options.on_event and (options.read_only or host.origin.source is not Source.LIVE):
        print("gdrtop: --on-event runs nothing with --read-only or on a simulated node", file=sys.stderr)
    elif options.on_event:
        hook = EventHook(options.on_event)
    output = Output(out, parsed(OutputOptions, options))
    try:
        watch(host, directory, limits, output, read_only=options.read_only, hook=hook)
    finally:
        directory.close()
    return 0


def _directory(asked: str | None) -> str:
    if asked is not None:
        return os.path.abspath(asked)
    state = own_directory(STATE)
    return state and os.path.join(state, "watch")


def watch(
    host: Host,
    directory: RingDirectory,
    limits: Limits,
    output: Output,
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], object] = time.sleep,
    read_only: bool = False,
    hook: EventHook | None = None,
) -> None:
    """Write the ring, and print events, until a signal."""
    stops: list[str] = []
    watcher = Watcher(host, directory, limits, output, read_only, hook)
    with signals_stop(stops.append):
        try:
            watcher.step()
            while not stops:
                next_at = clock() + 1.0
                while not stops and clock() < next_at:
                    wait(min(_PAUSE_SECONDS, max(0.0, next_at - clock())))
                if not stops:
                    watcher.step()
        finally:
            watcher.close(stops[0] if stops else "")


class Watcher:
    """Reads the node, fills the ring, and prints."""

    def __init__(
        self,
        host: Host,
        directory: RingDirectory,
        limits: Limits,
        output: Output,
        read_only: bool = False,
        hook: EventHook | None = None,
    ) -> None:
        self._host, self._read_only, self._hook = host, read_only, hook
        self._directory = directory
        self._limits = limits
        self._output = output
        self._recorder = RingRecorder(host, directory, limits, output.notice)
        self._monitor = NodeMonitor(self._recorder.host)
        # Of a simulated node, nothing is kept among what this machine has done.
        is_kept = host.origin.source is Source.LIVE and not read_only
        self._history = HistoryRecorder(history_path(), self._tell_no_history) if is_kept else None

    def step(self) -> None:
        """Take one sample."""
        is_first = self._monitor.node is None
        if is_first:  # so that results from before are no events
            note_slow_results(self._monitor, self._host)
        probe, self._recorder.needs_probe = self._recorder.needs_probe, False
        sample = self._monitor.read(probe)
        if self._monitor.is_probed:
            self._recorder.host.note_probe()
        if is_first:
            assert self._monitor.node is not None
            self._output.node = self._monitor.node
            self._output.notice(Notice(sample.taken_at, NoticeKind.STARTED, self._started()))
        # Within this moment, so that the ring has what the doctor read, and a saved recording ends with it.
        if self._monitor.needs_check or self._recorder.is_save_due(sample):
            note_slow_results(self._monitor, self._host)
            judgment = self._monitor.check()
            assert self._monitor.examination is not None
            since_ok(self._monitor.examination, judgment, self._read_only)
        for event in sample.events:
            self._output.event(event)
            self._tell_hook(event)
        if self._hook is not None and (wrong := self._hook.step()):
            self._output.notice(Notice(sample.taken_at, NoticeKind.HOOK_FAILED, wrong))
        self._recorder.end_moment(sample)
        if self._history is not None and self._monitor.node is not None:
            self._history.update(sample, self._monitor.node, self._monitor.topology)

    def _tell_hook(self, event: LiveEvent) -> None:
        order = list(Severity)
        if self._hook is None or order.index(event.severity) > order.index(self._limits.severity):
            return
        if wrong := self._hook.tell(json.dumps(self._output.document_of(event))):
            self._output.notice(Notice(event.at, NoticeKind.HOOK_FAILED, wrong))

    def _tell_no_history(self, at: float, why: str) -> None:
        text = f"the history for gdrtop reliability is not kept: {why}"
        self._output.notice(Notice(at, NoticeKind.NO_HISTORY, text))

    def _started(self) -> str:
        limits = self._limits
        return (
            f"the ring in {self._directory.path} keeps at most {limits.keep_seconds / 3600:g} h"
            f" and {limits.max_bytes >> 20} MiB;"
            f" events of severity {limits.severity.value} or higher are saved"
        )

    def close(self, reason: str) -> None:
        """Save what is pending, and end the ring."""
        self._recorder.close()
        if self._history is not None:
            self._history.close()
        if self._hook is not None:
            self._hook.close()
        if self._monitor.node is not None:
            text = f"ended: {reason}" if reason else "ended"
            self._output.notice(Notice(self._host.wall_clock(), NoticeKind.ENDED, text))


class Output:
    """Prints events and notices as text or as JSON Lines."""

    def __init__(self, out: TextIO, options: OutputOptions) -> None:
        self._out, self._options = out, options
        self.node: Node | None = None

    def event(self, event: LiveEvent) -> None:
        """Print an event of the node."""
        self._print(event.at, _content(event, event.severity, event.subject))

    def document_of(self, event: LiveEvent) -> dict[str, Any]:
        """Return the JSON document of an event."""
        return self._document(event.at, _content(event, event.severity, event.subject))

    def notice(self, notice: Notice) -> None:
        """Print what happened to the ring."""
        severity = Severity.WARNING if notice.kind in _TROUBLE else Severity.NOTE
        self._print(notice.at, _content(notice, severity, "gdrtop watch", notice.file))

    def _print(self, at: float, content: dict[str, Any]) -> None:
        if self._options.json:
            write_json_line(self._document(at, content), self._out)
        else:
            local = datetime.fromtimestamp(at).astimezone().isoformat(sep=" ", timespec="seconds")
            # A log has a line for each event, however long.
            width = text_width(self._out) if self._out.isatty() else _LOG_WIDTH
            lines = wrapped_below(f"{local}  {content['severity']:<8}  {content['text']}", width)
            if content["explanation"]:
                lines += wrapped_below(content["explanation"], width, INDENT)
            print_lines(lines, self._out, self._options.ascii)
        self._out.flush()

    def _document(self, at: float, content: dict[str, Any]) -> dict[str, Any]:
        assert self.node is not None
        return node_document("watch", self.node, at, content)


def _content(entry: LiveEvent | Notice, severity: Severity, subject: str, file: str = "") -> dict[str, Any]:
    return {
        "kind": entry.kind.value,
        "severity": severity.value,
        "subject": subject,
        "text": entry.text,
        "explanation": entry.explanation,
        "file": file or None,
    }
