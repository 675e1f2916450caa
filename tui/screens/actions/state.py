"""The state of the actions screen: all actions, the selection, the filter. It does not use Textual."""

from __future__ import annotations

from typing import TYPE_CHECKING

from probes.base.text import plural
from tui.screens.list_state import ExaminedListState
from widgets.base.lines import Line, Run, Tone, wrapped

if TYPE_CHECKING:
    from probes.plans.catalogue import Offer
    from probes.snapshot.examination import Examination


class ActionsState(ExaminedListState):
    """Actions and selection; only `begin`, `set_actions`, `fail` and the methods of keys change it."""

    def __init__(self) -> None:
        super().__init__()
        self.offers: tuple[Offer, ...] = ()  # of the examination
        self._refusal = ""

    def set_actions(self, offers: tuple[Offer, ...], examination: Examination, refusal: str) -> None:
        """Show these actions; `refusal` is why none can run here, or ""."""
        self._examined(examination)
        self.offers, self._refusal = offers, refusal
        self._keep_selection()

    def offer(self, name: str) -> Offer | None:
        """Return the action of this id."""
        return next((offer for offer in self.offers if offer.id == name), None)

    @property
    def is_possible(self) -> bool:
        """Return whether the selected action has a plan."""
        offer = self.offer(self.selected)
        return offer is not None and offer.plan is not None

    def _order(self) -> list[str]:
        return [offer.id for offer in self._listed()]

    def _first(self) -> str:
        possible = (offer.id for offer in self._listed() if offer.plan is not None)
        return next(possible, super()._first())

    def _listed(self) -> list[Offer]:
        """Return the actions that contain the word: in each group, the possible ones first."""
        from widgets.doctor.plan import heading_of

        listed = [offer for offer in self.offers if self.word in f"{offer.id} {offer.title}".lower()]
        groups = list(dict.fromkeys(map(heading_of, listed)))
        return sorted(listed, key=lambda offer: (groups.index(heading_of(offer)), offer.plan is None))

    # Drawing

    def _draw_summary(self, examination: Examination, as_of: str, width: int) -> list[Line]:
        """Draw how many actions are possible, and why none can run here."""
        possible = sum(offer.plan is not None for offer in self.offers)
        if self._refusal:
            text = f"gdrtop cannot run actions here: {self._refusal}. It shows {plural(possible, 'plan')}."
            return wrapped(text, width, Tone.WARNING)
        return [(Run(f"{possible} of {len(self.offers)} possible"), Run(f" · {as_of}", Tone.DIM))]

    def list_lines(self, width: int) -> list[Line]:
        """Draw the list."""
        if self.examination is None:
            return []
        from widgets.doctor.plan import draw_offers

        listed = self._listed()
        if listed:
            return draw_offers(listed, width, self.selected)
        return wrapped(f"No action contains {self.word!r}.", width, Tone.DIM)

    def detail_lines(self, width: int) -> list[Line]:
        """Draw the selected action, or why it is not possible."""
        offer = self.offer(self.selected)
        if offer is None:
            return []
        from widgets.doctor.plan import draw_offer

        return draw_offer(offer, width)
