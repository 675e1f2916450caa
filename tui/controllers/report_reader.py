"""Read what a report shows: the node, and what gdrtop has saved about it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from probes.bandwidth.model.result import Result
from probes.bandwidth.results.baseline import machine_type
from probes.base.origin import origin_word
from probes.checks.judgment import judge
from probes.host.protocol import Host
from probes.recording.redaction.identifiers import Identifiers
from probes.setup.report import Report, Saved, name_of, report_of
from probes.snapshot.examination import Examination
from tui.actions.dispatcher import Dispatcher
from tui.actions.past_changes import changes_on
from tui.bandwidth.results_store import open_results_store
from tui.bandwidth.session import ResultsStore
from tui.bandwidth.slow_results import with_slow_results
from tui.runtime.snapshot import Snapshot, take_redacted_snapshot, take_snapshot


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
        return _report_of(host, snapshot, saved)
    identifiers = Identifiers(redact=True)
    plain, snapshot = take_redacted_snapshot(host, identifiers, wait)
    # Saved results and runs are found by the node's own name.
    saved = _redacted(saved_about(host, plain.examination, store, dispatcher), identifiers)
    return _report_of(host, snapshot, saved, is_redacted=True)


def _report_of(host: Host, snapshot: Snapshot, saved: Saved, is_redacted: bool = False) -> Report:
    """Return the report, whose judgment counts the slow results."""
    examination = with_slow_results(host, snapshot.examination, saved.results)
    is_same = examination is snapshot.examination
    judgment = snapshot.judgment if is_same else judge(examination)
    return report_of(examination, judgment, snapshot.sample, snapshot.at, saved, is_redacted)


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
