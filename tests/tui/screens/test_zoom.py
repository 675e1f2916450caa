"""z shows the focused pane alone on every screen with several panes; z or Esc shows all of them again."""

import pytest
from textual.pilot import Pilot

from tests.support.action_screens import QuickHost
from tests.support.pilot import SteppedClock, examined, settled, stepped_app, until
from tests.support.tiers import usual
from widgets.base.lines_view import LinesView


def panes(pilot: Pilot[None]) -> list[str]:
    """The panes that are seen and can have the focus."""
    views = pilot.app.screen.query(LinesView)
    return [view.id or "" for view in views if view.can_focus and view.size.height and view.display]


@pytest.mark.parametrize("back", ["z", "escape"])
@pytest.mark.parametrize("key", usual(["d", "t", "s", "x", "b", "n"], ["d", "t"]))
async def test_a_pane_is_shown_alone_and_then_all_again(key: str, back: str) -> None:
    clock = SteppedClock()
    async with stepped_app(QuickHost("hgx-h100+acs-on", clock=clock)).run_test(size=(120, 40)) as pilot:
        await examined(pilot, clock)
        await pilot.press(key)
        await until(pilot, lambda: len(panes(pilot)) > 1)
        await settled(pilot)
        screen, before = pilot.app.screen, panes(pilot)
        await pilot.press("z")
        await until(pilot, lambda: len(panes(pilot)) == 1)
        (alone,) = panes(pilot)
        assert screen.query_one(f"#{alone}").has_focus
        assert screen.query_one(f"#{alone}").region.height >= 30
        await pilot.press(back)
        await until(pilot, lambda: panes(pilot) == before)
        assert pilot.app.screen is screen


@pytest.mark.parametrize("panel", ["findings", "topology"])
async def test_a_panel_of_the_overview_alone_fits_the_screen(panel: str) -> None:
    clock = SteppedClock()
    async with stepped_app(QuickHost("hgx-h100+acs-on", clock=clock)).run_test(size=(100, 30)) as pilot:
        await examined(pilot, clock)
        pilot.app.screen.query_one(f"#{panel}").focus()
        await pilot.press("z")
        await until(pilot, lambda: panes(pilot) == [panel])
        await settled(pilot)
        assert pilot.app.screen.query_one(f"#{panel}").region.width == 100
        assert pilot.app.screen.max_scroll_y == 0
