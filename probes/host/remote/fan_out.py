"""Ask many nodes at once, by ClusterShell: each gets a collector, and rounds of questions.

The answers are judged in other processes, by a function of the caller: it returns what it concludes, or which
questions are missing. Of each kind of node one is asked first; the others get its list of questions, so that
most nodes need one round.
"""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor, wait
from itertools import chain
from typing import Any, Generic, TypeVar

from probes.base.frozen import frozen
from probes.base.text import printable
from probes.host.remote import cluster_shell, connection, transport
from probes.host.remote.collector import GREETING
from probes.host.remote.remote_host import Answers, Missing, pack_questions, questions_of
from probes.host.remote.transport import ConnectionFailed, Target

# How many nodes can be connected at once: each connection has open files.

_OTHER_FILES = 128  # of gdrtop itself


def allow_nodes(wanted: int, files_a_node: int) -> int:
    """Raise this process's own limit of open files for so many nodes; return how many it allows, at least 1.

    The limit is 1024 by default, and can be raised up to the hard limit (getrlimit(2), RLIMIT_NOFILE).
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted * files_a_node + _OTHER_FILES
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if most > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return max(1, min(wanted, (max(soft, most) - _OTHER_FILES) // files_a_node))


T = TypeVar("T")
# From a node, packed; a usual one sends 40 kB, and a log that does not compress adds a megabyte. With many at
# once each may send less, so that all together stay small.
_MOST_NODE_BYTES, _LEAST_NODE_BYTES = 8 << 20, 2 << 20
_MOST_BYTES = 128 << 20
_FILES_A_NODE = 4
_POLL_SECONDS = 0.01  # until a transport has ended whose output has
_FIRST_SECONDS = 15.0  # then the next node of a kind goes first
# An ssh server refuses connections while 10 others log in (its MaxStartups), and so does a jump host. The
# pause before the next try doubles each time, and half as many are tried at once.
_RETRY_SECONDS, _LONGEST_RETRY_SECONDS = 0.5, 8.0
_LEAST_FAN_OUT = 4


@frozen
class FanOutOptions:
    """How many nodes at once, and for how long each."""

    fan_out: int
    seconds: float


class _Client(cluster_shell.ExecClient):  # type: ignore[misc]
    """The transport of one node, started without a shell; what it prints is bounded."""

    def _build_cmd(self) -> tuple[list[str], None]:
        return self.worker.target.argv, None

    def _exec_nonblock(
        self, commandlist: list[str], shell: bool = False, env: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start the transport; ClusterShell wants a process and descriptors that it may close."""
        try:
            process = connection.start_transport(commandlist)
        except OSError as error:
            self.worker.failure = f"cannot run {printable(commandlist[0])}: {error.strerror}"
            process = connection.start_transport(["true"])
        for name, stream, mode in (
            (self.worker.SNAME_STDERR, process.stderr, cluster_shell.E_READ),
            (self.worker.SNAME_STDOUT, process.stdout, cluster_shell.E_READ),
            (self.worker.SNAME_STDIN, process.stdin, cluster_shell.E_WRITE),
        ):
            assert stream is not None
            descriptor = os.dup(stream.fileno())
            os.set_blocking(descriptor, False)
            self.streams.set_stream(name, descriptor, mode, retain=mode == cluster_shell.E_READ)
        connection.close_pipes(process)
        return process

    def _close(self, abort: bool, timeout: bool) -> None:
        """End the transport with all that it has started; ClusterShell would wait for it without a limit."""
        until = time.monotonic() + (0.0 if abort else connection.END_SECONDS)
        while self.popen.poll() is None and time.monotonic() < until:
            time.sleep(_POLL_SECONDS)
        if self.popen.poll() is None:
            connection.kill_session(self.popen.pid)
        super()._close(abort, timeout)

    def _read(self, sname: str, size: int = 65536) -> bytes:
        part: bytes = super()._read(sname, size)
        self.worker.read_bytes[sname] += len(part)
        most = transport.MOST_NOISE_BYTES if sname == self.worker.SNAME_STDERR else self.worker.most_bytes
        if len(self.streams[sname].rbuf) + len(part) > transport.MOST_LINE_BYTES or (
            self.worker.read_bytes[sname] > most
        ):
            is_greeted = self.worker.most_bytes > transport.MOST_NOISE_BYTES
            self.worker.failure = transport.TOO_MUCH if is_greeted else transport.NOISY
            # Else the worker would end only when the other stream does.
            connection.kill_session(self.popen.pid)
            raise cluster_shell.EngineClientEOF
        return part


