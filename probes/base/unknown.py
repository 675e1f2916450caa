"""Unknown as a value: a fact that could not be read has a reason, and is neither 0 nor "ok"."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import NoReturn, TypeVar, Union

from probes.base.frozen import frozen
from probes.base.text import printable

T = TypeVar("T")
U = TypeVar("U")


class Reason(Enum):
    """Why a fact is unknown; the value is shown on screen."""

    NOT_THERE = "not there"
    NEEDS_ROOT = "needs root"
    NEEDS_PERMISSION = "needs permission"  # of another service: root on the node is not enough
    MALFORMED = "malformed"
    TIMED_OUT = "timed out"
    IO_ERROR = "I/O error"
    DRIVER_ERROR = "driver error"
    NOT_RECORDED = "not recorded"
    FILE_MISSING = "file missing"  # the file that lists the fact; NOT_THERE would mean that it lists none
    OTHER_OWNER = "not the job's"  # evidence that another user can have forged
    NOT_YET = "not known yet"  # only a later moment shows it: after a boot, when a module is loaded


ABSENT = (Reason.NOT_THERE, Reason.NOT_RECORDED)
"""Also what a recording leaves out because it concerns no path."""
UNREAD = (Reason.NEEDS_ROOT, Reason.TIMED_OUT, Reason.NOT_RECORDED)
"""It may be there, and was not read."""


@frozen
class Unknown:
    """A fact that could not be read.

    `source` is the path or command that was read, `detail` a sentence for the admin if the reason alone is
    not enough.
    """

    reason: Reason
    source: str = ""
    detail: str = ""

    def __bool__(self) -> NoReturn:
        # `if port.is_up:` with an unknown value would be wrong either way.
        raise TypeError("an unknown fact has no truth value: test it with isinstance(…, Unknown)")

    def __str__(self) -> str:
        return f"{self.reason.value}: {self.detail}" if self.detail else self.reason.value


Maybe = Union[T, Unknown]  # noqa: UP007 - evaluated at run time, also on Python 3.10
"""A fact, or the reason why it is unknown."""


def known(fact: Maybe[T], otherwise: T) -> T:
    """Return the fact, or `otherwise` if it is unknown. Only for drawing and sorting."""
    return otherwise if isinstance(fact, Unknown) else fact


def any_of(answers: Iterable[Maybe[bool]]) -> Maybe[bool]:
    """Return True if one answer is true, else the first unknown answer, else False."""
    return _decided(answers, True)


def all_of(answers: Iterable[Maybe[bool]]) -> Maybe[bool]:
    """Return False if one answer is false, else the first unknown answer, else True."""
    return _decided(answers, False)


def _decided(answers: Iterable[Maybe[bool]], by: bool) -> Maybe[bool]:
    unknown: Unknown | None = None
    for answer in answers:
        if isinstance(answer, Unknown):
            unknown = answer if unknown is None else unknown
        elif bool(answer) is by:
            return by
    return not by if unknown is None else unknown


def is_there(fact: Maybe[object]) -> Maybe[bool]:
    """Return whether something is there: only the reason NOT_THERE says that it is not."""
    if isinstance(fact, Unknown):
        return False if fact.reason is Reason.NOT_THERE else fact
    return True


def false_if_absent(switch: Maybe[bool]) -> Maybe[bool]:
    """Return a switch that is false where it is not there."""
    return False if isinstance(switch, Unknown) and switch.reason is Reason.NOT_THERE else switch


def because(fact: Maybe[T], detail: str) -> Maybe[T]:
    """Return the fact, with this reason in words if it is not there."""
    is_absent = isinstance(fact, Unknown) and fact.reason is Reason.NOT_THERE
    return Unknown(Reason.NOT_THERE, fact.source, detail) if isinstance(fact, Unknown) and is_absent else fact


def first_known(answers: Iterable[Maybe[T]], source: str) -> Maybe[T]:
    """Return the first known answer; if none is, the last reason other than NOT_THERE, else NOT_THERE."""
    unread = Unknown(Reason.NOT_THERE, source)
    for answer in answers:
        if not isinstance(answer, Unknown):
            return answer
        unread = unread if answer.reason is Reason.NOT_THERE else answer
    return unread


def first_unread(answers: Iterable[object]) -> Unknown | None:
    """Return the first unknown answer for another reason than NOT_THERE; None: each place was read."""
    unknown = (answer for answer in answers if isinstance(answer, Unknown))
    return next((answer for answer in unknown if answer.reason is not Reason.NOT_THERE), None)


def not_found(answers: Iterable[object], source: str, detail: str = "") -> Unknown:
    """Return NOT_THERE if every place where it could be was read, else the first other reason."""
    unread = first_unread(answers)
    return Unknown(Reason.NOT_THERE, source, detail) if unread is None else unread


def map_known(fact: Maybe[T], read: Callable[[T], Maybe[U]]) -> Maybe[U]:
    """Return what `read` makes of a known fact; an unknown fact stays as it is."""
    return fact if isinstance(fact, Unknown) else read(fact)


def parse_known(
    text: Maybe[str],
    parse: Callable[[str], T | None],
    source: str,
    reason: Reason = Reason.MALFORMED,
    detail: str = "",
) -> Maybe[T]:
    """Return what `parse` makes of a known text; if that is None, the reason, by default with the text."""
    if isinstance(text, Unknown):
        return text
    value = parse(text)
    return Unknown(reason, source, detail or printable(text, 40)) if value is None else value
