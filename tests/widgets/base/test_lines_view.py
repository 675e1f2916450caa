"""The pane of lines: what has changed is painted, whatever happened to the styles before."""

from types import SimpleNamespace

import pytest
from rich.style import Style
from textual.app import App, ComposeResult
from textual.geometry import Region
from textual.strip import Strip

from widgets.base.lines import Line, Run, Tone
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


@pytest.mark.parametrize("text", ["GPU0 ↑328 ▁█ │", "node 北 a", "e\u0301 ×≤", "", "…"])
async def test_the_cells_of_a_line_are_those_that_textual_cuts_out(text: str) -> None:
    app = OneView()
    async with app.run_test(size=(40, 10)) as pilot:
        view = app.query_one(LinesView)
        view.show([(Run("name "), Run(text, Tone.TITLE), Run(" end", Tone.DIM))])
        await pilot.pause()
        for row in (0, 1):  # the line, and the blank below it
            whole = view.render_line(row)
            for left in range(whole.cell_length):
                for right in range(left + 1, whole.cell_length + 1):
                    drawn = Strip(view.cells(row, left, right))
                    assert styled(drawn) == styled(whole.crop(left, right))


def styled(strip: Strip) -> list[tuple[str, Style | None]]:
    return [(character, style) for text, style, _ in strip for character in text]


async def test_no_cell_outside_of_the_pane_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    app, marked = OneView(), list[Region]()
    compositor = SimpleNamespace(mark=lambda _view, regions: marked.extend(regions))
    async with app.run_test(size=(40, 10)) as pilot:
        view = app.query_one(LinesView)
        view.show(lines(*["x" * 40] * 10))
        await pilot.pause()
        monkeypatch.setitem(vars(view), "_cell_compositor", compositor)
        view.refresh(Region(30, 9, 100, 1), Region(50, 0, 10, 1), Region(0, 9, 40, 5))
    assert marked == [Region(30, 9, 10, 1), Region(0, 9, 40, 1)]
