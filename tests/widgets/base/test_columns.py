"""Tables that leave out columns: which ones, and that no row is wider than its pane."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from widgets.base.columns import Column, ColumnWidths, draw_columns
from widgets.base.lines import LazyLines, Line, Run, Tone, line, plain, width_of

_TEXT = st.text("ab├漢 ", max_size=30)


def column(title: str, texts: list[str], importance: int, **options: bool | int) -> Column:
    cells: list[Line] = [line(text) for text in texts]
    return Column(title, cells, importance, **options)  # type: ignore[arg-type]


TABLE = [
    column("name", ["mlx5_0", "mlx5_1"], 1),
    column("note", ["a long note", "short"], 3, grows=True, least=5),
    column("Gb/s", ["371", "9"], 2, to_right=True),
]


def test_all_columns_are_shown_where_there_is_room() -> None:
    assert [plain(row) for row in draw_columns(TABLE, ["a", "b"], 40)] == [
        "name    note         Gb/s",
        "mlx5_0  a long note   371",
        "mlx5_1  short           9",
    ]


def test_a_column_that_grows_is_cut_before_another_is_left_out() -> None:
    assert [plain(row) for row in draw_columns(TABLE, ["a", "b"], 21)] == [
        "name    note     Gb/s",
        "mlx5_0  a long…   371",
        "mlx5_1  short       9",
    ]


def test_the_least_important_column_is_left_out_first() -> None:
    assert [plain(row) for row in draw_columns(TABLE, ["a", "b"], 16)][1:] == ["mlx5_0   371", "mlx5_1     9"]


def test_the_selected_row_is_marked_and_every_row_has_its_id() -> None:
    rows = draw_columns(TABLE, ["a", "b"], 40, selected="b")
    assert [row[0].id for row in rows] == ["", "a", "b"]
    assert rows[2][0] == Run("mlx5_1", Tone.CURSOR, "b")


def test_a_table_that_is_drawn_again_makes_only_the_cells_of_the_rows_asked_for() -> None:
    made: list[int] = []
    widths = ColumnWidths()

    def table() -> list[Column]:
        return [Column("Gb/s", LazyLines(100, lambda row: made.append(row) or (Run(str(row)),)), 1)]

    assert len(draw_columns(table(), list("a" * 100), 40, widths=widths)) == 101
    assert made == list(range(100))  # the widths are measured
    made.clear()
    lines = draw_columns(table(), list("a" * 100), 40, widths=widths)
    assert [plain(row) for row in lines[:3]] == ["Gb/s", "0", "1"]
    assert made == [0, 1]


def test_a_column_gets_more_room_once_a_cell_that_was_drawn_needed_it() -> None:
    widths = ColumnWidths()

    def drawn(*figures: str) -> list[str]:
        table = [column("Gb/s", list(figures), 1, to_right=True), column("note", ["a", "b"], 2)]
        return [plain(row) for row in draw_columns(table, ["a", "b"], 40, widths=widths)]

    assert drawn("9", "10")[1:] == ["   9  a", "  10  b"]
    assert drawn("123456", "10")[1:] == ["123456  a", "  10  b"]  # not cut
    assert drawn("123456", "10")[1:] == ["123456  a", "    10  b"]


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(_TEXT, _TEXT, st.integers(1, 9), st.booleans(), st.booleans()), min_size=1, max_size=8
    ),
    st.integers(1, 120),
)
def test_no_row_is_wider_than_its_pane(columns: list[tuple[str, str, int, bool, bool]], width: int) -> None:
    table = [
        column(title, [text], importance, to_right=to_right, grows=grows)
        for title, text, importance, to_right, grows in columns
    ]
    for row in draw_columns(table, ["a"], width):
        assert width_of(row) <= width
