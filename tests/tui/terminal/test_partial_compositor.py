"""Leaving out what cannot be seen changes no cell."""

from collections import Counter

import pytest
from rich.console import RenderableType
from textual._compositor import CompositorUpdate
from textual.geometry import Region
from textual.screen import Screen
from textual.widget import Widget

from probes.simulation.host import SimulatedHost
from tests.support.emulator import Emulator, differences
from tests.support.pilot import SteppedClock, examined, readings, stepped_app
from tui.app import GdrtopApp
from tui.terminal.partial_compositor import PartialCompositor, seen_in


def test_what_contains_a_region_hides_what_is_behind_it() -> None:
    screen, left, right, bar = (Widget() for _ in range(4))
    whole = Region(0, 0, 80, 24)
    visible = {
        bar: (Region(39, 0, 2, 24), whole),  # in front of the border of the two panes
        left: (Region(0, 0, 40, 30), Region(0, 0, 40, 20)),  # scrolled: its last rows are clipped
        right: (Region(40, 0, 40, 24), whole),
        screen: (whole, whole),
    }
    assert list(seen_in([Region(3, 2, 5, 1)], visible)) == [left]
    assert list(seen_in([Region(3, 2, 5, 1), Region(60, 20, 1, 1)], visible)) == [left, right]
    assert list(seen_in([Region(30, 2, 20, 1)], visible)) == list(visible)
    assert list(seen_in([Region(3, 22, 5, 1)], visible)) == [screen]
    assert seen_in([], visible) == {}


class Frames:
    """The frames of an app as a terminal shows them, each beside a full repaint.

    If a pane changes while another one waits to be drawn, the next frame completes it: only that is compared.
    """

    def __init__(self, app: GdrtopApp, monkeypatch: pytest.MonkeyPatch) -> None:
        self.app, self.wrong = app, list[str]()
        self.compared = Counter[str]()  # by the kind of update
        self._size = app.size
        self._terminal = Emulator(*app.size)
        display = app._display

        def note(screen: Screen[object], update: RenderableType | None) -> None:
            if isinstance(update, CompositorUpdate) and screen is app.screen:
                self._note(screen, update)
            display(screen, update)

        monkeypatch.setattr(app, "_display", note)

    def _note(self, screen: Screen[object], update: CompositorUpdate) -> None:
        compositor = screen._compositor
        if self._size != compositor.size:
            self._size, self._terminal = compositor.size, Emulator(*compositor.size)
        self._terminal.feed(update.render_segments(self.app.console))
        if not is_settled(screen):
            return
        self.compared[type(update).__name__] += 1
        self.compare()

    def compare(self) -> None:
        """Compare what the terminal shows now."""
        compositor = self.app.screen._compositor
        whole = Emulator(*compositor.size)
        whole.feed(compositor.render_full_update().render_segments(self.app.console))
        self.wrong += differences(self._terminal, whole)


def is_settled(screen: Screen[object]) -> bool:
    """Return whether no other widget waits to be drawn."""
    compositor = screen._compositor
    waiting = isinstance(compositor, PartialCompositor) and compositor._marked
    waiting = waiting or any(
        widget._repaint_required or widget._layout_required for widget in screen.query(Widget)
    )
    return not waiting and not screen._layout_required and screen._message_queue.empty()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "screens"), [((120, 24), ("down tab", "z", "d", "q", "t", "q")), ((200, 60), ("2", "3", "1"))]
)
async def test_every_partial_frame_is_a_full_repaint(
    size: tuple[int, int], screens: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SteppedClock()
    app = stepped_app(SimulatedHost("hgx-h100", clock=clock))
    frames = Frames(app, monkeypatch)
    async with app.run_test(size=size) as pilot:
        await examined(pilot, clock)
        await readings(pilot, clock, 2)
        for keys in screens:
            await pilot.press(*keys.split())
            await readings(pilot, clock, 1)
            await pilot.pause()
            frames.compare()
        for _ in range(30):  # on a busy machine, few frames are complete
            if frames.compared["PartsUpdate"] <= 3:
                await readings(pilot, clock, 3)
    assert frames.wrong == []
    assert frames.compared["PartsUpdate"] > 3
