"""`gdrtop nccl-log`: what NCCL's log says about GPUDirect RDMA, and what its errors mean."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, Protocol, TextIO, TypedDict

from probes.base.origin import Origin, Source
from probes.base.unknown import Maybe, Unknown
from probes.base.unknown import Reason as Why
from probes.nccl.log.facts import LogFacts, LogVerdict
from probes.nccl.log.reader import LogReader
from probes.nccl.log.verdict import verdict_of
from tui.command_line.arguments import EXIT_WRONG_USAGE, UsageError
from tui.command_line.options import OutputOptions, parsed
from tui.files.log_files import STDIN, UnreadableLog, chunks_of_log, log_files, short_names, size_of
from tui.files.new_file import shown_path
from tui.runtime.json_values import Changed, ExitStatus, document, object_from, object_of, write_json
from tui.runtime.printing import ProgressLine, print_lines, text_width
from widgets.nccl.log import draw

_REFRESH_SECONDS = 0.2


class NcclLogDocument(TypedDict):
    """`gdrtop nccl-log --json`."""

    node: Maybe[None]  # a log can be of several nodes
    source: Literal["recorded"]
    label: Literal[""]
    exit_status: ExitStatus  # 0 every network channel uses GPUDirect RDMA, 1 some, 2 none, 3 unknown
    verdict: Annotated[LogVerdict, Changed(state=Literal["all", "partly", "none", "unknown"])]
    log: LogFacts


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", metavar="FILE", nargs="+", help="a log written with NCCL_DEBUG=INFO, or -")
    parser.add_argument("--json", action="store_true", help="print JSON (gdrtop schema nccl-log)")


def run(options: argparse.Namespace, out: TextIO) -> int:
    """Read the logs that the options name, and return the verdict's exit status."""
    return write_nccl_log(options.files, out, parsed(OutputOptions, options))


def write_nccl_log(
    names: Sequence[str],
    out: TextIO,
    options: OutputOptions,
    errors: TextIO | None = None,
    wall_clock: Callable[[], float] = time.time,
) -> int:
    """Read logs and print what they say; Ctrl-C ends the reading, not the printing."""
    errors = sys.stderr if errors is None else errors
    reader = LogReader()
    notes = read_files(reader, names, errors, with_paths=options.json)
    facts = reader.facts()
    verdict = verdict_of(facts)
    for note in notes:
        print(f"gdrtop: {note}", file=errors)
    if all(file.error and not file.size_bytes for file in facts.files):
        return EXIT_WRONG_USAGE
    if options.json:
        write_json(nccl_log_json(facts, verdict, wall_clock()), out)
    else:
        print_lines(draw(facts, verdict, text_width(out)), out, options.ascii)
    return verdict.state.value


def nccl_log_json(facts: LogFacts, verdict: LogVerdict, at: float) -> dict[str, Any]:
    """Return the JSON document."""
    judged = object_from(verdict, LogVerdict, state=verdict.state.name.lower())
    content = object_of({"exit_status": verdict.state.value, "verdict": judged, "log": facts})
    node = Unknown(Why.NOT_THERE, "", "a log can cover several nodes")
    return document("nccl-log", node, Origin(Source.RECORDED), at, content)


class FileReader(Protocol):
    """What reads files one after another."""

    def begin(self, name: str) -> None:
        """Begin a file, with the name that is shown."""

    def feed(self, chunk: bytes, /) -> None:
        """Read the next piece."""

    def end(self, error: str = "") -> None:
        """End the file; `error`: why it could not be read to its end."""


def read_files(
    reader: FileReader, names: Sequence[str], errors: TextIO, with_paths: bool = False
) -> list[str]:
    """Read files and patterns, with progress on a terminal; Ctrl-C ends the reading.

    Returns what the user has to know about the reading. UsageError: a pattern matches no file.
    """
    try:
        found = log_files(names)
    except UnreadableLog as error:
        raise UsageError(str(error)) from None
    progress = _Progress(errors, sum(map(size_of, found)))
    notes: list[str] = []
    try:
        for name, short in ({name: name for name in found} if with_paths else short_names(found)).items():
            broken = ""
            reader.begin("stdin" if name == STDIN else shown_path(short))
            try:
                for chunk in chunks_of_log(name, progress.advance):
                    reader.feed(chunk)
            except UnreadableLog as unreadable:
                broken = str(unreadable)
                notes.append(f"{'stdin' if name == STDIN else shown_path(name)} cannot be read: {broken}")
            reader.end(broken)
    except KeyboardInterrupt:
        reader.end()
        notes.append("interrupted; this is what was read so far")
    finally:
        progress.clear()
    return notes


class _Progress:
    """How much was read, on one line of a terminal."""

    def __init__(self, out: TextIO, size: int) -> None:
        self._line, self._size, self._read = ProgressLine(out), size, 0
        self._next = time.monotonic() + _REFRESH_SECONDS

    def advance(self, count: int) -> None:
        """Count bytes, and show them now and then."""
        self._read += count
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _REFRESH_SECONDS
            percent = f" of {self._size >> 20} MiB" if self._size else ""
            self._line.show(f"{self._read >> 20}{percent or ' MiB'} read; Ctrl-C shows what was found")

    def clear(self) -> None:
        """Remove the line."""
        self._line.show("")
