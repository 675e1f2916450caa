"""The actions in the command palette: every possible one by its title."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from textual.command import DiscoveryHit, Hit, Hits, Provider

if TYPE_CHECKING:
    from tui.offering_app import OfferingApp

_PATIENCE_SECONDS = 2.0


class ActionsProvider(Provider):
    """Leads to an action's plan; nothing is run from the palette itself."""

    @property
    def _offering_app(self) -> OfferingApp:
        app: Any = self.app
        offering_app: OfferingApp = app
        return offering_app

    async def startup(self) -> None:
        """Asks for what is possible now."""
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._offering_app.renew_offers(), _PATIENCE_SECONDS)

    def _possible(self) -> list[tuple[str, str]]:
        offers = self._offering_app.actions_state.offers
        return [(offer.id, offer.title) for offer in offers if offer.plan is not None]

    async def discover(self) -> Hits:
        """All that are possible, before anything is typed."""
        for name, title in self._possible():
            yield DiscoveryHit(title, partial(self._offering_app.action_act, name), help=name)

    async def search(self, query: str) -> Hits:
        """Those whose title matches."""
        matcher = self.matcher(query)
        for name, title in self._possible():
            score = matcher.match(title)
            if score > 0:
                act = partial(self._offering_app.action_act, name)
                yield Hit(score, matcher.highlight(title), act, text=title, help=name)
