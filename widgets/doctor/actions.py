"""What can be done on a node: one line an action, those that are impossible with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from widgets.base.lines import Line, Run, Tone, fit, wrapped
from widgets.doctor.plan import draw_consequences, draw_steps

if TYPE_CHECKING:
    from probes.plans.catalogue import Offer

ACTIONS, FIXES, UNDO = "ACTIONS", "FIXES FOR FINDINGS", "UNDO"
_MOST_ID_CELLS = 40


def heading_of(offer: Offer) -> str:
    """The heading under which an offer stands."""
    if offer.id.startswith("undo:") or offer.id == "acs-redirect-back":
        return UNDO
    return FIXES if offer.id.startswith("fix:") else ACTIONS


def draw_offers(offers: Sequence[Offer], width: int, selected: str) -> list[Line]:
    """One line each in the order given, under their headings."""
    lines: list[Line] = []
    for heading, some in groupby(offers, heading_of):
        group = list(some)
        lines.append((Run(heading, Tone.TITLE),))
        cells = min(_MOST_ID_CELLS, max(len(_name(offer)) for offer in group))
        lines.extend(fit(_row(offer, cells, selected), width) for offer in group)
    return lines


def _row(offer: Offer, cells: int, selected: str) -> Line:
    possible = offer.plan is not None
    name_tone = Tone.CURSOR if offer.id == selected else Tone.PLAIN if possible else Tone.DIM
    told = f" {offer.title}" if possible else f" {offer.title}: {offer.why_not}"
    return (
        Run("▸", Tone.GOOD) if possible else Run("–", Tone.DIM),
        Run(" "),
        Run(f"{_name(offer):<{cells}}", name_tone, offer.id),
        Run(told, Tone.PLAIN if possible else Tone.DIM),
    )


def _name(offer: Offer) -> str:
    """The id; a past run's own name is of no use to anybody's eyes."""
    return "undo" if offer.id.startswith("undo:") else offer.id


def draw_offer(offer: Offer, width: int) -> list[Line]:
    """One offer: what it means and its steps, or why there is none."""
    if offer.plan is None:
        return [*wrapped(offer.title, width, Tone.TITLE), *wrapped(offer.why_not, width, Tone.DIM)]
    return [
        *wrapped(offer.plan.title, width, Tone.TITLE),
        *draw_consequences(offer.plan, width),
        *draw_steps(offer.plan, width),
    ]
