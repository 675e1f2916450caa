"""Lines that are too wide: folded or wrapped, with nothing lost."""

from hypothesis import given
from hypothesis import strategies as st

from widgets.base.boxes import frame
from widgets.base.lines import Line, Run, Tone, folded, line, plain, unwrapped, width_of, wrapped

RUNS = st.lists(
    st.builds(
        Run, st.text(alphabet=st.characters(codec="utf-8", categories=["L", "N", "P"])), st.sampled_from(Tone)
    ),
    max_size=5,
)


@given(RUNS, st.integers(2, 40))
def test_a_folded_line_fits_and_is_whole(runs: list[Run], width: int) -> None:
    line: Line = tuple(runs)
    pieces = folded(line, width)
    assert all(width_of(piece) <= width for piece in pieces)
    assert "".join(run.text for piece in pieces for run in piece) == "".join(run.text for run in line)


def test_a_wide_character_in_one_column_ends_all_the_same() -> None:
    assert "".join(plain(piece) for piece in folded((Run("日本x"),), 1)) == "日本x"


WORDS = st.text(alphabet="ab-;:│日", min_size=1, max_size=60)


@given(st.lists(WORDS, max_size=12), st.integers(8, 50), st.sampled_from(["", "  ", "  │ "]))
def test_a_sentence_is_whole_again_in_a_pipe(words: list[str], width: int, indent: str) -> None:
    text = " ".join(words)
    (whole,) = unwrapped(wrapped(text, width, indent=indent, hanging="  "))
    assert plain(whole) == f"{indent}{text}".rstrip()


@given(st.lists(WORDS, max_size=12), st.integers(8, 50))
def test_no_word_is_broken_on_a_terminal(words: list[str], width: int) -> None:
    lines = unwrapped(wrapped(" ".join(words), width), only_words=True)
    assert " ".join(plain(part) for part in lines).split(" ") == (words or [""])


def test_texts_below_each_other_and_boxes_stay_as_they_are_drawn() -> None:
    texts = [*wrapped("a first sentence", 8), *wrapped("the second", 8)]
    box = frame(line("title"), wrapped("a sentence in a box", 8), 12)
    assert [plain(part) for part in unwrapped(texts)] == ["a first sentence", "the second"]
    assert unwrapped(box) == box
