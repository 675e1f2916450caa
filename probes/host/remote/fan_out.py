"""Ask many nodes at once, by ClusterShell: each gets a collector, and rounds of questions.

The answers are judged in other processes, by a function of the caller: it returns what it concludes, or which
questions are missing. Of each kind of node one is asked first; the others get its list of questions, so that
most nodes need one round.
"""

from __future__ import annotations

import resource
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import Any, Generic, TypeVar

from ClusterShell.Event import EventHandler
from ClusterShell.Task import Task, task_self
from ClusterShell.Worker.EngineClient import EngineClientEOF
from ClusterShell.Worker.Exec import ExecClient, ExecWorker

from probes.base.frozen import frozen
from probes.base.text import printable
from probes.host.remote.batch_host import Answers, Missing
from probes.host.remote.collector import GREETING
from probes.host.remote.transport import (
    ConnectionFailed,
    Target,
    collector_source,
    pack,
    unpack,
    why_failed,
)

T = TypeVar("T")
FAN_OUT = 64  # nodes at once
NODE_SECONDS = 60.0
_ROUNDS = 8
_MOST_LINE_BYTES = 16 << 20
_MOST_NODE_BYTES = 64 << 20  # from one node
_MOST_ERRORS_BYTES = 4096
_FILES_A_NODE = 4


@frozen
class Progress:
    """How far a fleet is read."""

    done: int
    failed: int
    total: int


@frozen
class FanOutOptions:
    """How many nodes at once, and for how long each."""

    fan_out: int = FAN_OUT
    seconds: float = NODE_SECONDS


class _Client(ExecClient):  # type: ignore[misc]
    """The transport of one node, started without a shell; what it prints is bounded."""

    def _build_cmd(self) -> tuple[list[str], None]:
        return self.worker.target.argv, None

    def _read(self, sname: str, size: int = 65536) -> bytes:
        part: bytes = super()._read(sname, size)
        self.worker.read_bytes += len(part)
        if len(self.streams[sname].rbuf) + len(part) > _MOST_LINE_BYTES or (
            self.worker.read_bytes > _MOST_NODE_BYTES
        ):
            self.worker.is_flooding = True
            raise EngineClientEOF  # ends this stream, and with it the worker
        return part


class _NodeWorker(ExecWorker):  # type: ignore[misc]
    """One node; ClusterShell's word for what it schedules is worker."""

    SHELL_CLASS = _Client

    def __init__(self, target: Target, handler: EventHandler, seconds: float) -> None:
        self.target = target
        self.read_bytes = 0
        self.is_flooding = False
        super().__init__(target.host, handler, timeout=seconds, command="collector", stderr=True)


