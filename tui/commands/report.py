"""`gdrtop report`: one page about the node for a ticket or a handover."""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, TextIO, TypedDict

from probes.acceptance.certificate import (
    Certificate,
    CertificateError,
    EarlierCertificate,
    HardwareFact,
    earlier_certificate,
)
from probes.acceptance.profile import SHIPPED, Answered, Outcome, counted
from probes.base.origin import Source
from probes.base.unknown import Maybe, Reason, Unknown
from probes.setup.report import Change, Report
from tui.command_line.arguments import UsageError, add_arguments
from tui.commands.bench.lists import BenchDocument, result_json
from tui.commands.check import CheckDocument, check_json
from tui.commands.consumers.profile import read_profile
from tui.commands.live.live import LiveDocument, live_json
from tui.commands.topo import TopoDocument, topology_json
from tui.controllers.report_reader import read_report
from tui.files import NotWritten
from tui.files.new_file import check_new, write_new
from tui.files.read_file import read_small
from tui.files.setup_log import REPORTED, SetupLog, open_setup_log
from tui.files.since_ok import SinceOk, since_ok
from tui.files.version import version
from tui.runtime.json_values import (
    Changed,
    Time,
    node_document,
    object_from,
    object_of,
    plain_value,
    time_json,
    write_json,
)
from tui.runtime.open_host import open_host
from tui.runtime.printing import ascii_text, is_plain
from widgets.doctor.findings import highlights_of

if TYPE_CHECKING:
    from typing_extensions import NotRequired

STDOUT = "-"
_FORMATS = {"md": "Markdown", "html": "one HTML file, without scripts", "json": "JSON (gdrtop schema report)"}
_PRIVACY = {
    True: "Identifiers are replaced with tokens.",
    False: "It contains names, addresses and serial numbers. Use gdrtop report --redact to replace them.",
}
_SUFFIXES = {".md": "md", ".markdown": "md", ".html": "html", ".htm": "html", ".json": "json"}
_MOST_BYTES = 1 << 26  # of an earlier report, which has live figures, too
_NO_PROCESSES = "a tree of files has no processes"


_CHANGE = Annotated[Change, Changed(without=("at",), time=Time)]


class _CertificateObject(TypedDict):
    outcome: Outcome
    profile: str
    title: str
    date: str  # of the profile
    criteria: tuple[Answered, ...]  # in the order of the profile
    fingerprint: tuple[HardwareFact, ...]  # what the certificate holds for
    fingerprint_sha256: str
    changes: tuple[str, ...] | None  # against the certificate of --since, in sentences


class ReportDocument(TypedDict):
    """`gdrtop report --json`."""

    redacted: bool  # names, addresses, GUIDs and serial numbers are replaced with pseudonyms
    versions: Mapping[str, Maybe[str]]  # by component
    check: CheckDocument
    topo: TopoDocument
    live: Maybe[LiveDocument]
    bench: BenchDocument  # the newest saved result of each test on this node
    meaning: tuple[str, ...]  # what the results mean together, in sentences
    changes: tuple[_CHANGE, ...]  # what gdrtop has run on this node, newest first
    unread: tuple[str, ...]  # saved results or logs that could not be read, and why
    certificate: NotRequired[_CertificateObject]  # with --certificate


def add_options(parser: argparse.ArgumentParser) -> None:
    add_arguments(parser, {"FILE": "the new file to write, .md, .html or .json; - is standard output"})
    add_arguments(
        parser.add_mutually_exclusive_group(),
        {f"--{name}": f"write {text}, regardless of the file name" for name, text in _FORMATS.items()},
        **{name: {"dest": "form", "action": "store_const", "const": name} for name in _FORMATS},
    )
    add_arguments(
        parser,
        {
            "--redact": "replace names, addresses, GUIDs, serial numbers and arguments with tokens",
            "--certificate": "add a certificate: the answers of a profile, bound to the hardware and "
            "software; its checksum comes beside it, in FILE.sha256",
            "--profile NAME": "of the certificate: as gdrtop check --profile has them (default: gdrtop)",
            "--since OLD.json": "what differs from an earlier certificate",
        },
        profile={"default": ""},
        since={"default": ""},
    )


