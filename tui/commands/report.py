"""`gdrtop report`: one page about the node for a ticket or a handover."""

from __future__ import annotations

import argparse
import io
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TextIO

from probes.bandwidth.model.result import Result
from probes.bandwidth.results.baseline import machine_type
from probes.base.origin import origin_word
from probes.host.protocol import Host
from probes.recording.redaction.identifiers import Identifiers
from probes.setup.report import Report, Saved, name_of, report_of
from probes.snapshot.examination import Examination
from tui.actions.dispatcher import Dispatcher
from tui.actions.past_changes import changes_on
from tui.bandwidth.results_store import open_results_store
from tui.bandwidth.session import ResultsStore
from tui.commands.arguments import EXIT_WRONG_USAGE, UsageError
from tui.commands.report_json import report_json
from tui.files.new_file import NotWritten, check_new, write_new
from tui.files.version import version
from tui.runtime.json_values import write_json
from tui.runtime.open_host import open_host
from tui.runtime.printing import ascii_text, is_plain
from tui.runtime.snapshot import take_redacted_snapshot, take_snapshot

STDOUT = "-"
_FORMATS = {"md": "Markdown", "html": "one HTML file, without scripts", "json": "JSON (gdrtop schema report)"}
_SUFFIXES = {".md": "md", ".markdown": "md", ".html": "html", ".htm": "html", ".json": "json"}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "file", metavar="FILE", help="the new file to write, .md, .html or .json; - is standard output"
    )
    form = parser.add_mutually_exclusive_group()
    for name, text in _FORMATS.items():
        form.add_argument(
            f"--{name}",
            dest="form",
            action="store_const",
            const=name,
            help=f"write {text}, whatever the name",
        )
    parser.add_argument(
        "--redact",
        action="store_true",
        help="replace names, addresses, GUIDs, serial numbers and arguments with pseudonyms",
    )


def run(options: argparse.Namespace, out: TextIO) -> int:
    """Write the report of the node that the options name; 3: it could not be written."""
    form = options.form or _form_of(options.file)
    if options.file == STDOUT:
        report = read_report(open_host(options), options.redact)
        write_to(out, report, form, options.ascii)
        return 0
    try:
        check_new(options.file)
        text = text_of(read_report(open_host(options), options.redact), form)
        print(f"Written to {write_new(options.file, text)}", file=sys.stderr)
    except NotWritten as error:
        print(f"gdrtop: {error}", file=sys.stderr)
        return EXIT_WRONG_USAGE
    return 0


def _form_of(name: str) -> str:
    """Return the format by the name of the file; Markdown for standard output."""
    if name == STDOUT:
        return "md"
    for suffix, form in _SUFFIXES.items():
        if name.lower().endswith(suffix):
            return form
    raise UsageError(
        f"{name!r} does not end in .md, .html or .json; choose a format with --md, --html or --json"
    )


def read_report(
    host: Host,
    redact: bool = False,
    wait: Callable[[float], object] = time.sleep,
    store: ResultsStore | None = None,
    dispatcher: Dispatcher | None = None,
) -> Report:
    """Read the node for about a second, and what gdrtop has saved about it."""
    if not redact:
        snapshot = take_snapshot(host, wait)
        saved = saved_about(host, snapshot.examination, store, dispatcher)
        return report_of(snapshot.examination, snapshot.sample, snapshot.at, saved)
    identifiers = Identifiers(redact=True)
    plain, snapshot = take_redacted_snapshot(host, identifiers, wait)
    # Saved results and runs are found by the node's own name.
    saved = _redacted(saved_about(host, plain.examination, store, dispatcher), identifiers)
    return report_of(snapshot.examination, snapshot.sample, snapshot.at, saved, is_redacted=True)


def saved_about(
    host: Host, examination: Examination, store: ResultsStore | None, dispatcher: Dispatcher | None
) -> Saved:
    """Return what gdrtop has saved about the node; nothing is saved of other nodes than this machine."""
    store = open_results_store(host.origin) if store is None else store
    dispatcher = Dispatcher(host, read_only=True) if dispatcher is None else dispatcher
    name, origin = name_of(examination), origin_word(host.origin)
    results = tuple(one for one in store.results() if (one.node, one.origin) == (name, origin))
    changes, unread = changes_on(dispatcher, name)
    return Saved(
        results=results,
        baseline=store.baseline(machine_type(examination)),
        changes=changes,
        unread=tuple(filter(None, (store.why_unread(), *unread))),
    )


def _redacted(saved: Saved, identifiers: Identifiers) -> Saved:
    """Return the same with pseudonyms; the origin stays, because results are compared by it."""
    redacted = identifiers.value(saved)
    return replace(
        redacted,
        results=tuple(map(_with_origin, redacted.results, saved.results)),
        baseline=tuple(map(_with_origin, redacted.baseline, saved.baseline)),
    )


def _with_origin(redacted: Result, saved: Result) -> Result:
    return replace(redacted, origin=saved.origin)


def text_of(report: Report, form: str) -> str:
    """Return the report in one of the formats "md", "html", "json"."""
    if form == "json":
        out = io.StringIO()
        write_json(report_json(report), out)
        return out.getvalue()
    if form == "html":
        from widgets.report.html import html_of

        return html_of(report, version())
    from widgets.report.markdown import markdown_of

    return markdown_of(report, version())


def write_to(out: TextIO, report: Report, form: str, ascii_only: bool) -> None:
    """Write the report to a stream; where that is not UTF-8, in ASCII."""
    text = text_of(report, form)
    if is_plain(out, ascii_only):
        text = text.encode("ascii", "xmlcharrefreplace").decode() if form == "html" else ascii_text(text)
    out.write(text)