class _NodeWorker(cluster_shell.ExecWorker):  # type: ignore[misc]
    """One node; ClusterShell's word for what it schedules is worker."""

    SHELL_CLASS = _Client

    def __init__(self, target: Target, handler: cluster_shell.EventHandler, seconds: float) -> None:
        self.target = target
        self.read_bytes: Counter[str] = Counter()
        self.most_bytes = transport.MOST_NOISE_BYTES
        self.failure = ""
        # "@" begins no group here.
        node = cluster_shell.NodeSet(target.host, resolver=cluster_shell.RESOLVER_NOGROUP)
        super().__init__(node, handler, timeout=seconds, command="collector", stderr=True)


class _Node(Generic[T]):
    """What is known of a node while it is asked."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.kind = ""
        self.began_at = 0.0  # by the monotonic clock; 0: not yet
        self.is_greeted = False  # the greeting line has come
        self.answers = Answers(target.host)
        self.errors = b""
        self.noise = b""  # the last line before the greeting
        self.is_judged = False  # a process judges its answers now
        self.closed = ""  # why the node has ended since
        self.result: T | None = None
        self.failure = ""

    @property
    def is_done(self) -> bool:
        return self.result is not None or bool(self.failure)


class FanOut(cluster_shell.EventHandler, Generic[T]):  # type: ignore[misc]
    """One reading of many nodes; `run` returns when all have answered or failed.

    `on_progress` gets how many nodes are done, and how many there are. `keep` gets what a process of the
    executor concluded, and returns what is kept until all are done.
    """

    def __init__(
        self,
        targets: Sequence[Target],
        judge: Callable[[Answers], T | Missing],
        executor: Executor,
        on_progress: Callable[[int, int], None],
        options: FanOutOptions,
        keep: Callable[[T], T] = lambda concluded: concluded,
    ) -> None:
        super().__init__()
        self._keep = keep
        self._judge, self._executor, self._on_progress, self._options = judge, executor, on_progress, options
        self._nodes = {target.host: _Node[T](target) for target in targets}
        self._workers: dict[str, _NodeWorker] = {}
        self._first: dict[str, str] = {}  # by kind: the node that is asked first
        self._lists: dict[str, bytes] = {}  # by kind: the line of its questions
        self._patience: dict[Any, tuple[str, str]] = {}  # by timer: a kind, and the node that is first
        self._refused: list[_Node[T]] = []  # to be tried again
        self._pause = _RETRY_SECONDS
        self._retry: Any = None  # the timer
        self._waiting: defaultdict[str, list[str]] = defaultdict(list)  # nodes of a kind without a list
        at_once = max(1, min(options.fan_out, len(targets)))
        self._most_node_bytes = min(_MOST_NODE_BYTES, max(_LEAST_NODE_BYTES, _MOST_BYTES // at_once))
        self._done = 0
        self._port: Any = None
        self._is_stopped = False

    def stop(self) -> None:
        """End the reading early, from any thread: the nodes that have not answered fail."""
        self._is_stopped = True
        # The port does not exist yet, or may close at any moment.
        with contextlib.suppress(OSError, KeyError, AttributeError):
            self._port.msg_send(None)

    def run(self) -> tuple[dict[str, T], dict[str, str]]:
        """Return what was concluded by node, and why the others failed.

        ClusterShell runs in a thread of its own: KeyboardInterrupt, which Python raises in the main thread,
        would leave its lists of what it starts and ends in disorder. Ctrl-C stops the reading instead.
        """
        if not self._nodes:
            return {}, {}
        _be_quiet()
        with ThreadPoolExecutor(1, "fleet") as thread:
            try:
                reading = thread.submit(self._run)
                while not wait([reading], connection.INTERRUPT_SECONDS).done:
                    pass
                return reading.result()
            except KeyboardInterrupt:
                self._on_progress = lambda done, total: None
                self.stop()
                raise

    def _run(self) -> tuple[dict[str, T], dict[str, str]]:
        task: cluster_shell.Task = cluster_shell.task_self()
        for name, value in (("stdout_msgtree", False), ("stderr_msgtree", False), ("auto_tree", False)):
            task.set_default(name, value)
        task.set_info("fanout", allow_nodes(self._options.fan_out, _FILES_A_NODE))
        task.set_info("print_debug", lambda *_: None)
        self._port = task.port(handler=self)  # closed when the last node is done
        if self._is_stopped:
            self.stop()
        for node in self._nodes.values():
            self._connect(node, self._options.seconds)
        try:
            task.resume()
        except Exception:  # as when the progress cannot be written
            self._on_progress = lambda done, total: None
            for worker in self._workers.values():
                worker.abort()
            self._port.abort()
            raise
        finally:
            task.abort(kill=True)  # else ClusterShell keeps a task with open files for each thread
        found = {name: node.result for name, node in self._nodes.items() if node.result is not None}
        return found, {name: node.failure for name, node in self._nodes.items() if node.failure}

    def _connect(self, node: _Node[T], seconds: float) -> None:
        worker = _NodeWorker(node.target, self, seconds)
        self._workers[node.target.host] = worker
        cluster_shell.task_self().schedule(worker)
        worker.write(transport.collector_source())

    def _retry_later(self, node: _Node[T]) -> bool:
        """Connect to a node that refused once more, after a pause; return False if that was tried enough."""
        if self._is_stopped or self._pause > _LONGEST_RETRY_SECONDS:
            return False
        if time.monotonic() + self._pause >= node.began_at + self._options.seconds:
            return False
        node.errors = node.noise = b""
        self._refused.append(node)
        if self._retry is None:
            task = cluster_shell.task_self()
            task.set_info("fanout", max(min(_LEAST_FAN_OUT, task.info("fanout")), task.info("fanout") // 2))
            self._retry = task.timer(self._pause, self, autoclose=True)
            self._pause *= 2
        return True

    def _connect_again(self) -> None:
        refused, self._refused, self._retry = self._refused, [], None
        for node in refused:
            left = node.began_at + self._options.seconds - time.monotonic()
            if node.is_done:
                continue
            if left > 0:
                self._connect(node, left)
            else:
                self._end(node, failure=transport.REFUSED)

    # Events of ClusterShell

    def ev_pickup(self, worker: _NodeWorker, node: str) -> None:
        """Note when a node was asked first."""
        asked = self._nodes[worker.target.host]
        asked.began_at = asked.began_at or time.monotonic()

    def ev_read(self, worker: _NodeWorker, node: str, sname: str, msg: bytes) -> None:
        """Take a line of a node."""
        asked = self._nodes[worker.target.host]
        if asked.is_done or worker.failure:  # then this is the rest of what was too much
            return
        if sname == worker.SNAME_STDERR:
            asked.errors = (asked.errors + msg + b"\n")[-transport.MOST_ERRORS_BYTES :]
            return
        try:
            self._take(asked, msg)
        except ConnectionFailed as error:
            self._end(asked, failure=str(error))

    def _take(self, node: _Node[T], line: bytes) -> None:
        if not node.is_greeted:  # before, banners and shells may print
            node.is_greeted = line == GREETING.encode()
            node.noise = (
                b"" if node.is_greeted else line[-transport.MOST_ERRORS_BYTES :].strip() or node.noise
            )
            if node.is_greeted:
                self._workers[node.target.host].most_bytes = self._most_node_bytes
            return
        if not node.kind:
            greeting, _ = transport.unpack(line)
            node.kind = printable(str(greeting.get("kind")), 400) or "?"
            node.answers.is_root = greeting.get("is_root") is True
            self._begin(node)
            return
        node.answers.lines.append(line)
        if len(node.answers.lines) > len(node.answers.asked):
            raise ConnectionFailed(transport.GARBLED)  # it was not asked
        try:
            future = self._executor.submit(self._judge, node.answers)
        except BrokenExecutor as error:
            raise ConnectionFailed(_not_judged(error)) from None
        node.is_judged = True
        future.add_done_callback(lambda done: self._send(node.target.host, done))

    def _send(self, host: str, future: Future[T | Missing]) -> None:
        """Send what was concluded to the task; in a thread of the executor."""
        # After Ctrl-C the port may close at any moment.
        with contextlib.suppress(OSError, KeyError, AttributeError):
            self._port.msg_send((host, future))

    def ev_msg(self, port: Any, msg: tuple[str, Future[T | Missing]] | None) -> None:
        """Take what was concluded of a node; None: stop."""
        if msg is None:
            for node in reversed(self._nodes.values()):  # else the end of each would start one that waits
                if not node.is_done:
                    self._end(node, failure="the reading was stopped")
            return
        host, future = msg
        node = self._nodes[host]
        node.is_judged = False
        if node.is_done:
            return
        error = future.exception()
        if error is not None:
            self._end(node, failure=_not_judged(error))
            return
        found = future.result()
        if not isinstance(found, Missing):
            if node.kind not in self._lists:
                asked = chain.from_iterable(map(questions_of, node.answers.asked))
                questions = list(dict.fromkeys(asked))  # that of a long command was asked several times
                self._lists[node.kind] = pack_questions(questions)
            self._end(node, result=self._keep(found))
            return
        failure = found.failure or node.closed
        if not failure and len(node.answers.asked) >= transport.ROUNDS:
            failure = "its answers change with every question"
        count = sum(len(questions_of(line)) for line in node.answers.asked) + len(found.questions)
        if not failure and count > transport.MOST_QUESTIONS:
            failure = transport.TOO_MANY_FILES
        if failure:
            self._end(node, failure=failure)
        else:
            self._ask(node, pack_questions(found.questions))

    def ev_close(self, worker: _NodeWorker, timedout: bool) -> None:
        """Note why a node has ended before it was judged."""
        node = self._nodes[worker.target.host]
        if node.is_done:
            return
        if worker.failure:
            failure = worker.failure
        elif timedout:
            failure = f"it did not answer within {self._options.seconds:g} s"
        else:
            failure = transport.why_failed(node.errors, node.target, node.noise)
            if failure == transport.REFUSED and not node.is_greeted and self._retry_later(node):
                return
        if node.is_judged:  # perhaps nothing is missing
            node.closed = failure
        else:
            self._end(node, failure=failure)

    def ev_timer(self, timer: Any) -> None:
        """Try the nodes again that refused, or let another node of a kind go first: one takes too long."""
        if timer is self._retry:
            self._connect_again()
            return
        kind, host = self._patience.pop(timer)
        if self._first.get(kind) == host and kind not in self._lists:
            self._release(kind)

    # Rounds

    def _begin(self, node: _Node[T]) -> None:
        if node.kind in self._lists:
            self._ask(node, self._lists[node.kind])
        elif node.kind in self._first:
            self._waiting[node.kind].append(node.target.host)
        else:
            self._first[node.kind] = node.target.host
            patience = min(_FIRST_SECONDS, self._options.seconds / 4)
            timer = cluster_shell.task_self().timer(patience, self, autoclose=True)
            self._patience[timer] = node.kind, node.target.host
            self._ask(node, pack_questions([]))

    def _ask(self, node: _Node[T], line: bytes) -> None:
        node.answers.asked.append(line)
        self._workers[node.target.host].write(line)

    def _end(self, node: _Node[T], result: T | None = None, failure: str = "") -> None:
        node.result, node.failure = result, failure
        node.answers = Answers(node.target.host)  # they take most of the memory
        self._done += 1
        self._on_progress(self._done, len(self._nodes))
        worker = self._workers[node.target.host]
        if failure:
            worker.abort()  # it may never end by itself
        else:
            worker.set_write_eof()
        if node.kind in self._lists or self._first.get(node.kind) == node.target.host:
            self._release(node.kind)
        if self._done == len(self._nodes):
            self._port.abort()

    def _release(self, kind: str) -> None:
        """Ask the nodes that wait for a list; without a list the next one goes first."""
        waiting, self._waiting[kind] = self._waiting[kind], []
        if self._is_stopped:
            return
        if kind not in self._lists:
            self._first.pop(kind, None)
        for host in waiting:
            if not self._nodes[host].is_done:
                self._begin(self._nodes[host])


def _be_quiet() -> None:
    """Keep ClusterShell from printing warnings, such as of a node that reads nothing."""
    logger = logging.getLogger("ClusterShell")
    logger.propagate = False
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())


def _not_judged(error: BaseException) -> str:
    return f"its answers could not be judged: {printable(str(error), 200)}"
