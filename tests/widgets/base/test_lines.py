"""Lines that are too wide: folded, with nothing lost."""

from hypothesis import given
from hypothesis import strategies as st

from widgets.base.lines import Line, Run, Tone, folded, plain, width_of

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
