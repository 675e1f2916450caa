"""A node over an open connection, and one whose answers have all come before.

A round trip takes as long as thousands of local reads, so questions go in rounds. `read_ahead` finds out
which questions a reading has, and asks them together. Later, a question that was answered before is asked
again together with all that followed it last time: the second reading of a node, and each reading of a
second, take one or two round trips.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import Any, NoReturn, TypeVar

from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown
from probes.host.probe_thread import AnsweredHost, is_logging, log_source, note
from probes.host.remote import transport
from probes.host.remote.collected_host import (
    NOT_ASKED_YET,
    CollectedHost,
    Question,
    is_of_site,
    is_unfinished,
)
from probes.host.remote.connection import ANSWER_SECONDS, READING_SECONDS, Connection, Connections
from probes.host.remote.transport import ConnectionFailed, Target

_FRESH_SECONDS = 3.0  # an answer that was asked ahead is as old as this at most
_READING_SECONDS = 0.5  # whoever asks again within this belongs to the same reading
_MOST_AHEAD = 30_000  # questions of one round
_MOST_KEPT = 120_000  # answers
_SLOW_SECONDS = 5.0  # a round trip that takes longer is late: the collector waits 3 s for a file or a command
_RETRY_SECONDS = 10.0  # between two attempts to connect again


@dataclass(slots=True)
class _Answer:
    """An answer, when it came, and when it was used first."""

    at: float
    value: Any
    taken_at: float | None = None


class RemoteHost(CollectedHost):
    """A node behind a connection; after it has failed, all answers are unknown until it is there again."""

    def __init__(
        self, target: Target, among: Connections | None = None, seconds: float = READING_SECONDS
    ) -> None:
        """Connect; ConnectionFailed: the node does not answer. It ends with the connections `among`.

        `seconds`: from now until the first `read_ahead` must have ended, and of each later reading.
        """
        self.target = target
        self._seconds = seconds
        began = time.monotonic()
        self._until = began + seconds  # when the first reading must have ended
        self._late_seconds, self._exchanged_at = 0.0, began  # see _count_late
        self._memory: deque[tuple[float, int]] = deque()  # of the messages whose answers are kept, by time
        self._among = among or Connections()
        self.connection: Connection | None = Connection(target, self._among, self._until)
        super().__init__(target.host, self.connection.greeting.get("is_root") is True)
        self._log("connection", began)
        self._lock = threading.Lock()  # of what follows
        self._exchanging = threading.Lock()
        self._fresh: dict[Question, _Answer] = {}
        self._asked: dict[Question, float] = {}  # when each was used last, in this order
        self._missing: dict[Question, None] | None = None
        self._lost: tuple[float, str] | None = None  # when the connection was lost, and why
        self._exchange([])
        self._spent, self._until = time.monotonic() - began, float("inf")

    def read_ahead(self, read: Callable[[RemoteHost], object], lists: QuestionLists | None = None) -> None:
        """Let `read` ask its questions until all of them have answers, which the next reading gets.

        `lists`: of other nodes that are read like this one, whose questions are asked first.
        ConnectionFailed: the node does not answer, takes too long, or answers more than a node has.
        """
        kind = kind_of(self._connected().greeting)
        first = () if lists is None else questions_of(lists.first(kind, self.target.host))
        self._until, self._spent = time.monotonic() + self._seconds - self._spent, 0.0
        asked = len(first)
        if first:
            self._exchange(first, waits=True)
        for _ in range(transport.ROUNDS):
            with self._lock:
                self._missing = {}
            try:
                read(self)
            finally:
                with self._lock:
                    missing, self._missing = list(self._missing), None
            asked += len(missing)
            if asked > transport.MOST_QUESTIONS:
                self._lose(transport.TOO_MANY_FILES)
            if time.monotonic() > self._until:
                self._lose(self._too_slow())
            if not missing:
                break
            self._exchange(missing, waits=True)
        self._until = float("inf")
        if lists is not None:
            lists.add(kind, self._fresh)
        with self._lock:
            # What is too old by now on a slow node is asked again in one round; not with what is read later.
            self._asked.update(dict.fromkeys(self._fresh, time.monotonic() - 2 * _READING_SECONDS))

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
                if time.monotonic() > self._until:  # it ends soon
                    return Unknown(Reason.TIMED_OUT, source, self._too_slow())
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
            wanted = (other for other in asked_before if not is_of_site(other))
            return [question, *(other for other in wanted if not self._is_newer(other, new))]

    def _is_newer(self, question: Question, than: float) -> bool:
        found = self._fresh.get(question)  # none after `forget`
        return found is not None and found.at >= than

    def _exchange(self, questions: Sequence[Question], waits: bool = False) -> None:
        """Ask the node; ConnectionFailed: it does not answer, or has not for some seconds.

        `waits`: what takes long there will be asked again.
        """
        connection = self._connected()
        began = time.monotonic()
        before = connection.memory_bytes
        try:
            message = connection.ask(questions, self._until)
            answers = message.get("answers")
            if not isinstance(answers, list) or len(answers) != len(questions):
                raise ConnectionFailed(transport.GARBLED)
            if not self._set_clocks(message, True):
                raise ConnectionFailed(transport.GARBLED)
            self._count_late(began)
        except ConnectionFailed as error:
            why = self._too_slow() if time.monotonic() >= self._until else str(error)
            self._log(f"round trip {connection.rounds}", began, questions, Unknown(Reason.IO_ERROR, "", why))
            self._lose(why)
        now = time.monotonic()
        self._log(f"round trip {connection.rounds}", began, questions)
        with self._lock:
            for asked, answer in zip(questions, answers, strict=True):
                if not waits or not is_unfinished(answer):
                    self._fresh[asked] = _Answer(now, answer)
            self._memory.append((now, connection.memory_bytes - before))
            is_ahead = self._until < float("inf")
            if is_ahead and sum(size for _, size in self._memory) > transport.MOST_READING_BYTES:
                self._lose(transport.TOO_MUCH)
            self._drop_old(now)

    def _drop_old(self, now: float) -> None:
        """Keep no more answers than a node has; processes come and go."""
        left = sum(size for _, size in self._memory)
        if left > transport.MOST_READING_BYTES:
            while left > transport.MOST_READING_BYTES // 2 and len(self._memory) > 1:
                oldest, size = self._memory.popleft()
                left -= size
            self._fresh = {asked: kept for asked, kept in self._fresh.items() if kept.at > oldest}
        if len(self._fresh) > _MOST_KEPT or len(self._asked) > _MOST_KEPT:
            self._fresh = {asked: kept for asked, kept in self._fresh.items() if now - kept.at < 60.0}
            self._asked = {asked: at for asked, at in self._asked.items() if asked in self._fresh}

    def _count_late(self, began: float) -> None:
        """Add the time of a late round trip; other time makes up for it.

        ConnectionFailed: many round trips, each in time, make a reading as late as silence would.
        """
        now = time.monotonic()
        took, idle = now - began, began - self._exchanged_at
        self._exchanged_at = now
        late = took if took > _SLOW_SECONDS else -took
        self._late_seconds = max(0.0, max(0.0, self._late_seconds - idle) + late)
        if self._late_seconds > self._seconds:
            raise ConnectionFailed(self._too_slow())

    def _too_slow(self) -> str:
        return f"it did not answer within {self._seconds:g} s"

    def _lose(self, why: str) -> NoReturn:
        """End the connection, and raise ConnectionFailed."""
        if self.connection is not None:
            self.connection.close()
        self.connection = None
        self._late_seconds = 0.0
        self._lost = time.monotonic(), why
        raise ConnectionFailed(why)

    def _log(
        self,
        name: str,
        began: float,
        questions: Sequence[Question] | None = None,
        answer: Unknown | None = None,
    ) -> None:
        if is_logging():
            asked = (
                next((part for part in asked[1:] if isinstance(part, str)), asked[0])
                for asked in questions or ()
            )
            log_source(self.origin, name, began, answer, asked)

    def _connected(self) -> Connection:
        if self.connection is None:
            at, why = self._lost or (0.0, "")
            if time.monotonic() - at < _RETRY_SECONDS:
                raise ConnectionFailed(why)
            try:
                self.connection = Connection(self.target, self._among, self._until)
            except ConnectionFailed as error:
                self._lost = time.monotonic(), str(error)
                raise
        return self.connection


# A node whose answers have all come before: what it has not been asked yet is noted.

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
    return transport.pack({"ask": questions})


def kind_of(greeting: Mapping[str, Any]) -> str:
    """Return the kind of a node by its greeting: nodes of a kind are asked the same questions."""
    return printable(str(greeting.get("kind")), 400) or "?"


@lru_cache(32)
def questions_of(line: bytes) -> tuple[Question, ...]:
    """Return the questions of a line; nodes of a kind get the same one."""
    return tuple(map(tuple, transport.unpack_own(line)["ask"]))


class QuestionLists:
    """What nodes of a kind are asked: one goes first, and the others, each in its thread, get its list."""

    def __init__(self, seconds: float, changed: threading.Condition | None = None) -> None:
        """`seconds`: then the next node of a kind goes first."""
        self.is_stopped = False
        self._seconds = seconds
        self._changed = changed or threading.Condition()  # of what follows
        self._lists: dict[str, bytes] = {}
        self._first: dict[str, tuple[str, float]] = {}  # the node that is asked first, and until when

    def first(self, kind: str, host: str) -> bytes:
        """Return the line of questions of a kind, once another node has shown them; none if it is first."""
        with self._changed:
            while kind not in self._lists and not self.is_stopped:
                now = time.monotonic()
                first, late_at = self._first.get(kind, (host, now))
                if first == host or late_at <= now:
                    self._first[kind] = host, now + self._seconds
                    break
                self._changed.wait(late_at - now)
            return self._lists.get(kind) or pack_questions([])

    def add(self, kind: str, asked: Iterable[Question]) -> None:
        """Keep what a node was asked, for the others of its kind."""
        with self._changed:
            if kind not in self._lists:  # that of a long command was asked several times
                self._lists[kind] = pack_questions(
                    [each for each in dict.fromkeys(asked) if not is_of_site(each)]
                )
                self._changed.notify_all()

    def stop(self) -> None:
        """End all waiting, now and later."""
        with self._changed:
            self.is_stopped = True
            self._changed.notify_all()

    def end(self, host: str) -> None:
        """Let the next node of its kind go first if this one has shown no questions."""
        with self._changed:
            self._first = {kind: first for kind, first in self._first.items() if first[0] != host}
            self._changed.notify_all()


class BatchHost(CollectedHost, AnsweredHost):
    """A node whose answers have come in batches."""

    def __init__(self, answers: Answers) -> None:
        """Unpack the answers; ConnectionFailed: they are garbled, or too many."""
        super().__init__(answers.host, answers.is_root)
        self._answers: dict[Question, Any] = {}
        self.missing: dict[Question, None] = {}
        left_bytes = transport.MOST_READING_BYTES
        for asked, line in zip(map(questions_of, answers.asked), answers.lines, strict=True):
            message, size = transport.unpack(line)
            left_bytes -= size
            if left_bytes < 0:
                raise ConnectionFailed(transport.TOO_MUCH)
            found = message.get("answers")
            if (
                not isinstance(found, list)
                or len(found) != len(asked)
                or not self._set_clocks(message, False)
            ):
                raise ConnectionFailed(transport.GARBLED)
            self._answers.update(zip(asked, found, strict=True))
            for question, answer in zip(asked, found, strict=True):
                if type(answer) is dict and "errno" in answer and is_unfinished(answer):
                    del self._answers[question]

    def _answer_to(self, question: Question, source: str) -> Maybe[Any]:
        answer = self._answers.get(question, NOT_ASKED_YET)
        if answer is NOT_ASKED_YET:
            self.missing[question] = None
        return answer
