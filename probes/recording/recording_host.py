"""A host that records the answers of another host, moment by moment."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, TypeVar

from probes.base.frozen import frozen
from probes.base.text import printable, text_of
from probes.base.unknown import Maybe, Reason, Unknown, map_known
from probes.facts.system.kubernetes import without_variables
from probes.host.protocol import (
    MAX_MESSAGES,
    READ_LIMIT_BYTES,
    CommandOutput,
    FileRange,
    Host,
    KernelMessage,
    LogFinding,
)
from probes.host.ras import ANSWER_SECONDS
from probes.recording.format import Question

K = TypeVar("K", str, int)
T = TypeVar("T")
_MESSAGES = Question("kernel_messages")
_LOG_FINDINGS = Question("log_findings")
# News: the same answer in the next moment would be a new one.
_NEWS = ("kernel_messages", "ras_events")
SHORTEST_MOMENT_SECONDS = 0.9  # at most about one reading per second, even if the dashboard reads more often


@frozen
class Moment:
    """The answers since the previous moment, without those that did not change."""

    number: int
    at: float  # seconds since 1970, the host's clock
    probed: bool  # the whole node was probed
    clock: tuple[float, ...]  # values of the host's monotonic clock, in the order asked
    answers: dict[Question, Maybe[Any]]


class RecordingHost(Host):
    """Forwards every question to a host and records its answer; asks nothing itself.

    `sink` takes each moment. Questions may come from several threads. _RECORDED and _RECORDED_EACH have those
    that are passed on as they are.
    """

    def __init__(self, host: Host, sink: Callable[[Moment], object]) -> None:
        self.origin = host.origin
        self._host = host
        self._sink = sink
        self._lock = threading.Lock()
        self._recorded: dict[Question, Maybe[Any]] = {}
        self._new: dict[Question, Maybe[Any]] = {}
        self._unanswered: dict[object, Question] = {}
        self._clock: list[float] = []
        self._probed = False
        self._ended_at: float | None = None
        self.moments = 0

    def note_probe(self) -> None:
        """Note that the whole node was probed in this moment."""
        self._probed = True

    def end_moment(self) -> bool:
        """Pass the answers to the sink, at most once per second; return whether it did."""
        now = self._host.monotonic()
        with self._lock:
            since = None if self._ended_at is None else now - self._ended_at
            if since is not None and since < SHORTEST_MOMENT_SECONDS:
                self._clock.clear()  # the next reading has a later time
                return False
            for question in list(self._unanswered.values()):
                detail = "no answer when this moment was recorded"
                source = printable(" ".join(question.subject) or question.kind)
                self._new[question] = Unknown(Reason.TIMED_OUT, source, detail)
            answers = {
                question: answer
                for question, answer in self._new.items()
                if question not in self._recorded or not _same(self._recorded[question], answer)
            }
            self._recorded.update(answers)
            for question in answers:
                if question.kind in _NEWS:
                    del self._recorded[question]
            moment = Moment(self.moments, self._host.wall_clock(), self._probed, tuple(self._clock), answers)
            self._new, self._clock, self._probed = {}, [], False
            self._ended_at = now
            self.moments += 1
        self._sink(moment)
        return True

    def answers(self, keep: Callable[[Question], bool]) -> dict[Question, Maybe[Any]]:
        """Return the newest answer to every question; forget those that `keep` refuses."""
        with self._lock:
            self._recorded = {key: answer for key, answer in self._recorded.items() if keep(key)}
            return dict(self._recorded)

    def _ask(self, kind: str, subject: tuple[str, ...], ask: Callable[[], Maybe[T]]) -> Maybe[T]:
        question = Question(kind, subject)
        mark = object()
        self._unanswered[mark] = question
        try:
            answer = ask()
        finally:
            del self._unanswered[mark]
        with self._lock:
            # A file may be too long for one question's limit and be read for another.
            if not (isinstance(answer, Unknown) and isinstance(self._new.get(question), bytes)):
                self._new[question] = answer
        return answer

    def _ask_each(
        self, kind: str, keys: Sequence[K], ask: Callable[[Sequence[K]], Mapping[K, Maybe[T]]]
    ) -> Mapping[K, Maybe[T]]:
        """Ask about several devices or processes at once; the answer for each is recorded separately."""
        questions = {key: Question(kind, (str(key),)) for key in keys}
        marks = {object(): question for question in questions.values()}
        self._unanswered.update(marks)
        try:
            answers = ask(keys)
        finally:
            for mark in marks:
                del self._unanswered[mark]
        with self._lock:
            self._new.update({questions[key]: answer for key, answer in answers.items()})
        return answers

    def read_bytes(self, path: str, limit: int = READ_LIMIT_BYTES) -> Maybe[bytes]:
        return self._ask("file", (path,), lambda: self._host.read_bytes(path, limit))

    def read(self, path: str, limit: int = READ_LIMIT_BYTES) -> Maybe[str]:
        """Return a file's text, and record its bytes."""
        return map_known(self.read_bytes(path, limit), text_of)

    def read_range(self, path: str, offset: int, limit: int) -> Maybe[FileRange]:
        """Return a part of a file, unrecorded: recordings do not contain logs of jobs."""
        return self._host.read_range(path, offset, limit)

    def access(self, path: str, write: bool = False) -> Maybe[bool]:
        kind = "writable" if write else "readable"
        return self._ask(kind, (path,), lambda: self._host.access(path, write))

    def run(self, argv: Sequence[str], seconds: float = 2.0) -> Maybe[CommandOutput]:
        """Return the output of a read-only command; of a cluster's objects only the fields that are read."""
        return self._ask("run", tuple(argv), lambda: without_variables(self._host.run(argv, seconds)))

    def trusted_bytes(self, path: str) -> Maybe[bytes]:
        return self._ask("file", (path,), lambda: self._host.trusted_bytes(path))

    def run_trusted(self, argv: Sequence[str], seconds: float, user: str) -> Maybe[CommandOutput]:
        return self._ask("run", tuple(argv), lambda: self._host.run_trusted(argv, seconds, user))

    def kernel_messages(self) -> Maybe[tuple[KernelMessage, ...]]:
        """Return the kernel's new messages, and record all of a moment."""
        with self._lock:
            before = self._new.get(_MESSAGES)
        answer = self._ask("kernel_messages", (), self._host.kernel_messages)
        if isinstance(before, tuple) and isinstance(answer, tuple):
            with self._lock:
                self._new[_MESSAGES] = (before + answer)[:MAX_MESSAGES]
        return answer

    def ras_answer(self, address: str, command: str, seconds: float = ANSWER_SECONDS) -> Maybe[str]:
        subject = (f"{address} {command}",)
        return self._ask("ras_answer", subject, lambda: self._host.ras_answer(address, command, seconds))

    def log_findings(self) -> Maybe[tuple[LogFinding, ...]]:
        return self._host.log_findings()

    def note_log_findings(self, findings: tuple[LogFinding, ...]) -> None:
        """Record what only the logs of jobs show, from now on, because the logs are not recorded.

        Without any finding, nothing is recorded, so that a gdrtop without this question opens the recording.
        """
        with self._lock:
            if findings or _LOG_FINDINGS in self._recorded or _LOG_FINDINGS in self._new:
                self._new[_LOG_FINDINGS] = findings

    def is_root(self) -> bool:
        is_root = self._host.is_root()
        with self._lock:
            self._new[Question("is_root")] = is_root
        return is_root

    def monotonic(self) -> float:
        """Return the host's clock, and record it because rates depend on it."""
        now = self._host.monotonic()
        with self._lock:
            self._clock.append(now)
        return now

    def wall_clock(self) -> float:
        return self._host.wall_clock()


