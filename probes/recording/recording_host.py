"""A host that records the answers of another host, moment by moment."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from probes.base.frozen import frozen
from probes.base.text import printable, text_of
from probes.base.unknown import Maybe, Reason, Unknown, map_known
from probes.facts.system.kubernetes import without_variables
from probes.host.collectives import CollectiveSpeed
from probes.host.component_history import ComponentHistory
from probes.host.fec import FecState
from probes.host.nvml import NvmlFacts, NvmlLive
from probes.host.protocol import (
    MAX_MESSAGES,
    READ_LIMIT_BYTES,
    CommandOutput,
    CudaGpu,
    FileRange,
    Host,
    KernelMessage,
    LogFinding,
)
from probes.host.ras import ANSWER_SECONDS
from probes.host.rdma_resources import PacketNumbers, RdmaResources
from probes.host.tcp_sockets import TcpSocket
from probes.host.usage import InterfaceCounters, ProcessUsage
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


class RecordingHost:
    """Forwards every question to a host and records its answer; asks nothing itself.

    `sink` takes each moment. Questions may come from several threads.
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

    def names(self, path: str) -> Maybe[tuple[str, ...]]:
        return self._ask("names", (path,), lambda: self._host.names(path))

    def link(self, path: str) -> Maybe[str]:
        return self._ask("link", (path,), lambda: self._host.link(path))

    def resolve(self, path: str) -> Maybe[str]:
        return self._ask("resolve", (path,), lambda: self._host.resolve(path))

    def size(self, path: str) -> Maybe[int]:
        return self._ask("size", (path,), lambda: self._host.size(path))

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

    def nvml(self) -> Maybe[NvmlFacts]:
        return self._ask("nvml", (), self._host.nvml)

    def nvml_live(self) -> Maybe[tuple[NvmlLive, ...]]:
        return self._ask("nvml_live", (), self._host.nvml_live)

    def dmabuf_errnos(self, devices: Sequence[str]) -> Mapping[str, Maybe[int]]:
        return self._ask_each("dmabuf_errno", devices, self._host.dmabuf_errnos)

    def data_direct_paths(self, devices: Sequence[str]) -> Mapping[str, Maybe[str]]:
        return self._ask_each("data_direct_path", devices, self._host.data_direct_paths)

    def cuda_gpus(self) -> Maybe[tuple[CudaGpu, ...]]:
        return self._ask("cuda_gpus", (), self._host.cuda_gpus)

    def process_usage(self, pids: Sequence[int]) -> Mapping[int, Maybe[ProcessUsage]]:
        return self._ask_each("process_usage", pids, self._host.process_usage)

    def interface_counters(self, names: Sequence[str]) -> Mapping[str, Maybe[InterfaceCounters]]:
        return self._ask_each("interface_counters", names, self._host.interface_counters)

    def rdma_resources(self) -> Maybe[RdmaResources]:
        return self._ask("rdma_resources", (), self._host.rdma_resources)

    def packet_numbers(self) -> Maybe[tuple[PacketNumbers, ...]]:
        return self._ask("packet_numbers", (), self._host.packet_numbers)

    def tcp_sockets(self) -> Maybe[tuple[TcpSocket, ...]]:
        return self._ask("tcp_sockets", (), self._host.tcp_sockets)

    def namespace_sockets(self, pid: int) -> Maybe[tuple[TcpSocket, ...]]:
        return self._ask("namespace_sockets", (str(pid),), lambda: self._host.namespace_sockets(pid))

    def socket_inodes(self, pids: Sequence[int]) -> Mapping[int, Maybe[tuple[int, ...]]]:
        return self._ask_each("socket_inodes", pids, self._host.socket_inodes)

    def rdma_statistics(self, names: Sequence[str]) -> Mapping[str, Maybe[dict[str, int]]]:
        return self._ask_each("rdma_statistics", names, self._host.rdma_statistics)

    def thread_names(self, pids: Sequence[int]) -> Mapping[int, Maybe[tuple[str, ...]]]:
        return self._ask_each("thread_names", pids, self._host.thread_names)

    def ethtool_counters(self, names: Sequence[str]) -> Mapping[str, Maybe[dict[str, int]]]:
        return self._ask_each("ethtool_counters", names, self._host.ethtool_counters)

    def fec_states(self, names: Sequence[str]) -> Mapping[str, Maybe[FecState]]:
        return self._ask_each("fec_states", names, self._host.fec_states)

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

    def ras_events(self, address: str, last: bool = False) -> Maybe[tuple[str, ...]]:
        return self._ask("ras_events", (address,), lambda: self._host.ras_events(address, last))

    def collectives(self, path: str, user: Maybe[int]) -> Maybe[tuple[CollectiveSpeed, ...]]:
        return self._ask("collectives", (path,), lambda: self._host.collectives(path, user))

    def component_history(self) -> Maybe[ComponentHistory]:
        return self._ask("component_history", (), self._host.component_history)

    def log_findings(self) -> Maybe[tuple[LogFinding, ...]]:
        return self._host.log_findings()

    def note_log_findings(self, findings: tuple[LogFinding, ...]) -> None:
        """Record what only the logs of jobs show, from now on, because the logs are not recorded.

        Without any finding, nothing is recorded, so that a gdrtop without this question opens the recording.
        """
        with self._lock:
            if findings or _LOG_FINDINGS in self._recorded or _LOG_FINDINGS in self._new:
                self._new[_LOG_FINDINGS] = findings

    def environment(self, name: str) -> Maybe[str]:
        return self._ask("environment", (name,), lambda: self._host.environment(name))

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


def _same(before: Maybe[Any], after: Maybe[Any]) -> bool:
    return type(before) is type(after) and bool(before == after)
