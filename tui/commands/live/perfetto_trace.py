"""Live samples as a trace that ui.perfetto.dev opens.

The format is Perfetto's TrackEvent: protocol buffers, of which a trace needs few messages (its source,
protos/perfetto/trace/trace_packet.proto and track_event/). Times are nanoseconds since the first sample.
"""

from __future__ import annotations

import contextlib
import gzip
import struct
import sys
from collections.abc import Callable, Iterable

from probes.facts.node import Node
from probes.live.model.sample import LiveSample
from tui.command_line.arguments import UsageError
from tui.commands.live.rows import FIGURES, LiveRow, live_rows
from tui.files.new_file import NotWritten, check_new, write_new
from tui.launch import EXIT_INTERRUPTED
from tui.runtime.json_values import time_json

_SEQUENCE = 1  # of packets: all are written by one writer
_INSTANT, _COUNTER = 3, 4  # TrackEvent.Type
_MOST_BYTES = 512 << 20


class PerfettoTrace:
    """A trace of a node: a track for each job, port and GPU, with a counter for each of its figures."""

    def __init__(self) -> None:
        self._packets = bytearray()
        self._tracks: dict[tuple[str, ...], int] = {}
        self._began: float | None = None
        self.is_full = False  # later samples are left out

    def write(self, node: Node, sample: LiveSample) -> None:
        """Add the rows of a sample."""
        if self._began is None:
            self._began = sample.taken_at
        if len(self._packets) > _MOST_BYTES:
            self.is_full = True
            return
        for row in live_rows(node, sample):
            self._add(row)

    def compressed(self) -> bytes:
        """Return the file's content."""
        return gzip.compress(bytes(self._packets), mtime=0)

    def _add(self, row: LiveRow) -> None:
        assert self._began is not None
        at = max(0, round((row.at - self._began) * 1e9))
        if row.kind == "event":
            track = self._track(("events",), f"events, from {time_json(self._began)}")
            self._event(at, _INSTANT, track, name=row.text)
            return
        title = f"{row.kind} {row.name}{f' ({row.text})' if row.text else ''}"
        parent = self._track((row.kind, row.name), title)
        for name, figure in row.figures.items():
            track = self._track((row.kind, row.name, name), name, parent, unit=FIGURES[name])
            self._event(at, _COUNTER, track, figure=figure)

    def _track(self, key: tuple[str, ...], name: str, parent: int = 0, unit: str | None = None) -> int:
        """Return the id of a track, which is described when it is used first."""
        if key not in self._tracks:
            number = self._tracks[key] = len(self._tracks) + 1
            counter = b"" if unit is None else _message(8, (_text(6, unit),))
            parts = (_number(1, number), _text(2, name), _number(5, parent) if parent else b"", counter)
            self._packet(0, _message(60, parts))
        return self._tracks[key]

    def _event(self, at: int, kind: int, track: int, name: str = "", figure: float | None = None) -> None:
        value = b"" if figure is None else _key(44, 1) + struct.pack("<d", figure)
        parts = (_number(9, kind), _number(11, track), _text(23, name) if name else b"", value)
        self._packet(at, _message(11, parts))

    def _packet(self, at: int, content: bytes) -> None:
        self._packets += _message(1, (_number(8, at), _number(10, _SEQUENCE), content))


def save_trace(path: str, write: Callable[..., int]) -> int:
    """Write the samples that `write` gives to `each` to a new file, and return its exit status.

    Ctrl-C ends the samples, not the file. UsageError: the file exists, or cannot be written.
    """
    trace = PerfettoTrace()
    status = EXIT_INTERRUPTED
    try:
        check_new(path)
        with contextlib.suppress(KeyboardInterrupt):
            status = write(each=trace.write)
        written = write_new(path, trace.compressed())
    except NotWritten as error:
        raise UsageError(str(error)) from None
    note = "; later samples were left out: it would be too large" * trace.is_full
    print(f"Written to {written}; open it in ui.perfetto.dev{note}.", file=sys.stderr)
    return status


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _key(field: int, wire_type: int) -> bytes:
    return _varint(field << 3 | wire_type)


def _number(field: int, value: int) -> bytes:
    return _key(field, 0) + _varint(value)


def _message(field: int, parts: Iterable[bytes]) -> bytes:
    content = b"".join(parts)
    return _key(field, 2) + _varint(len(content)) + content


def _text(field: int, text: str) -> bytes:
    return _message(field, (text.encode("utf-8", "replace"),))
