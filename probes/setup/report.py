"""A report: what a ticket or a handover says about a node, as data.

What gdrtop has saved, results and the log of its runs, is passed in; everything else is read off the
examination and the live sample of the same moment.
"""

from __future__ import annotations

from probes.acceptance.certificate import Certificate
from probes.bandwidth.model.result import Result
from probes.bandwidth.results.against_earlier import changes
from probes.bandwidth.results.comparison import conclusions
from probes.base.frozen import frozen
from probes.base.unknown import Maybe, known
from probes.checks.judgment import Judgment
from probes.facts.node import host_name
from probes.live.model.sample import LiveSample
from probes.queries.versions import versions_of
from probes.snapshot.examination import Examination


@frozen
class Change:
    """A run of an action by gdrtop on this node."""

    at: float  # seconds since 1970
    id: str
    title: str
    user: str  # "root (sudo by alice)"
    outcome: str  # "done", "failed", …
    commands: tuple[str, ...]  # as typed, or "write PATH"; only those that were run
    undo: tuple[str, ...]  # commands, in the order in which they run; empty: `no_undo` says why
    no_undo: str = ""
    undo_by: str = ""  # what to type or press to run them
    measured: str = ""  # what it changed, by bandwidth tests before and after it


@frozen
class Measured:
    """The newest result of one test on this node, and how it compares with earlier ones."""

    result: Result
    comparisons: tuple[str, ...]  # sentences


@frozen
class Saved:
    """What gdrtop has saved about a node. `unread` says what could not be read."""

    results: tuple[Result, ...] = ()  # of this node, oldest first
    baseline: tuple[Result, ...] = ()
    changes: tuple[Change, ...] = ()  # newest first, of this node
    unread: tuple[str, ...] = ()


NOTHING_SAVED = Saved()


@frozen
class Report:
    """Everything on the page."""

    at: float  # seconds since 1970, the host's clock
    examination: Examination
    judgment: Judgment
    sample: LiveSample | None  # None: a tree of files has no processes
    versions: dict[str, Maybe[str]]
    measured: tuple[Measured, ...]
    conclusions: tuple[str, ...]  # sentences on what the results mean
    changes: tuple[Change, ...]
    unread: tuple[str, ...]
    is_redacted: bool
    certificate: Certificate | None = None  # if one was asked for

    @property
    def node_name(self) -> str:
        """The host name, or "?"."""
        return known(host_name(self.examination.node), "?")


def report_of(
    examination: Examination,
    judgment: Judgment,
    sample: LiveSample | None,
    at: float,
    saved: Saved = NOTHING_SAVED,
    is_redacted: bool = False,
) -> Report:
    """Return the report of a node; `at`: seconds since 1970, by the host's clock."""
    by_test = {result.key: result for result in saved.results}  # the oldest come first
    newest = sorted(
        by_test.values(), key=lambda result: (result.pair.gpu_label, result.pair.nic, result.title)
    )
    return Report(
        at=at,
        examination=examination,
        judgment=judgment,
        sample=sample,
        versions=versions_of(examination),
        measured=tuple(Measured(result, changes(result, saved.results, saved.baseline)) for result in newest),
        conclusions=conclusions(newest),
        changes=saved.changes,
        unread=saved.unread,
        is_redacted=is_redacted,
    )
