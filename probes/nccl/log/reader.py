"""Read logs piece by piece, however large they are, and what those of running jobs say."""

from __future__ import annotations

from dataclasses import replace

from probes.base.text import printable
from probes.nccl.log.channels import ChannelLine
from probes.nccl.log.collect import Collector
from probes.nccl.log.facts import LogFacts, LogFile, Place
from probes.nccl.log.grammar import (
    CUT_MARK,
    INTEREST,
    LAST_ERROR,
    MAX_LINE_BYTES,
    OF_OTHERS,
    OTHERS,
    clean,
    header_before,
    writer_of,
)
from probes.nccl.log.messages import ALIKE_BYTES

_MOST_MESSAGE_BYTES = 2000
_MOST_FILES = 4096
_MOST_BEFORE = 200
_WARNINGS = (b"NCCL WARN ", b"NCCL ATTN ", b"NCCL DIAG ")
_OF_NCCL = (b"NCCL INFO", b"NCCL WARN", b"NCCL ATTN", b"NCCL DIAG", b"NCCL version")


class LogReader:
    """Reads files one after another: `begin`, `feed` with pieces of any size, `end`."""

    def __init__(self, collector: Collector | None = None) -> None:
        """Begin; readers of files that grow at the same time share a `collector`."""
        self._collector = Collector() if collector is None else collector
        self._files: list[LogFile] = []
        self._name = ""
        self._carry = b""  # an unfinished line
        self._size = 0
        self._lines = 0

    def begin(self, name: str) -> None:
        """Begin a file; `name` is shown with line numbers."""
        self._name = printable(name, 1024)
        self._carry, self._size, self._lines = b"", 0, 0

    def feed(self, chunk: bytes) -> None:
        """Read the next piece of the file."""
        self._size += len(chunk)
        data = self._carry + chunk if self._carry else chunk
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if data.endswith(LAST_ERROR, 0, max(0, end - 1)):  # wait for the line that it announces
            end = data.rfind(b"\n", 0, end - 1) + 1
        # One byte more than is kept of a line shows that it was longer.
        self._carry = data[end : end + MAX_LINE_BYTES + 1]
        if end:
            self._read(data[:end], is_whole=True)

    def end(self, error: str = "") -> None:
        """End the file; its last line counts as cut off if it has no line end."""
        if self._carry:
            self._read(self._carry, is_whole=False)
            self._lines += 1
        self._carry = b""
        if len(self._files) < _MOST_FILES:
            self._files.append(LogFile(self._name, self._size, self._lines, error))

    def so_far(self) -> LogFile:
        """Return the file that is being read, as far as it was read."""
        return LogFile(self._name, self._size, self._lines)

    def facts(self) -> LogFacts:
        """Return what all files say."""
        return replace(self._collector.facts(()), files=tuple(self._files))

    def _read(self, block: bytes, is_whole: bool) -> None:
        count = block.count(b"\n")
        if b"NCCL" in block or any(mark in block for mark in OTHERS):
            self._search(clean(block), is_whole, count)
        self._lines += count

    def _search(self, block: bytes, is_whole: bool, count: int) -> None:
        # A carriage return ends a line for the search, as a progress bar does, but is not counted as a line.
        lines = block.replace(b"\r", b"\n") if b"\r" in block else block
        number, counted, channels = self._lines + 1, 0, 0
        known = self._collector.channel_lines
        for match in INTEREST.finditer(lines):
            start = match.start()
            key = None
            if match.lastindex:  # a log may be full of channels, most of which differ only in their number
                channels += 1
                key = writer_of(lines[lines.rfind(b"\n", 0, start) + 1 : start]), match[1]
                alike = known.get(key)
                if alike is not None:
                    alike.count += 1
                    continue
            end = lines.find(b"\n", start)
            has_end = end >= 0 or is_whole
            end = len(lines) if end < 0 else end
            # A log may be nothing but one warning: what comes before this costs most of the time then.
            number += block.count(b"\n", counted, start)
            counted = start
            if match[0] in _WARNINGS:
                begin = lines[start : end if end < start + ALIKE_BYTES else start + ALIKE_BYTES]
                if self._collector.skips(begin, self._name, number):
                    continue
            line_start = lines.rfind(b"\n", 0, start) + 1
            kept = min(end, start + _MOST_MESSAGE_BYTES)
            # PyTorch names the rank before its file name.
            first = start if match[0].startswith(_OF_NCCL) else max(line_start, start - _MOST_BEFORE)
            text = lines[first:kept].decode("utf-8", "replace")
            header = header_before(lines, start, line_start)
            has_end = has_end and kept == end and lines[end - 1 : end] != CUT_MARK
            place = Place(self._name, number)
            self._collector.take(text, place, header, has_end)
            if key is not None and has_end and header is not None and not header.is_glued:
                self._collector.remember(key, ChannelLine(text, place, header))
        if channels < count and any(mark in lines for mark in OTHERS):
            self._search_others(lines, block)

    def _search_others(self, lines: bytes, block: bytes) -> None:
        """Read lines of other libraries."""
        number, counted = self._lines + 1, 0
        for match in OF_OTHERS.finditer(lines):
            begin = lines.rfind(b"\n", 0, match.start()) + 1
            number += block.count(b"\n", counted, begin)
            counted = begin
            if match["last"] is not None:
                text = lines[match.start("last") : match.end()].decode("utf-8", "replace")
                self._collector.last_error(text, Place(self._name, number + 1))
                continue
            line = lines[begin : min(match.end(), begin + _MOST_MESSAGE_BYTES)]
            if b"NCCL " not in line:  # which INTEREST finds
                version = match["version"]
                text = line.decode("utf-8", "replace")
                place = Place(self._name, number)
                self._collector.other(text, place, None if version is None else version.decode("ascii"))
