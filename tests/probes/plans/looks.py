"""What is offered on a simulated node."""

from functools import cache

from probes.base.plan import Plan
from probes.checks.registry import findings
from probes.plans.catalogue import ACTIONS, Offer, offers
from probes.snapshot.examination import Examination
from tests.probes.checks.doctor import examination_of


@cache
def offers_on(name: str) -> dict[str, Offer]:
    """All offers by id, on "hgx-h100+acs-on"."""
    examination = examination_of(name)
    return {offer.id: offer for offer in offers(examination, findings(examination))}


def answer(action: str, examination: Examination) -> Plan | str:
    """The plan of one action, or why there is none."""
    return next(one for one in ACTIONS if one.id == action).plan(examination)


def plan(action: str, examination: Examination) -> Plan:
    """The plan that there has to be."""
    told = answer(action, examination)
    assert isinstance(told, Plan), told
    return told


def why_not(action: str, examination: Examination) -> str:
    """Why there is none."""
    told = answer(action, examination)
    assert isinstance(told, str), told
    return told


def commands(of: Plan) -> list[str]:
    """The commands in order, as typed; a change of a file as its path, what only a person can do as "…"."""
    return [" ".join(step.argv) or (step.file.path if step.file else "…") for step in of.steps]


def undone(of: Plan) -> list[str]:
    """The commands that take the steps back."""
    return [" ".join(step.undo) for step in of.steps]
