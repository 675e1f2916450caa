"""The pane of lines: what has changed is painted, whatever happened to the styles before."""

import pytest
from textual.app import App, ComposeResult
from textual.geometry import Region

from widgets.base.lines import Line, Run
from widgets.base.lines_view import LinesView


class OneView(App[None]):
    def compose(self) -> ComposeResult:
        yield LinesView(id="view")


def lines(*texts: str) -> list[Line]:
    return [(Run(text),) for text in texts]


@pytest.mark.parametrize("is_restyled", [False, True])
async def test_a_changed_line_is_painted_also_after_another_style(
    is_restyled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = OneView()
    async with app.run_test(size=(40, 10)) as pilot:
        view = app.query_one(LinesView)
        view.show(lines("one", "two", "three"))
        await pilot.pause()
        if is_restyled:
            app.screen.add_class("solo")  # as a panel that is shown alone does
            await pilot.pause()
        painted: list[Region] = []
        monkeypatch.setattr(view, "refresh", lambda *regions, **_: painted.extend(regions))
        view.show(lines("one", "TWO", "three"))
        assert painted
        assert all(region.y == 1 for region in painted)
        before = len(painted)
        view.show(lines("one", "TWO!", "three"))
        assert len(painted) > before
