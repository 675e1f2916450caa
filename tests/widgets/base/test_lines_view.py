"""The pane of lines: what has changed is painted, whatever happened to the styles before."""

from types import SimpleNamespace

import pytest
from rich.style import Style
from textual.app import App, ComposeResult
from textual.geometry import Region
from textual.strip import Strip

from widgets.base.lines import LazyLines, Line, Run, Tone
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


async def test_the_head_of_a_table_stays_while_its_rows_scroll() -> None:
    app = OneView()
    texts = ["a", *[f"a{row}" for row in range(20)], "", "b", *[f"b{row}" for row in range(20)]]
    async with app.run_test(size=(40, 10)) as pilot:
        view = app.query_one(LinesView)

        def seen() -> list[str]:
            return [view.render_line(row).text.strip() for row in range(10)]

        view.show(LazyLines(len(texts), lambda row: (Run(texts[row], id=texts[row]),), range(0, 43, 22)))
        await pilot.pause()
        assert seen() == texts[:10]
        view.scroll_to_row(10)
        assert seen() == ["a", *texts[2:11]]
        assert view.id_at(0, 0) == "a"
        assert "".join(segment.text for segment in view.cells(1, 0, 3)).strip() == "a"
        view.scroll_to_row(22)
        view.scroll_to_row(30)
        assert seen()[0] == "a"
        view.scroll_to_row(40)
        assert seen()[0] == "b"
        view.scroll_to_row(25)
        assert "b2" in seen()[1:], "the head must not cover the row"
        texts[22] = "B"
        painted: list[Region] = []
        view.refresh = lambda *regions, **_: painted.extend(regions)  # type: ignore[method-assign,assignment]
        view.show(LazyLines(len(texts), lambda row: (Run(texts[row], id=texts[row]),), range(0, 43, 22)))
        assert [region.y for region in painted] == [0]
