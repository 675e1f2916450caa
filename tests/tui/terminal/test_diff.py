"""Any frames, written as few bytes: the terminal shows what was drawn."""

from __future__ import annotations

import unicodedata
from importlib import metadata

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len, split_graphemes
from rich.color import ColorSystem
from rich.segment import Segment
from rich.style import Style
from textual._compositor import CompositorUpdate, LayoutUpdate
from textual.app import App, ComposeResult
from textual.geometry import Region
from textual.screen import Screen
from textual.strip import Strip
from textual.widgets import Static

from tests.support.emulator import Emulator
from tui.terminal.diff import (
    PLAIN,
    MinimalOutput,
    Pen,
    TerminalContent,
    agreed_width,
    cells_of,
    change_pen,
    parse_pen,
)

COLUMNS, ROWS = 24, 4
CUTS = (0, 7, 8, 20, COLUMNS)

BIDIRECTIONAL = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"

TEXTS = st.one_of(
    st.text(alphabet="abc 19│─█é…▇漢字", max_size=12),
    # A combining accent, an emoji, a family, a flag, a heart in color, Devanagari, Arabic, joiners alone.
    st.sampled_from(["e\u0301", "🔎", "👨\u200d👩\u200d👧", "🇩🇪", "❤\ufe0f", "\u0915\u094d\u0937", "ابج"]),
    st.sampled_from(["\ufe0f", "\u200d"]),
    st.text(st.characters(exclude_categories=("C", "Z"), include_characters=" "), max_size=6),
)
ATTRIBUTES = ["bold", "dim", "italic", "underline", "reverse", "strike"]
COLORS = [None, "default", "red", "bright_black", "color(123)", "#102030"]
STYLES = st.one_of(
    st.none(),
    st.builds(
        lambda on, color, background, link: Style(
            color=color,
            bgcolor=background,
            link=link,
            **dict.fromkeys(on, True),  # type: ignore[arg-type]
        ),
        st.sets(st.sampled_from(ATTRIBUTES), max_size=3),
        st.sampled_from(COLORS),
        st.sampled_from(COLORS),
        st.sampled_from([None, None, "https://example.org/a", "https://example.org/b"]),
    ),
)
SEGMENTS = st.lists(st.builds(lambda text, style: Segment(text, style), TEXTS, STYLES), max_size=4)
# Changed parts of the screen: which row, which cut, what is there now.
FRAMES = st.lists(
    st.dictionaries(st.tuples(st.integers(0, ROWS - 1), st.integers(0, len(CUTS) - 2)), SEGMENTS, min_size=1),
    min_size=1,
    max_size=6,
)


def graphemes(strip: Strip) -> list[tuple[str, Style | None]]:
    """Return what each cell shows; cells behind a wide one are empty."""
    cells: list[tuple[str, Style | None]] = []
    for text, style, _ in strip:
        for start, end, width in split_graphemes(text)[0]:
            cells += [(text[start:end], style), *[("", style)] * (width - 1)][:width]
    return cells


def styled(text: str, style: Style | None) -> str:
    """Return a text as Textual would write it."""
    return text if style is None else Strip.render_style(style, text, ColorSystem.TRUECOLOR)


@pytest.mark.slow
@settings(max_examples=20)
@given(frames=FRAMES)
def test_the_terminal_shows_what_was_drawn(frames: list[dict[tuple[int, int], list[Segment]]]) -> None:
    content, terminal = TerminalContent(), Emulator(COLUMNS, ROWS)
    drawn: list[list[tuple[str, Style | None]]] = [[(" ", None)] * COLUMNS for _ in range(ROWS)]
    everything: dict[tuple[int, int], list[Segment]] = {
        (row, cut): [] for row in range(ROWS) for cut in range(len(CUTS) - 1)
    }
    for frame in [everything, *frames]:
        parts = []
        for row, cut in sorted(frame):
            start, end = CUTS[cut : cut + 2]
            strip = Strip(frame[row, cut]).adjust_cell_length(end - start)
            parts.append((row, start, [strip]))
            drawn[row][start:end] = graphemes(strip)
        terminal.feed(content.draw((COLUMNS, ROWS), parts, ColorSystem.TRUECOLOR))
        expected = Emulator(COLUMNS, ROWS)
        agreed = []
        for row in range(ROWS):
            assert len(drawn[row]) == COLUMNS
            for column, (text, style) in enumerate(drawn[row]):
                # What a cell of disputed width shows is the terminal's affair, but not what stands around it.
                if len(text) == 1 and agreed_width(text):
                    expected.feed(f"\x1b[{row + 1};{column + 1}H{styled(text, style)}")
                    agreed.append((row, column))
        for row, column in agreed:
            assert terminal.cell(row, column) == expected.cell(row, column)


