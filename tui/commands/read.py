"""`gdrtop read`: what any text means: a log, the output of a tool, a script, a pod."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TextIO, TypedDict

from probes.base.origin import Origin, Source
from probes.base.unknown import Maybe, Unknown
from probes.base.unknown import Reason as Why
from probes.read.reading import Proven, Reading, SeenKind, Statement
from probes.read.text import TextReader
from probes.snapshot.examination import Examination, examine
from tui.command_line.arguments import EXIT_WRONG_USAGE, add_arguments
from tui.command_line.options import OutputOptions, parsed
from tui.commands.nccl_log import read_files
from tui.files.log_files import STDIN
from tui.runtime.json_values import Changed, ExitStatus, document, node_document, object_of, write_json
from tui.runtime.open_host import open_host
from tui.runtime.printing import heading, print_lines, text_width
from widgets.read import draw


class ReadDocument(TypedDict):
    """`gdrtop read --json`."""

    node: Maybe[str]  # against which the text was judged; null: by itself
    exit_status: ExitStatus  # as of gdrtop check
    proven: Annotated[Proven, Changed(path=Literal["gdr", "no-gdr", "host", "nvlink", "mixed", "unknown"])]
    shown: tuple[str, ...]  # by tables, which prove nothing, a sentence each
    kinds: tuple[SeenKind, ...]
    statements: tuple[Statement, ...]
    lines: int  # that are not empty
    unread: int  # of those, what gdrtop does not know
    unread_lines: tuple[str, ...]  # the first of them


def add_options(parser: argparse.ArgumentParser) -> None:
    texts = {
        "--here": "judge the text against this node; --host, --demo and --replay choose another one",
        "--json": "print JSON (gdrtop schema read)",
        "[FILE ...]": "a text of any kind, or -",
    }
    add_arguments(parser, texts, file={"dest": "files"})


def run(options: argparse.Namespace, out: TextIO) -> int:
    """Read the texts that the options name, and return the exit status of what they say."""
    is_chosen = options.here or options.host or options.demo is not None or options.replay is not None
    node = examine(open_host(options)) if is_chosen or options.root != "/" else None
    return write_reading(options.files or [STDIN], out, parsed(OutputOptions, options), node=node)


def write_reading(
    names: Sequence[str],
    out: TextIO,
    options: OutputOptions,
    errors: TextIO | None = None,
    node: Examination | None = None,
) -> int:
    """Read texts and print what they mean, by themselves or on a node.

    Ctrl-C ends the reading, not the printing.
    """
    errors = sys.stderr if errors is None else errors
    reader = TextReader(node)
    for note in read_files(reader, names, errors, with_paths=options.json):
        print(f"gdrtop: {note}", file=errors)
    reading = reader.reading()
    if all(file.error and not file.size_bytes for file in reading.files):
        return EXIT_WRONG_USAGE
    if options.json:
        write_json(read_json(reading, time.time(), node), out)
    else:
        head = [] if node is None else [heading(node.node)]
        print_lines([*head, *draw(reading, text_width(out))], out, options.ascii)
    return reading.exit_status


def read_json(reading: Reading, at: float, node: Examination | None = None) -> dict[str, Any]:
    """Return the JSON document."""
    names = ("proven", "shown", "kinds", "statements", "lines", "unread", "unread_lines")
    content = object_of(
        {"exit_status": reading.exit_status, **{name: getattr(reading, name) for name in names}}
    )
    if node is not None:
        return node_document("read", node.node, at, content)
    name = Unknown(Why.NOT_THERE, "", "a text can be of several nodes")
    return document("read", name, Origin(Source.RECORDED), at, content)
