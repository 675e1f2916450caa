"""A node over an open connection.

A round trip takes as long as thousands of local reads, so questions go in rounds. `read_ahead` finds out
which questions a reading has, and asks them together. Later, a question that was answered before is asked
again together with all that followed it last time: the second reading of a node, and each reading of a
second, take one or two round trips.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

from probes.base.unknown import Maybe, Reason, Unknown
from probes.host import source_log
from probes.host.probe_thread import note
from probes.host.protocol import Host
from probes.host.remote.collected_host import NOT_ASKED_YET, CollectedHost, Question
from probes.host.remote.connection import ANSWER_SECONDS, Connection
from probes.host.remote.transport import GARBLED, ROUNDS, ConnectionFailed, Target
from probes.host.source_log import ReadSource

_FRESH_SECONDS = 3.0  # an answer that was asked ahead is as old as this at most
_READING_SECONDS = 0.5  # whoever asks again within this belongs to the same reading
_MOST_AHEAD = 30_000  # questions of one round
_MOST_KEPT = 120_000  # answers
_RETRY_SECONDS = 10.0  # between two attempts to connect again


@dataclass
class _Answer:
    """An answer, when it came, and when it was used first."""

    at: float
    value: Any
    taken_at: float | None = None


def _is_text(part: object) -> bool:
    return isinstance(part, str)


class RemoteHost(CollectedHost):
    """A node behind a connection; after it has failed, all answers are unknown until it is there again."""

    def __init__(self, target: Target) -> None:
        """Connect; ConnectionFailed: the node does not answer."""
        self.target = target
        began = time.monotonic()
        self.connection: Connection | None = Connection(target)
        super().__init__(target.host, self.connection.greeting.get("is_root") is True)
        self._log("connection", began)
        self._lock = threading.Lock()  # of what follows
        self._exchanging = threading.Lock()
        self._fresh: dict[Question, _Answer] = {}
        self._asked: dict[Question, float] = {}  # when each was used last, in this order
        self._missing: dict[Question, None] | None = None
        self._lost: tuple[float, str] | None = None  # when the connection was lost, and why
        self._exchange([])

    def read_ahead(self, read: Callable[[Host], object]) -> None:
        """Let `read` ask its questions until all of them have answers, which the next reading gets."""
        for _ in range(ROUNDS):
            with self._lock:
                self._missing = {}
            try:
                read(self)
            finally:
                with self._lock:
                    missing, self._missing = list(self._missing), None
            if not missing:
                break
            self._exchange(missing)
        with self._lock:
            # What is too old by now on a slow node is asked again in one round.
            self._asked.update(dict.fromkeys(self._fresh, time.monotonic()))

    def forget(self) -> None:
        """Ask for everything again, because the node was changed."""
        with self._lock:
            self._fresh.clear()

    def close(self) -> None:
        """End the connection."""
        if self.connection is not None:
            self.connection.close()

    def _answer_to(self, question: Question, source: str) -> Maybe[Any]:
        note(f"{self.origin.label}: {source}", ANSWER_SECONDS)
        with self._lock:
            found = self._fresh.get(question)
            if self._missing is not None:  # of read_ahead
                if found is None:
                    self._missing[question] = None
                    return NOT_ASKED_YET
                return found.value
        found = self._taken(question)
        if found is not None:
            return found.value
        try:
            with self._exchanging:  # the answer may come with another thread's question
                found = self._taken(question)
                if found is None:
                    self._exchange(self._with_next(question))
                    found = self._taken(question)
        except ConnectionFailed as error:
            return Unknown(Reason.IO_ERROR, source, f"no connection to {self.origin.label}: {error}")
        return Unknown(Reason.TIMED_OUT, source, "answered too late") if found is None else found.value

    def _taken(self, question: Question) -> _Answer | None:
        """Return an answer, unless it is too old or an earlier reading has had it."""
        with self._lock:
            found, now = self._fresh.get(question), time.monotonic()
            if found is None or now - found.at > _FRESH_SECONDS:
                return None
            if found.taken_at is None:
                found.taken_at = now
                self._asked.pop(question, None)
                self._asked[question] = now
            return found if now - found.taken_at <= _READING_SECONDS else None

    def _with_next(self, question: Question) -> list[Question]:
        """Return a question with the others of the reading that asked it last, and all later ones."""
        with self._lock:
            since = self._asked.get(question)
            if since is None:
                return [question]
            earliest, new = since - _READING_SECONDS, time.monotonic() - _READING_SECONDS
            others = islice(reversed(self._asked.items()), _MOST_AHEAD)
            asked_before = (other for other, at in others if at >= earliest and other != question)
            return [question, *(other for other in asked_before if not self._is_newer(other, new))]

    def _is_newer(self, question: Question, than: float) -> bool:
        found = self._fresh.get(question)  # none after `forget`
        return found is not None and found.at >= than

    def _exchange(self, questions: list[Question]) -> None:
        """Ask the node; ConnectionFailed: it does not answer, or has not for some seconds."""
        connection = self._connected()
        began = time.monotonic()
        try:
            message = connection.ask(questions)
            answers = message.get("answers")
            if not isinstance(answers, list) or len(answers) != len(questions):
                raise ConnectionFailed(GARBLED)
            if not self._set_clocks(message, True):
                raise ConnectionFailed(GARBLED)
        except ConnectionFailed as error:
            failed = Unknown(Reason.IO_ERROR, "", str(error))
            self._log(f"round trip {connection.rounds}", began, questions, failed)
            connection.close()
            self.connection = None
            self._lost = time.monotonic(), str(error)
            raise
        now = time.monotonic()
        self._log(f"round trip {connection.rounds}", began, questions)
        with self._lock:
            self._fresh.update(zip(questions, (_Answer(now, answer) for answer in answers), strict=True))
            if len(self._fresh) > _MOST_KEPT:  # processes come and go
                self._fresh = {asked: kept for asked, kept in self._fresh.items() if now - kept.at < 60.0}
                self._asked = {asked: at for asked, at in self._asked.items() if asked in self._fresh}

    def _log(
        self, name: str, began: float, questions: list[Question] | None = None, answer: Unknown | None = None
    ) -> None:
        if source_log.is_on():
            asked = (next(filter(_is_text, asked[1:]), asked[0]) for asked in questions or ())
            seconds = time.monotonic() - began
            source_log.log(ReadSource(self.origin, name, seconds, answer, tuple(asked)))

    def _connected(self) -> Connection:
        if self.connection is None:
            at, why = self._lost or (0.0, "")
            if time.monotonic() - at < _RETRY_SECONDS:
                raise ConnectionFailed(why)
            try:
                self.connection = Connection(self.target)
            except ConnectionFailed as error:
                self._lost = time.monotonic(), str(error)
                raise
        return self.connection
