"""Graphs: the load colors say the same as the height of the blocks."""

from widgets.base.figures import graph, tall_graph
from widgets.base.lines import Run, Tone


def test_the_color_follows_the_height() -> None:
    values = [None, 0.0, 100.0, 200.0, 390.0, 400.0, 500.0]
    runs = graph(values, 400.0)
    assert runs == (
        Run("·", Tone.DIM),
        Run("▁▂", Tone.LOW_LOAD),
        Run("▄", Tone.LOAD),
        Run("███", Tone.HIGH_LOAD),
    )


def test_without_a_limit_the_largest_value_is_the_top() -> None:
    assert [run.tone for run in graph([1.0, 3.0])] == [Tone.LOAD, Tone.HIGH_LOAD]
    assert graph([0.0, 0.0]) == (Run("▁▁", Tone.DIM),)
    assert graph([]) == ()


def test_a_tall_graph_is_read_from_below() -> None:
    drawn = tall_graph([None, 0.0, 100.0, 200.0, 400.0, 500.0], 2, 400.0)
    assert ["".join(run.text for run in line) for line in drawn] == ["    ██", "·▁▄███"]
    assert drawn[0][0].tone is Tone.LOAD
    assert drawn[1] == (Run("·", Tone.DIM), Run("▁▄███", Tone.LOW_LOAD))


def test_a_tall_graph_of_nothing_is_no_error() -> None:
    assert tall_graph([None, None], 3) == [
        (Run("  ", Tone.HIGH_LOAD),),
        (Run("  ", Tone.LOAD),),
        (Run("··", Tone.DIM),),
    ]
    assert tall_graph([0.0], 1) == [(Run("▁", Tone.LOW_LOAD),)]
