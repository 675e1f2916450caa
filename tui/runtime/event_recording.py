"""Join the ring's segments into the moments around an event."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from probes.base.unknown import Maybe
from probes.recording.archive import MomentHead, Recording
from probes.recording.format import PackedAnswer, Question
from probes.recording.recording_host import Moment

_SAME_BOOT_SECONDS = 10.0


def moments_between(
    recordings: Iterable[Recording], begin: float, end: float, boot: float
) -> Iterator[Moment]:
    """Yield the moments from `begin` to `end`, in seconds since 1970; the first has every answer so far.

    `boot`: when the monotonic clock was 0, in seconds since 1970. Moments before the node was booted, or
    before its time was set, are left out, because rates across them would be wrong.
    """
    answers: dict[Question, Maybe[Any]] = {}
    count = 0
    for recording in recordings:
        changed: list[dict[Question, Maybe[Any]]] = [{} for _ in recording.moments]
        for question, given in recording.answers.items():
            for number, answer in given:
                if number < len(changed):  # not of a moment that is damaged
                    changed[number][question] = answer
        for head, new in zip(recording.moments, changed, strict=True):
            different = {
                question: answer
                for question, answer in new.items()
                if question not in answers or answers[question] != answer
            }
            answers.update(different)
            if begin <= head.at <= end and _is_of_boot(head, boot):
                shown = {
                    question: answer.answer() if isinstance(answer, PackedAnswer) else answer
                    for question, answer in (different if count else answers).items()
                }
                yield Moment(count, head.at, head.probed or not count, head.clock, shown)
                count += 1


def _is_of_boot(head: MomentHead, boot: float) -> bool:
    return not head.clock or abs(head.at - head.clock[-1] - boot) < _SAME_BOOT_SECONDS
