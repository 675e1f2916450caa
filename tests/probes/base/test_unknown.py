"""What was not read is not absent."""

from probes.base.unknown import Reason, Unknown, first_unread, is_there, not_found

ABSENT = Unknown(Reason.NOT_THERE, "/a")
REFUSED = Unknown(Reason.NEEDS_ROOT, "/b")
LATE = Unknown(Reason.TIMED_OUT, "/c")


def test_something_is_absent_only_if_every_place_was_read() -> None:
    absent = Unknown(Reason.NOT_THERE, "/x", "not installed")
    assert not_found([ABSENT, ABSENT], "/x", "not installed") == absent
    assert not_found([ABSENT, REFUSED, LATE], "/x", "not installed") == REFUSED
    assert first_unread([ABSENT, 1, LATE]) == LATE
    assert first_unread([ABSENT, "text", None]) is None


def test_only_one_reason_says_that_something_is_not_there() -> None:
    assert is_there(0) is True
    assert is_there(ABSENT) is False
    assert is_there(REFUSED) == REFUSED