# Questions that are passed on as they are, and how many of the arguments are in the recording.
_RECORDED = {
    **dict.fromkeys(("names", "link", "resolve", "size", "environment", "namespace_sockets"), 1),
    **dict.fromkeys(("ras_events", "collectives"), 1),
    **dict.fromkeys(("nvml", "nvml_live", "cuda_gpus", "component_history"), 0),
    **dict.fromkeys(("rdma_resources", "packet_numbers", "tcp_sockets"), 0),
}
# Questions about several devices or processes at once, and the kind of the answer for each.
_RECORDED_EACH = {
    **{"dmabuf_errnos": "dmabuf_errno", "data_direct_paths": "data_direct_path"},
    **{name: name for name in ("process_usage", "interface_counters", "socket_inodes", "rdma_statistics")},
    **{name: name for name in ("thread_names", "ethtool_counters", "fec_states")},
}


def _recorded(name: str, arguments: int) -> Callable[..., Any]:
    @wraps(getattr(Host, name))
    def ask(self: RecordingHost, *given: Any, **named: Any) -> Any:
        subject = tuple(map(str, given[:arguments]))
        return self._ask(name, subject, lambda: getattr(self._host, name)(*given, **named))

    return ask


def _recorded_each(name: str, kind: str) -> Callable[..., Any]:
    @wraps(getattr(Host, name))
    def ask(self: RecordingHost, keys: Sequence[Any]) -> Any:
        return self._ask_each(kind, keys, getattr(self._host, name))

    return ask


for _name, _arguments in _RECORDED.items():
    setattr(RecordingHost, _name, _recorded(_name, _arguments))
for _name, _kind in _RECORDED_EACH.items():
    setattr(RecordingHost, _name, _recorded_each(_name, _kind))


def _same(before: Maybe[Any], after: Maybe[Any]) -> bool:
    return type(before) is type(after) and bool(before == after)
