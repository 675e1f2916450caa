"""Lines that are too wide: folded or wrapped, with nothing lost. Lines that are made when asked for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from widgets.base.lines import (
    LazyLines,
    Line,
    Run,
    Tone,
    folded,
    has_plain_width,
    line,
    plain,
    unwrapped,
    width_of,
    wrapped,
)
from widgets.node.boxes import frame

RUNS = st.lists(
    st.builds(
        Run, st.text(alphabet=st.characters(codec="utf-8", categories=["L", "N", "P"])), st.sampled_from(Tone)
    ),
    max_size=5,
)


@pytest.mark.slow
@given(RUNS, st.integers(2, 40))
def test_a_folded_line_fits_and_is_whole(runs: list[Run], width: int) -> None:
    line: Line = tuple(runs)
    pieces = folded(line, width)
    assert all(width_of(piece) <= width for piece in pieces)
    assert "".join(run.text for piece in pieces for run in piece) == "".join(run.text for run in line)


def test_a_wide_character_in_one_column_ends_all_the_same() -> None:
    assert "".join(plain(piece) for piece in folded((Run("日本x"),), 1)) == "日本x"


WORDS = st.text(alphabet="ab-;:│日", min_size=1, max_size=60)


@pytest.mark.slow
@given(st.lists(WORDS, max_size=12), st.integers(8, 50), st.sampled_from(["", "  ", "  │ "]))
def test_a_sentence_is_whole_again_in_a_pipe(words: list[str], width: int, indent: str) -> None:
    text = " ".join(words)
    (whole,) = unwrapped(wrapped(text, width, indent=indent, hanging="  "))
    assert plain(whole) == f"{indent}{text}".rstrip()


@pytest.mark.slow
@given(st.lists(WORDS, max_size=12), st.integers(8, 50))
def test_no_word_is_broken_on_a_terminal(words: list[str], width: int) -> None:
    lines = unwrapped(wrapped(" ".join(words), width), only_words=True)
    assert " ".join(plain(part) for part in lines).split(" ") == (words or [""])


def test_texts_below_each_other_and_boxes_stay_as_they_are_drawn() -> None:
    texts = [*wrapped("a first sentence", 8), *wrapped("the second", 8)]
    box = frame(line("title"), wrapped("a sentence in a box", 8), 12)
    assert [plain(part) for part in unwrapped(texts)] == ["a first sentence", "the second"]
    assert unwrapped(box) == box


def numbered(count: int, made: list[int]) -> LazyLines:
    def make(row: int) -> Line:
        made.append(row)
        return (Run(f"line {row}"),)

    return LazyLines(count, make)


def texts(lines: list[Line]) -> list[str]:
    return ["".join(run.text for run in line) for line in lines]


def test_only_the_lines_that_are_asked_for_are_made_and_each_once() -> None:
    made: list[int] = []
    lines = numbered(1_000_000, made)
    assert (len(lines), made) == (1_000_000, [])
    assert texts([lines[7], lines[-1], lines[7]]) == ["line 7", "line 999999", "line 7"]
    assert texts(lines[2:4]) == ["line 2", "line 3"]
    assert made == [7, 999_999, 2, 3]


def test_they_are_a_sequence_that_ends() -> None:
    lines = numbered(3, [])
    assert texts(list(lines)) == ["line 0", "line 1", "line 2"]
    with pytest.raises(IndexError):
        lines[3]


def test_other_lines_follow_and_all_can_be_changed() -> None:
    made: list[int] = []
    lines = numbered(2, made).followed_by([(Run("legend"),)])
    cut = lines.mapped(lambda line: (line[0]._replace(text=line[0].text[:4]),))
    assert made == []
    assert texts(list(cut)) == ["line", "line", "lege"]


def test_texts_without_a_search_in_tables_have_a_cell_for_each_character() -> None:
    plain_widths = [chr(code) for code in range(0x3000) if has_plain_width(chr(code))]
    assert {"a", "↑", "█", "│", "…"} <= set(plain_widths)
    assert {cell_len(character) for character in plain_widths} == {1}
