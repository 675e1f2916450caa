"""Draw the actions of a node, those that are not possible with the reason."""

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
    """Return the heading of the group that an action belongs to."""
    if offer.id.startswith("undo:") or offer.id == "acs-redirect-back":
        return UNDO
    return FIXES if offer.id.startswith("fix:") else ACTIONS


def draw_offers(offers: Sequence[Offer], width: int, selected: str) -> list[Line]:
    """Draw a line per action, under the headings of their groups."""
    lines: list[Line] = []
    for heading, members in groupby(offers, heading_of):
        group = list(members)
        lines.append((Run(heading, Tone.TITLE),))
        cells = min(_MOST_ID_CELLS, max(len(_name(offer)) for offer in group))
        lines.extend(fit(_row(offer, cells, selected), width) for offer in group)
    return lines


def _row(offer: Offer, cells: int, selected: str) -> Line:
    possible = offer.plan is not None
    name_tone = Tone.CURSOR if offer.id == selected else Tone.PLAIN if possible else Tone.DIM
    text = f" {offer.title}" if possible else f" {offer.title} · {offer.why_not}"
    return (
        Run("▸", Tone.GOOD) if possible else Run("–", Tone.DIM),
        Run(" "),
        Run(f"{_name(offer):<{cells}}", name_tone, offer.id),
        Run(text, Tone.PLAIN if possible else Tone.DIM),
    )


def _name(offer: Offer) -> str:
    """Return the id, without the id of a past run."""
    return "undo" if offer.id.startswith("undo:") else offer.id


def draw_offer(offer: Offer, width: int) -> list[Line]:
    """Draw an action: its consequences and steps, or why it is not possible."""
    if offer.plan is None:
        return [*wrapped(offer.title, width, Tone.TITLE), *wrapped(offer.why_not, width, Tone.DIM)]
    return [
        *wrapped(offer.plan.title, width, Tone.TITLE),
        *draw_consequences(offer.plan, width),
        *draw_steps(offer.plan, width),
    ]