@pytest.mark.slow
@given(old=STYLES, new=STYLES)
def test_a_change_of_pen_equals_a_reset_and_all_codes(old: Style | None, new: Style | None) -> None:
    def pen(style: Style | None) -> Pen:
        if style is None:
            return PLAIN
        return parse_pen(Strip.render_ansi(style, ColorSystem.TRUECOLOR), style.link or "")

    terminal, expected = Emulator(1, 1), Emulator(1, 1)
    terminal.feed(change_pen(PLAIN, pen(old)) + change_pen(pen(old), pen(new)) + "x")
    expected.feed(styled("x", new))
    assert terminal.cells(0) == expected.cells(0)


@given(text=st.text())
def test_any_text_is_split_into_as_many_cells_as_textual_counts(text: str) -> None:
    cells, _ = cells_of(text)
    assert len(cells) == cell_len(text)


@example(text="😀\x1b\x9b31m é\x0e\u202e")
@given(text=st.text(st.one_of(st.characters(), st.sampled_from("\x1b\x9b\x0e\x05\u202e\u200d😀é])"))))
def test_no_text_acts_on_the_terminal(text: str) -> None:
    written = "".join(cells_of(text)[0])
    assert not [
        character
        for character in written
        if unicodedata.category(character) == "Cc" or character in BIDIRECTIONAL
    ]


def test_only_changed_cells_are_written() -> None:
    content = TerminalContent()
    for line in ("GPU0  39 %  371 Gb/s", "GPU0  41 %  375 Gb/s"):
        written = content.draw((20, 1), [(0, 0, [Strip([Segment(line)])])], ColorSystem.STANDARD)
    assert written == "\x1b[1;7H41\x1b[6C5"


def test_what_is_forgotten_is_written_again() -> None:
    content = TerminalContent()
    parts = [(0, 0, [Strip([Segment("GPU0")])])]
    first = content.draw((4, 1), parts, ColorSystem.STANDARD)
    assert content.draw((4, 1), parts, ColorSystem.STANDARD) == ""
    content.forget()
    assert content.draw((4, 1), parts, ColorSystem.STANDARD) == first
    assert content.draw((5, 1), parts, ColorSystem.STANDARD) != ""


class OneLine(App[None]):
    """Shows a line, like GdrtopApp by MinimalOutput."""

    def __init__(self) -> None:
        super().__init__()
        self.output = MinimalOutput(self)

    def compose(self) -> ComposeResult:
        yield Static("one")


async def written_by(app: OneLine) -> tuple[str, str]:
    """Return what the app's output writes for its screen, and what Textual would write."""
    async with app.run_test(size=(20, 3)) as pilot:
        await pilot.pause()
        update = app.screen._compositor.render_full_update()
        ours = app.output.minimized(app.screen, update)
        assert isinstance(ours, CompositorUpdate)
        return ours.render_segments(app.console), update.render_segments(app.console)


async def test_an_untested_version_of_textual_writes_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tui.terminal.textual_version.TESTED_VERSIONS", (metadata.version("textual"),))
    ours, textual = await written_by(OneLine())
    assert ours != textual
    monkeypatch.setattr("tui.terminal.textual_version.TESTED_VERSIONS", ("7.0.0",))
    ours, textual = await written_by(OneLine())
    assert ours == textual


async def test_after_an_error_textual_writes_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    app = OneLine()
    with monkeypatch.context() as patch:
        patch.setattr(TerminalContent, "draw", lambda *_: 1 / 0)
        ours, textual = await written_by(app)
    assert ours == textual
    update = LayoutUpdate([], Region(0, 0, 20, 3))
    assert app.output.minimized(Screen(), update) is update
