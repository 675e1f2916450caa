"""Read what a report shows: the node, and what gdrtop has saved about it."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from probes.acceptance.certificate import EarlierCertificate, certificate_of, parts_of
from probes.acceptance.profile import Profile
from probes.bandwidth.model.result import Result
from probes.bandwidth.results.against_earlier import machine_type
from probes.base.origin import origin_word
from probes.base.unknown import known
from probes.checks.judgment import judge
from probes.facts.node import host_name
from probes.host.protocol import Host
from probes.plans.catalogue import Offer
from probes.recording.redaction.identifiers import Identifiers
from probes.recording.redaction.tokens import SERIAL
from probes.setup.report import Change, Report, Saved, report_of
from probes.snapshot.examination import Examination
from tui.actions.audit_log import PastRun, PastStep
from tui.actions.dispatcher import Dispatcher
from tui.actions.events import RunOutcome
from tui.bandwidth.results_store import ResultsStore, open_results_store
from tui.bandwidth.slow_results import with_slow_results
from tui.runtime.snapshot import Snapshot, take_redacted_snapshot, take_snapshot

_MOST_RUNS = 50
_BY_KEYS = "gdrtop, then History, this run, Undo"


def read_report(
    host: Host,
    redact: bool = False,
    wait: Callable[[float], object] = time.sleep,
    store: ResultsStore | None = None,
    dispatcher: Dispatcher | None = None,
    of_certificate: tuple[Profile, EarlierCertificate | None] | None = None,
) -> Report:
    """Read the node for about a second, and what gdrtop has saved about it.

    `of_certificate`: if it shall have one, the profile and the certificate to compare with.
    """
    if not redact:
        snapshot = take_snapshot(host, wait)
        saved = saved_about(host, snapshot.examination, store, dispatcher)
        return _report_of(host, snapshot, saved, of_certificate=of_certificate)
    identifiers = Identifiers(redact=True)
    plain, snapshot = take_redacted_snapshot(host, identifiers, wait)
    # Saved results and runs are found by the node's own name.
    saved = _redacted(saved_about(host, plain.examination, store, dispatcher), identifiers)
    return _report_of(host, snapshot, saved, identifiers, of_certificate)


def _report_of(
    host: Host,
    snapshot: Snapshot,
    saved: Saved,
    identifiers: Identifiers | None = None,
    of_certificate: tuple[Profile, EarlierCertificate | None] | None = None,
) -> Report:
    """Return the report, whose judgment counts the slow results."""
    examination = with_slow_results(host, snapshot.examination, saved.results)
    is_same = examination is snapshot.examination
    judgment = snapshot.judgment if is_same else judge(examination)
    report = report_of(examination, judgment, snapshot.sample, snapshot.at, saved, identifiers is not None)
    if of_certificate is None:
        return report
    profile, earlier = of_certificate
    replaced = () if identifiers is None else (partial(identifiers.token, SERIAL), identifiers.value)
    parts = parts_of(host, examination, *replaced)
    certificate = certificate_of(profile, examination, judgment, saved.results, parts, earlier)
    return replace(report, certificate=certificate)


def saved_about(
    host: Host, examination: Examination, store: ResultsStore | None, dispatcher: Dispatcher | None
) -> Saved:
    """Return what gdrtop has saved about the node; nothing is saved of other nodes than this machine."""
    store = open_results_store(host.origin) if store is None else store
    dispatcher = Dispatcher(host, read_only=True) if dispatcher is None else dispatcher
    name, origin = known(host_name(examination.node), "?"), origin_word(host.origin)
    results = tuple(result for result in store.results() if (result.node, result.origin) == (name, origin))
    changes, unread = _changes_on(dispatcher, name)
    return Saved(
        results=results,
        baseline=store.baseline(machine_type(examination)),
        changes=changes,
        unread=tuple(filter(None, (store.why_unread(), *unread))),
    )


def _redacted(saved: Saved, identifiers: Identifiers) -> Saved:
    """Return the same with tokens; the origin stays, because results are compared by it."""
    redacted = identifiers.value(saved)
    return replace(
        redacted,
        results=tuple(map(_with_origin, redacted.results, saved.results)),
        baseline=tuple(map(_with_origin, redacted.baseline, saved.baseline)),
    )


def _with_origin(redacted: Result, saved: Result) -> Result:
    return replace(redacted, origin=saved.origin)


def _changes_on(dispatcher: Dispatcher, node: str) -> tuple[tuple[Change, ...], tuple[str, ...]]:
    """Return the newest runs on the node with this host name, and why a log could not be read.

    Runs that were refused changed nothing and are left out. A log in a shared home may be of many nodes.
    """
    runs, unread = dispatcher.history()
    offered = {offer.id for offer in dispatcher.undo_offers()}
    own = [run for run in runs if run.actor.host == node and run.outcome is not RunOutcome.REFUSED]
    return tuple(_change(run, dispatcher.undo_of(run), offered) for run in own[:_MOST_RUNS]), unread


def _change(run: PastRun, undo: Offer, offered: set[str]) -> Change:
    is_undo = run.action.startswith("undo:")
    steps = () if undo.plan is None or is_undo else undo.plan.steps
    return Change(
        at=run.at,
        id=run.id,
        title=run.title,
        user=run.actor.user,
        outcome=run.outcome.value,
        commands=tuple(_command(step) for step in run.steps),
        undo=tuple(step.command for step in steps),
        no_undo="this run is itself an undo" if is_undo else "" if steps else undo.why_not,
        measured=run.measured,
        undo_by=(f"gdrtop do {undo.id}" if undo.id in offered else _BY_KEYS) if steps else "",
    )


def _command(step: PastStep) -> str:
    """Return the command as typed, and its outcome unless it succeeded."""
    command = shlex.join(step.argv) if step.argv else f"change {step.path}"
    return command if step.outcome is RunOutcome.DONE else f"{command}  # {step.outcome.value}"
