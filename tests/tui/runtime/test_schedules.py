"""The doctor looks again by itself soon after a change, and costs little while changes go on."""

import itertools

from tui.runtime.schedules import EVERY_SECONDS, LONGEST_SECONDS, CheckSchedule, ReadingSchedule


def examinations(changes: set[int], seconds: int) -> list[int]:
    """The seconds at which the node is examined, asked once a second."""
    schedule = CheckSchedule()
    found = []
    for now in range(seconds):
        if now in changes:
            schedule.note_change("port")
        if schedule.is_due(float(now)):
            schedule.note_check(float(now))
            found.append(now)
    return found


def test_an_unchanged_node_is_not_examined_again() -> None:
    assert examinations({0}, 300) == [0]


def test_a_change_after_a_quiet_time_is_examined_at_once() -> None:
    assert examinations({0, 100}, 300) == [0, 100]


def test_the_last_of_a_few_changes_is_examined_within_seconds() -> None:
    found = examinations({0, 100, 101, 103}, 300)
    assert found[0] == 0
    assert 103 <= found[-1] <= 108


def test_a_constantly_changing_node_is_examined_every_half_minute() -> None:
    found = examinations(set(range(600)), 600)
    assert len(found) < 600 / LONGEST_SECONDS + 6
    assert max(later - earlier for earlier, later in itertools.pairwise(found)) == LONGEST_SECONDS


def test_a_change_of_another_kind_does_not_wait_for_those_before() -> None:
    schedule = CheckSchedule()
    for now in (0.0, 2.0, 6.0):
        schedule.note_change("port")
        schedule.note_check(now)
    schedule.note_change("port")
    assert not schedule.is_due(7.0)
    schedule.note_change("xid")
    assert schedule.is_due(7.0)


def test_what_no_event_shows_is_seen_after_some_minutes() -> None:
    assert examinations({0}, 1300) == [0, int(EVERY_SECONDS), int(2 * EVERY_SECONDS)]


def test_fast_readings_keep_their_interval() -> None:
    pace = ReadingSchedule()
    for _ in range(10):
        pace.note_reading(0.02)
    assert pace.interval(0.1) == 0.1
    assert pace.word(1.0) == "every 1 s"


def test_a_slow_node_is_read_less_often_and_labelled_so() -> None:
    pace = ReadingSchedule()
    for _ in range(30):
        pace.note_reading(0.5)
    assert 0.9 < pace.interval(0.1) <= 1.0
    assert pace.word(0.1) == "every 1 s (slow node)"


def test_one_slow_reading_changes_little() -> None:
    pace = ReadingSchedule()
    pace.note_reading(0.5)
    assert pace.word(1.0) == "every 1 s"