def run(options: argparse.Namespace, out: TextIO) -> int:
    """Write the report of the node that the options name; 3: it could not be written."""
    form = options.form or _form_of(options.file)
    if options.since and options.redact:
        raise UsageError("--since compares identifiers, which --redact replaces; use one of them")
    of_certificate = None
    if options.certificate:
        of_certificate = read_profile(options.profile or SHIPPED[0]), earlier_of(options.since)
    elif options.profile or options.since:
        raise UsageError("--profile and --since are of a certificate: add --certificate")
    if options.file == STDOUT:
        report = read_report(open_host(options), options.redact, of_certificate=of_certificate)
        write_to(out, report, form, options.ascii)
        return 0
    checksum = f"{options.file}.sha256"
    for path in (options.file, checksum) if options.certificate else (options.file,):
        check_new(path)
    host = open_host(options)
    report = read_report(host, options.redact, of_certificate=of_certificate)
    text = text_of(report, form)
    path = write_new(options.file, text)
    print(f"Written to {path}. {_PRIVACY[options.redact]}", file=sys.stderr)
    if report.certificate is not None:
        digest = hashlib.sha256(text.encode()).hexdigest()
        beside = write_new(checksum, f"{digest}  {os.path.basename(path)}\n")
        said = f"{report.certificate.outcome.value}: {counted(report.certificate.criteria)}"
        print(f"{said}. The checksum is in {beside}.", file=sys.stderr)
    if host.origin.source is Source.LIVE:
        _note_in_setup(open_setup_log(is_live=True), path)
    elif host.origin.source is Source.SIMULATED:
        from tui.commands.setup import SimulatedSetup

        simulated = SimulatedSetup(host.origin.label)
        if simulated.is_used:
            _note_in_setup(simulated.log, path)
    return 0


def _note_in_setup(log: SetupLog, path: str) -> None:
    """Complete the report step of setup; the report itself stays if that fails."""
    try:
        log.add(REPORTED, path)
    except NotWritten as error:
        print(f"gdrtop: setup does not show the report: {error}", file=sys.stderr)


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


def report_json(report: Report) -> dict[str, Any]:
    """Return the document."""
    examination, at = report.examination, report.at
    node, verdict, found = examination.node, report.judgment.verdict, report.judgment.findings
    results = {"results": [result_json(measured.result) for measured in report.measured]}
    content: dict[str, Any] = {
        "redacted": report.is_redacted,
        "versions": object_of(dict(report.versions)),
        "check": check_json(node, at, verdict, found, since=_since_ok(report)),
        "topo": topology_json(
            node, examination.topology, report.judgment, at, highlights_of(examination, found)
        ),
        "live": None if report.sample is None else live_json(node, report.sample),
        "bench": node_document("bench", node, at, results),
        "meaning": list(report.conclusions),
        "changes": [object_from(change, _CHANGE, time=time_json(change.at)) for change in report.changes],
        "unread": plain_value(report.unread),
    }
    if report.certificate is not None:
        content["certificate"] = _certificate_json(report.certificate)
    if report.sample is None:
        content["unknown"] = {"live": _NO_PROCESSES}
    return node_document("report", node, at, content)


def _certificate_json(certificate: Certificate) -> dict[str, Any]:
    profile = certificate.profile
    return object_of(
        {
            "outcome": certificate.outcome,
            "profile": profile.name,
            "title": profile.title,
            "date": profile.date,
            "criteria": certificate.criteria,
            "fingerprint": certificate.fingerprint,
            "fingerprint_sha256": certificate.fingerprint_sha256,
            "changes": certificate.changes,
        }
    )


def earlier_of(path: str) -> EarlierCertificate | None:
    """Read the certificate in a file; None: none is named; raise UsageError."""
    if not path:
        return None
    try:
        return earlier_certificate(read_small(path, _MOST_BYTES, "a certificate").decode("utf-8", "replace"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None
    except CertificateError as error:
        raise UsageError(f"{path}: {error}") from None


def _since_ok(report: Report) -> SinceOk:
    """Return what has changed since the node last worked: what was saved then has its identifiers."""
    is_live = report.examination.node.origin.source is Source.LIVE
    if report.is_redacted and is_live and not report.judgment.verdict.is_green:
        return Unknown(Reason.NOT_RECORDED, "since_ok", "left out of a redacted report")
    return since_ok(report.examination, report.judgment, read_only=True)


def write_to(out: TextIO, report: Report, form: str, ascii_only: bool) -> None:
    """Write the report to a stream; where that is not UTF-8, in ASCII."""
    text = text_of(report, form)
    if is_plain(out, ascii_only):
        text = text.encode("ascii", "xmlcharrefreplace").decode() if form == "html" else ascii_text(text)
    out.write(text)
