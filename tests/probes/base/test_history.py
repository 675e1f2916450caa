import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.history import History
from probes.base.unknown import Reason, Unknown

ABSENT = Unknown(Reason.NOT_THERE)


def test_buckets_are_maxima_with_gaps() -> None:
    history = History()
    for at, value in ((0.0, 1.0), (1.0, 5.0), (25.0, 2.0)):
        history.add(at, value)
    assert history.buckets(3, 10.0) == [5.0, None, 2.0]


def test_an_empty_history_is_all_gaps() -> None:
    assert History().buckets(3, 10.0) == [None, None, None]


def test_old_samples_move_left_when_readings_stop() -> None:
    history = History()
    history.add(5.0, 1.0)
    history.add(15.0, ABSENT)
    history.add(25.0, ABSENT)
    assert history.buckets(3, 10.0) == [1.0, None, None]


def test_old_samples_are_dropped() -> None:
    history = History(seconds=10)
    for at in range(100):
        history.add(float(at), 1.0)
    assert history.samples() == tuple((float(at), 1.0) for at in range(89, 100))


def test_old_samples_are_dropped_after_unknown_readings() -> None:
    history = History(seconds=10)
    history.add(0.0, 1.0)
    history.add(60.0, ABSENT)
    assert history.samples() == ()


def test_the_number_of_samples_is_limited() -> None:
    history = History(seconds=1e9, max_samples=5)
    for at in range(100):
        history.add(float(at), 1.0)
    assert len(history.samples()) == 5


def test_a_column_is_stable_until_its_interval_ends() -> None:
    history = History()
    history.add(10.0, 4.0)
    before = history.buckets(4, 10.0)
    history.add(19.0, 1.0)
    assert history.buckets(4, 10.0) == before


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(0, 1e6) | st.just(ABSENT))),
    st.integers(0, 80),
    st.floats(0, 100),
)
def test_any_readings_in_any_order(
    readings: list[tuple[float, float | Unknown]], count: int, seconds: float
) -> None:
    history = History()
    for at, value in readings:
        history.add(at, value)
    assert len(history.buckets(count, seconds)) == count


def test_graphs_that_are_asked_for_each_second_are_those_of_all_samples() -> None:
    history = History()
    for second in range(400):
        history.add(second * 0.9, ABSENT if second % 7 == 3 else float(second * 37 % 101))
        if second % 60 > 40:  # not asked for a while, as while another screen is shown
            continue
        whole = History()
        for at, value in history.samples():
            whole.add(at, value)
        whole.add(second * 0.9, ABSENT)
        for shape in ((30, 4.0), (60, 2.0), (7, 1.0)):
            assert history.buckets(*shape) == whole.buckets(*shape)
