"""What the actions screen shows: all actions, the selection, the filter.

Knows nothing of Textual.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tui.screens.list_state import ExaminedListState
from widgets.base.lines import Line, Run, Tone, width_of, wrapped

if TYPE_CHECKING:
    from probes.plans.catalogue import Offer
    from probes.snapshot.examination import Examination


class ActionsState(ExaminedListState):
    """Offers and selection; changes only by `begin`, `take`, `fail` and the keys' methods."""

    def __init__(self) -> None:
        super().__init__()
        self.offers: tuple[Offer, ...] = ()  # of the examination
        self._refusal = ""

    def take(self, offers: tuple[Offer, ...], examination: Examination, refusal: str) -> None:
        """Take the offers over; `refusal` is why nothing at all is run here."""
        self._examined(examination)
        self.offers, self._refusal = offers, refusal
        self._keep_selection()

    def offer(self, name: str) -> Offer | None:
        """The offer of this id."""
        return next((one for one in self.offers if one.id == name), None)

    @property
    def is_possible(self) -> bool:
        """Whether the selected action has a plan on this node."""
        offer = self.offer(self.selected)
        return offer is not None and offer.plan is not None

    def _order(self) -> list[str]:
        return [offer.id for offer in self._listed()]

    def _first(self) -> str:
        possible = (offer.id for offer in self._listed() if offer.plan is not None)
        return next(possible, super()._first())

    def _listed(self) -> list[Offer]:
        return [one for one in self.offers if self.word in f"{one.id} {one.title}".lower()]

    # Drawing

    def _summed_up(self, examination: Examination, as_of: str, width: int) -> list[Line]:
        """How many are possible, as of when, and what speaks against all of them."""
        from widgets.node.verdict import origin_run

        possible = sum(offer.plan is not None for offer in self.offers)
        count: Line = (Run(f"{possible} of {len(self.offers)} possible"), Run(f" · {as_of}", Tone.DIM))
        head: Line = (Run("Actions ", Tone.TITLE), origin_run(examination.node.origin))
        lines = [(*head, Run(" "), *count)]
        if width_of(lines[0]) > width:
            lines = [head, count]
        why = f"gdrtop runs nothing here: {self._refusal}." if self._refusal else ""
        return [*lines, *(wrapped(why, width, Tone.WARNING, "  ") if why else ())]

    def list_lines(self, width: int) -> list[Line]:
        """The list."""
        if self.examination is None:
            return []
        from widgets.doctor.actions import draw_offers

        listed = self._listed()
        if listed:
            return draw_offers(listed, width, self.selected)
        return wrapped(f"No action contains {self.word!r}.", width, Tone.DIM)

    def detail_lines(self, width: int) -> list[Line]:
        """What the selected one means, or why it is not possible."""
        offer = self.offer(self.selected)
        if offer is None:
            return []
        from widgets.doctor.actions import draw_offer

        return draw_offer(offer, width)
