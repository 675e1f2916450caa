"""What the actions' screen shows: all that could be done here, the selection, the filter.

Knows nothing of Textual.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from widgets.lines import Line, Run, Tone, wrapped

if TYPE_CHECKING:
    from probes.examination import Examination
    from probes.plans.offers import Offer


class ActionsState:
    """Offers and selection; changes only by `begin`, `take`, `fail` and the keys' methods."""

    def __init__(self) -> None:
        self.offers: tuple[Offer, ...] = ()
        self.examination: Examination | None = None  # of which the offers are
        self.selected = ""
        self.word = ""
        self._refusal = ""
        self._reading = False
        self._failure = ""

    def begin(self) -> None:
        """The offers have been asked for."""
        self._reading = True

    def fail(self, what: str) -> None:
        """They could not be had."""
        self._reading, self._failure = False, what

    def take(self, offers: tuple[Offer, ...], examination: Examination, refusal: str) -> None:
        """Takes the offers over; `refusal` is why nothing at all is run here."""
        self.offers, self.examination, self._refusal = offers, examination, refusal
        self._reading, self._failure = False, ""
        self._keep_selection()

    def offer(self, name: str) -> Offer | None:
        """The offer of this id."""
        return next((one for one in self.offers if one.id == name), None)

    # Keys

    def select(self, step: int) -> None:
        """Selects the offer `step` further in the list."""
        order = [offer.id for offer in self._listed()]
        if order:
            at = order.index(self.selected) + step if self.selected in order else 0
            self.selected = order[max(0, min(len(order) - 1, at))]

    def filter(self, word: str) -> None:
        """Lists only what contains the word."""
        self.word = word.strip().lower()
        self._keep_selection()

    def _keep_selection(self) -> None:
        listed = [offer.id for offer in self._listed()]
        if self.selected not in listed:
            self.selected = listed[0] if listed else ""

    def _listed(self) -> list[Offer]:
        return [one for one in self.offers if self.word in f"{one.id} {one.title}".lower()]

    # Drawing

    def summary(self, width: int) -> list[Line]:
        """How many are possible, as of when, and what speaks against all of them."""
        if self.examination is None:
            told = f"✗ {self._failure}" if self._failure else "Examining the node …"
            return wrapped(told, width, Tone.BAD if self._failure else Tone.DIM)
        from widgets.verdict_drawing import origin_run

        possible = sum(offer.plan is not None for offer in self.offers)
        at = time.strftime("%H:%M:%S", time.gmtime(self.examination.node.taken_at))
        state = self._failure or ("examining …" if self._reading else f"examined {at}")
        head: Line = (
            Run("Actions ", Tone.TITLE),
            origin_run(self.examination.node.origin),
            Run(f" {possible} of {len(self.offers)} possible"),
            Run(f" · {state}", Tone.DIM),
        )
        told = f"Nothing is run here: {self._refusal}." if self._refusal else ""
        return [head, *(wrapped(told, width, Tone.WARNING, "  ") if told else ())]

    def list_lines(self, width: int) -> list[Line]:
        """The list."""
        if self.examination is None:
            return []
        from widgets.offers_drawing import draw_offers

        listed = self._listed()
        if listed:
            return draw_offers(listed, width, self.selected)
        return wrapped(f"Nothing contains {self.word!r}.", width, Tone.DIM)

    def detail_lines(self, width: int) -> list[Line]:
        """What the selected one means, or why it is not possible."""
        offer = self.offer(self.selected)
        if offer is None:
            return []
        from widgets.offers_drawing import draw_offer

        return draw_offer(offer, width)
