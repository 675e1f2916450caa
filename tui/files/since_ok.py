"""What has changed on this node since it last worked: its facts are saved while it is READY or ACTIVE."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Union

from probes.base.origin import Source
from probes.base.text import printable
from probes.base.unknown import Reason, Unknown, known
from probes.checks.judgment import Judgment
from probes.facts.system.platform import PlatformFacts
from probes.snapshot.examination import Examination
from tui.files.last_ok_file import LastOkFile, LastOkFileError

if TYPE_CHECKING:  # loaded once there is something to save or to compare
    from probes.fleet.compare import Changes
    from probes.fleet.summary import NodeSummary

SinceOk = Union["Changes", Unknown, None]
"""The changes, or why the saved facts cannot be read; None: it works, it never did, or is another machine."""


def since_ok(examination: Examination, judgment: Judgment, read_only: bool = False) -> SinceOk:
    """Save the facts of this machine if it works; else return what has changed since it last did.

    `read_only`: save nothing. Nothing is saved either if checks were left out, or where it cannot be written.
    """
    if examination.node.origin.source is not Source.LIVE or not judgment.is_checked:
        return None
    name = hostname_of(examination)
    if not name:
        return None
    if judgment.verdict.is_green:
        if not read_only and not judgment.skipped:
            _save(LastOkFile(name), examination, judgment)
        return None
    before = last_ok(name)
    if before is None or isinstance(before, Unknown):
        return before
    from probes.fleet.compare import changes_between
    from probes.fleet.summary import summarize

    return changes_between(before, summarize(examination, judgment))


def hostname_of(examination: Examination) -> str:
    """Return the node's host name; "" if it is unknown."""
    platform = examination.node.platform
    return known(platform.hostname, "") if isinstance(platform, PlatformFacts) else ""


def last_ok(hostname: str) -> NodeSummary | Unknown | None:
    """Return the node when it last worked, or why its file cannot be read; None: there is no file."""
    file = LastOkFile(hostname)
    try:
        found = file.read()
    except OSError as error:
        return _unreadable(file, Reason.IO_ERROR, error.strerror or "unknown error")
    if found is None:
        return None
    summary = summary_in(found[0])
    if summary is None:
        return _unreadable(file, Reason.MALFORMED, "it is damaged; remove it")
    return replace(summary, taken_at=found[1])


def summary_in(content: bytes) -> NodeSummary | None:
    """Return the node that works in the content of a file; None if there is none."""
    from probes.fleet.summary import from_json

    try:
        summary = from_json(json.loads(content))
    except (ValueError, RecursionError):
        return None
    return summary if summary is not None and summary.verdict.is_green else None


def _unreadable(file: LastOkFile, reason: Reason, why: str) -> Unknown:
    return Unknown(reason, file.path, f"{printable(file.path)} cannot be read: {printable(why)}")


def _save(file: LastOkFile, examination: Examination, judgment: Judgment) -> None:
    from probes.fleet.traits import fingerprint, traits_of

    facts = fingerprint(traits_of(examination))
    if file.confirm(f'{{"facts": "{facts}"'.encode(), examination.taken_at):
        return
    from probes.fleet.summary import summarize, to_json

    summary = to_json(summarize(examination, judgment))
    try:
        file.save(json.dumps({"facts": facts, **summary}).encode(), examination.taken_at)
    except LastOkFileError:
        return  # a node without a writable directory is checked all the same
