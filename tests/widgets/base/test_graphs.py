"""Graphs of one row: the load colors say the same as the height of the blocks."""

from widgets.base.graphs import graph
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
