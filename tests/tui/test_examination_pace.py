"""The doctor looks again by itself soon after a change, and costs little while changes go on."""

import itertools

from tui.examination_pace import LONGEST_SECONDS, ExaminationPace


def examinations(changes: set[int], seconds: int) -> list[int]:
    """The seconds at which the node is examined, asked once a second."""
    pace = ExaminationPace()
    found = []
    for now in range(seconds):
        if now in changes:
            pace.note_change()
        if pace.is_due(float(now)):
            found.append(now)
    return found


def test_a_node_that_does_not_change_is_not_examined_again() -> None:
    assert examinations({0}, 300) == [0]


def test_a_change_after_a_quiet_time_is_looked_at_at_once() -> None:
    assert examinations({0, 100}, 300) == [0, 100]


def test_the_last_of_a_few_changes_is_looked_at_within_seconds() -> None:
    found = examinations({0, 100, 101, 103}, 300)
    assert found[0] == 0
    assert 103 <= found[-1] <= 108


def test_a_node_that_changes_all_the_time_is_examined_every_half_minute() -> None:
    found = examinations(set(range(600)), 600)
    assert len(found) < 600 / LONGEST_SECONDS + 6
    assert max(later - earlier for earlier, later in itertools.pairwise(found)) == LONGEST_SECONDS
