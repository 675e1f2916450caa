"""Lines that are made when they are asked for."""

import pytest

from widgets.base.lazy_lines import LazyLines
from widgets.base.lines import Line, Run


def numbered(count: int, made: list[int]) -> LazyLines:
    def make(row: int) -> Line:
        made.append(row)
        return (Run(f"line {row}"),)

    return LazyLines(count, make)


def text(lines: list[Line]) -> list[str]:
    return ["".join(run.text for run in of) for of in lines]


def test_only_the_lines_that_are_asked_for_are_made_and_each_once() -> None:
    made: list[int] = []
    lines = numbered(1_000_000, made)
    assert (len(lines), made) == (1_000_000, [])
    assert text([lines[7], lines[-1], lines[7]]) == ["line 7", "line 999999", "line 7"]
    assert text(lines[2:4]) == ["line 2", "line 3"]
    assert made == [7, 999_999, 2, 3]


def test_they_are_a_sequence_that_ends() -> None:
    lines = numbered(3, [])
    assert text(list(lines)) == ["line 0", "line 1", "line 2"]
    with pytest.raises(IndexError):
        lines[3]


def test_other_lines_follow_and_all_can_be_changed() -> None:
    made: list[int] = []
    lines = numbered(2, made).followed_by([(Run("legend"),)])
    cut = lines.mapped(lambda of: (of[0]._replace(text=of[0].text[:4]),))
    assert made == []
    assert text(list(cut)) == ["line", "line", "lege"]
