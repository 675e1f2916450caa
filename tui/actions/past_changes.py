"""What gdrtop has changed on a node, and how to undo it, for a report."""

from __future__ import annotations

import shlex

from probes.plans.catalogue import Offer
from probes.setup.report import Change
from tui.actions.audit_log import PastRun, PastStep
from tui.actions.dispatcher import Dispatcher
from tui.actions.events import RunOutcome
from widgets.doctor.plan import command_of

_MOST_RUNS = 50
_BY_KEYS = "gdrtop, then H, this run, u"


def changes_on(dispatcher: Dispatcher, node: str) -> tuple[tuple[Change, ...], tuple[str, ...]]:
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
        undo=tuple(command_of(step) for step in steps),
        no_undo="this run is itself an undo" if is_undo else "" if steps else undo.why_not,
        undo_by=(f"gdrtop do {undo.id}" if undo.id in offered else _BY_KEYS) if steps else "",
    )


def _command(step: PastStep) -> str:
    """Return the command as typed, and its outcome unless it succeeded."""
    command = shlex.join(step.argv) if step.argv else f"change {step.path}"
    return command if step.outcome is RunOutcome.DONE else f"{command}  # {step.outcome.value}"