class _Node(Generic[T]):
    """What is known of a node while it is asked."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.kind = ""
        self.is_greeted = False  # the greeting line has come
        self.is_root = False
        self.answers = Answers(target.host)
        self.rounds = 0
        self.errors = b""
        self.result: T | None = None
        self.failure = ""

    @property
    def is_done(self) -> bool:
        return self.result is not None or bool(self.failure)


class FanOut(EventHandler, Generic[T]):  # type: ignore[misc]
    """One reading of many nodes; `run` returns when all have answered or failed."""

    def __init__(
        self,
        targets: Sequence[Target],
        judge: Callable[[Answers], T | Missing],
        executor: Executor,
        on_progress: Callable[[Progress], None],
        options: FanOutOptions,
    ) -> None:
        super().__init__()
        self._judge, self._executor, self._on_progress, self._options = judge, executor, on_progress, options
        self._nodes = {target.host: _Node[T](target) for target in targets}
        self._workers: dict[str, _NodeWorker] = {}
        self._first: dict[str, str] = {}  # by kind: the node that is asked first
        self._lists: dict[str, list[Any]] = {}  # by kind: the questions of that node
        self._waiting: defaultdict[str, list[str]] = defaultdict(list)  # nodes of a kind without a list
        self._judging = 0
        self._done = 0
        self._port: Any = None
        self._is_stopped = False

    def stop(self) -> None:
        """End the reading early, from any thread: the nodes that have not answered fail."""
        self._is_stopped = True
        if self._port is not None:
            self._port.msg_send(None)

    def run(self) -> tuple[dict[str, T], dict[str, str]]:
        """Return what was concluded by node, and why the others failed."""
        task: Task = task_self()
        for name, value in (("stdout_msgtree", False), ("stderr_msgtree", False), ("auto_tree", False)):
            task.set_default(name, value)
        task.set_info("fanout", _fan_out(self._options.fan_out))
        task.set_info("print_debug", lambda *_: None)
        self._port = task.port(handler=self, autoclose=True)
        if self._is_stopped:
            self.stop()
        for node in self._nodes.values():
            worker = _NodeWorker(node.target, self, self._options.seconds)
            self._workers[node.target.host] = worker
            task.schedule(worker)
            worker.write(collector_source())
        try:
            task.resume()
        finally:
            task.abort(kill=True)  # else ClusterShell keeps a task with open files for each thread
        found = {name: node.result for name, node in self._nodes.items() if node.result is not None}
        return found, {name: node.failure for name, node in self._nodes.items() if node.failure}

    # Events of ClusterShell

    def ev_read(self, worker: _NodeWorker, node: str, sname: str, msg: bytes) -> None:
        """Take a line of a node."""
        asked = self._nodes[worker.target.host]
        if asked.is_done:
            return
        if sname == worker.SNAME_STDERR:
            asked.errors = (asked.errors + msg + b"\n")[-_MOST_ERRORS_BYTES:]
            return
        try:
            self._take(asked, msg)
        except ConnectionFailed as error:
            self._end(asked, failure=str(error))

    def _take(self, node: _Node[T], line: bytes) -> None:
        if not node.is_greeted:  # before, banners and shells may print
            node.is_greeted = line == GREETING.encode()
            return
        if not node.kind:
            greeting = unpack(line)
            node.kind = printable(str(greeting.get("kind")), 400) or "?"
            node.answers.is_root = greeting.get("is_root") is True
            self._begin(node)
            return
        node.answers.lines.append(line)
        self._judging += 1
        future = self._executor.submit(self._judge, node.answers)
        # The callback runs in a thread of the executor.
        future.add_done_callback(lambda done: self._port.msg_send((node.target.host, done)))

    def ev_msg(self, port: Any, msg: tuple[str, Future[T | Missing]] | None) -> None:
        """Take what was concluded of a node; None: stop."""
        if msg is None:
            for node in self._nodes.values():
                if not node.is_done:
                    self._end(node, failure="the reading was stopped")
            return
        host, future = msg
        self._judging -= 1
        node = self._nodes[host]
        if node.is_done:
            return
        error = future.exception()
        if error is not None:
            self._end(node, failure=f"its answers could not be judged: {printable(str(error), 200)}")
            return
        found = future.result()
        if not isinstance(found, Missing):
            self._lists.setdefault(
                node.kind, [question for asked in node.answers.asked for question in asked]
            )
            self._end(node, result=found)
            return
        if found.failure or node.rounds >= _ROUNDS:
            self._end(node, failure=found.failure or "its answers change with every question")
            return
        self._ask(node, found.questions)

    def ev_close(self, worker: _NodeWorker, timedout: bool) -> None:
        """Note why a node has ended before it was judged."""
        node = self._nodes[worker.target.host]
        if node.is_done:
            return
        if worker.is_flooding:
            failure = "it sends more than gdrtop takes from a node"
        elif timedout:
            failure = f"it did not answer within {self._options.seconds:g} s"
        else:
            failure = why_failed(node.errors.decode("utf-8", "replace"), node.target)
        self._end(node, failure=failure)

    # Rounds

    def _begin(self, node: _Node[T]) -> None:
        questions = self._lists.get(node.kind)
        if questions is not None:
            self._ask(node, questions)
        elif node.kind in self._first:
            self._waiting[node.kind].append(node.target.host)
        else:
            self._first[node.kind] = node.target.host
            self._ask(node, [])

    def _ask(self, node: _Node[T], questions: list[Any]) -> None:
        node.rounds += 1
        node.answers.asked.append(questions)
        self._workers[node.target.host].write(pack({"ask": questions}))

    def _end(self, node: _Node[T], result: T | None = None, failure: str = "") -> None:
        node.result, node.failure = result, failure
        node.answers = Answers(node.target.host)  # they take most of the memory
        self._done += 1
        failed = sum(bool(other.failure) for other in self._nodes.values())
        self._on_progress(Progress(self._done, failed, len(self._nodes)))
        worker = self._workers[node.target.host]
        if failure:
            worker.abort()  # it may never end by itself
        else:
            worker.set_write_eof()
        if self._first.get(node.kind) == node.target.host:
            self._release(node.kind)

    def _release(self, kind: str) -> None:
        """Ask the nodes that wait for a list; without a list the next one goes first."""
        waiting, self._waiting[kind] = self._waiting[kind], []
        if self._is_stopped:
            return
        if kind not in self._lists:
            del self._first[kind]
        for host in waiting:
            if not self._nodes[host].is_done:
                self._begin(self._nodes[host])


def _fan_out(wanted: int) -> int:
    """Return how many nodes can be asked at once, as far as this process may open files."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(1, min(wanted, (files - 64) // _FILES_A_NODE))
