"""A node whose answers have all come before: what it has not been asked yet is noted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar

from probes.base.unknown import Maybe
from probes.host.probe_table import Recalling
from probes.host.probe_thread import AnsweredHost
from probes.host.remote.collected_host import NOT_ASKED_YET, CollectedHost, Question, is_unfinished
from probes.host.remote.transport import (
    GARBLED,
    MOST_READING_BYTES,
    TOO_MUCH,
    ConnectionFailed,
    pack,
    unpack,
    unpack_own,
)

T = TypeVar("T")


@dataclass
class Answers:
    """What a node has answered so far: the line of questions of each round, and the line that came for it."""

    host: str
    is_root: bool = False
    asked: list[bytes] = field(default_factory=list)
    lines: list[bytes] = field(default_factory=list)


@dataclass
class Missing:
    """The questions that a node still has to answer, or why it cannot be judged."""

    questions: list[Any]
    failure: str = ""


def pack_questions(questions: Sequence[Any]) -> bytes:
    """Return the line that asks a node these questions."""
    return pack({"ask": questions})


@lru_cache(32)
def questions_of(line: bytes) -> tuple[Question, ...]:
    """Return the questions of a line; nodes of a kind get the same one."""
    return tuple(map(tuple, unpack_own(line)["ask"]))


_Trace = dict[Question, Any]  # what a probe asked, and the answers
_MOST_RECALLED = 8  # conclusions of a probe: of several kinds of nodes, and of some with a fault
_MOST_KEYS = 64
_MOST_CHARACTERS = 4 << 20  # of the answers to a probe; a node has half a million
_MOST_KEPT = 32 << 20  # of all that is kept
_kept_characters = 0
_recalled: dict[Hashable, list[tuple[_Trace, Any]]] = {}


class BatchHost(CollectedHost, AnsweredHost, Recalling):
    """A node whose answers have come in batches.

    Most nodes of a fleet answer most questions alike, such as those about five hundred PCI functions. What
    was concluded from them is kept in this process, and is taken for the next node that answers the same.
    """

    def __init__(self, answers: Answers) -> None:
        """Unpack the answers; ConnectionFailed: they are garbled, or too many."""
        super().__init__(answers.host, answers.is_root)
        self._answers: dict[Question, Any] = {}
        self.missing: dict[Question, None] = {}
        self._traces = threading.local()  # of the probe of this thread
        left_bytes = MOST_READING_BYTES
        for asked, line in zip(map(questions_of, answers.asked), answers.lines, strict=True):
            message, size = unpack(line)
            left_bytes -= size
            if left_bytes < 0:
                raise ConnectionFailed(TOO_MUCH)
            found = message.get("answers")
            if (
                not isinstance(found, list)
                or len(found) != len(asked)
                or not self._set_clocks(message, False)
            ):
                raise ConnectionFailed(GARBLED)
            self._answers.update(zip(asked, found, strict=True))
            for question, answer in zip(asked, found, strict=True):
                if type(answer) is dict and "errno" in answer and is_unfinished(answer):
                    del self._answers[question]

    def _answer_to(self, question: Question, source: str) -> Maybe[Any]:
        answer = self._answers.get(question, NOT_ASKED_YET)
        if answer is NOT_ASKED_YET:
            self.missing[question] = None
        trace: _Trace | None = getattr(self._traces, "current", None)
        if trace is not None:
            trace[question] = answer
        return answer

    def recall(self, key: Hashable, ask: Callable[[], Maybe[T]]) -> Maybe[T]:
        """Return what `ask` would conclude, from this node's answers or those of an earlier one."""
        global _kept_characters
        key = self._is_root, key
        if (key not in _recalled and len(_recalled) >= _MOST_KEYS) or _kept_characters > _MOST_KEPT:
            _recalled.clear()
            _kept_characters = 0
        kept = _recalled.setdefault(key, [])
        for place, (trace, conclusion) in enumerate(kept):
            if trace.items() <= self._answers.items():
                kept.insert(0, kept.pop(place))
                return conclusion  # type: ignore[no-any-return]
        self._traces.current = trace = {}
        try:
            conclusion = ask()
        finally:
            self._traces.current = None
        characters = sum(len(repr(answer)) for answer in trace.values())
        if NOT_ASKED_YET not in trace.values() and characters <= _MOST_CHARACTERS:
            kept.insert(0, (trace, conclusion))
            _kept_characters += characters
            del kept[_MOST_RECALLED:]
        return conclusion
