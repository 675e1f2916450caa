"""Join the ring's segments into the moments around an event."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from probes.base.unknown import Maybe
from probes.recording.archive import Recording
from probes.recording.format import Question
from probes.recording.recording_host import Moment


def moments_between(recordings: Iterable[Recording], begin: float, end: float) -> Iterator[Moment]:
    """Yield the moments from `begin` to `end`, in seconds since 1970; the first has every answer so far.

    What was recorded before a restart of the node is left out, because its clock began again.
    """
    answers: dict[Question, Maybe[Any]] = {}
    found: list[Moment] = []
    last_clock = 0.0
    for recording in recordings:
        changed: list[dict[Question, Maybe[Any]]] = [{} for _ in recording.moments]
        for question, given in recording.answers.items():
            for number, answer in given:
                if number < len(changed):  # not of a moment that is damaged
                    changed[number][question] = answer
        for head, new in zip(recording.moments, changed, strict=True):
            if head.clock and head.clock[0] < last_clock:
                found.clear()
                answers.clear()
            last_clock = head.clock[-1] if head.clock else last_clock
            different = {
                question: answer
                for question, answer in new.items()
                if question not in answers or answers[question] != answer
            }
            answers.update(different)
            if begin <= head.at <= end:
                shown = different if found else dict(answers)
                found.append(Moment(len(found), head.at, head.probed or not found, head.clock, shown))
    yield from found
