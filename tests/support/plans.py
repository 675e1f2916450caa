"""The actions and plans of a simulated node."""

from functools import cache

from probes.base.plan import Plan
from probes.checks.registry import findings
from probes.plans.catalogue import ACTIONS, Offer, offers
from probes.snapshot.examination import Examination
from tests.support.doctor import examination_of


@cache
def offers_on(name: str) -> dict[str, Offer]:
    """Return all actions by id, for a node such as "hgx-h100+acs-on"."""
    examination = examination_of(name)
    return {offer.id: offer for offer in offers(examination, findings(examination))}


def answer(action: str, examination: Examination) -> Plan | str:
    """Return the plan of an action, or why there is none."""
    return next(entry for entry in ACTIONS if entry.id == action).plan(examination)


def plan(action: str, examination: Examination) -> Plan:
    """Return the plan of an action that must have one."""
    found = answer(action, examination)
    assert isinstance(found, Plan), found
    return found


def why_not(action: str, examination: Examination) -> str:
    """Return why an action has no plan."""
    reason = answer(action, examination)
    assert isinstance(reason, str), reason
    return reason


def commands(made_plan: Plan) -> list[str]:
    """Return the commands in order, a file change as its path, a manual step as "…"."""
    return [" ".join(step.argv) or (step.file.path if step.file else "…") for step in made_plan.steps]


def undone(made_plan: Plan) -> list[str]:
    """Return the commands that undo the steps."""
    return [" ".join(step.undo) for step in made_plan.steps]
