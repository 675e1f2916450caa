"""Ask many nodes at once: each gets a connection, in a thread of its own, and rounds of questions.

The answers are judged in other processes, by a function of the caller: it returns what it concludes, or which
questions are missing. Of each kind of node one is asked first; the others get its list of questions, so that
most nodes need one round.
"""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Executor, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from itertools import chain
from typing import Generic, TypeVar

from probes.base.frozen import frozen
from probes.base.text import printable
from probes.host.remote import transport
from probes.host.remote.connection import INTERRUPT_SECONDS, Connection, Connections
from probes.host.remote.remote_host import (
    Answers,
    Missing,
    QuestionLists,
    kind_of,
    pack_questions,
    questions_of,
)
from probes.host.remote.transport import REFUSED, SILENT, ConnectionFailed, Target

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
_FILES_A_NODE = 5
_FIRST_SECONDS = 15.0  # then the next node of a kind goes first
# An ssh server refuses connections while 10 others log in (its MaxStartups), and so does a jump host. The
# pause before the next try doubles each time, and half as many are tried at once.
_RETRY_SECONDS, _LONGEST_RETRY_SECONDS = 0.5, 8.0
_LEAST_LOGINS = 4
_STOPPED = "the reading was stopped"


@frozen
class FanOutOptions:
    """How many nodes at once, and for how long each."""

    fan_out: int
    seconds: float


class _Deadline:
    """When a node has to have answered: what gdrtop itself waits for meanwhile is not its time."""

    def __init__(self, seconds: float) -> None:
        self.until = time.monotonic() + seconds

    @contextmanager
    def put_off(self) -> Iterator[None]:
        """Move the deadline by the time that the block takes."""
        begin = time.monotonic()
        yield
        self.until += time.monotonic() - begin


class FanOut(Generic[T]):
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
        self._targets, self._keep = targets, keep
        self._judge, self._executor, self._on_progress = judge, executor, on_progress
        self._seconds, self._fan_out = options.seconds, max(1, min(options.fan_out, len(targets)))
        self._most_node_bytes = min(_MOST_NODE_BYTES, max(_LEAST_NODE_BYTES, _MOST_BYTES // self._fan_out))
        self._connections = Connections()
        self._changed = threading.Condition()  # of what follows
        self._most_logins, self._logins = self._fan_out, 0  # at once
        self._lists = QuestionLists(min(_FIRST_SECONDS, self._seconds / 4), self._changed)
        self._found: dict[str, T] = {}
        self._failures: dict[str, str] = {}

    def stop(self) -> None:
        """End the reading early, from any thread: the nodes that have not answered fail."""
        self._lists.stop()
        self._connections.close()

    @property
    def waited_for(self) -> list[str]:
        """The nodes that have neither answered nor failed."""
        with self._changed:
            done = {*self._found, *self._failures}
        return [target.host for target in self._targets if target.host not in done]

    def stopped(self) -> tuple[dict[str, T], dict[str, str]]:
        """Return what `run` had concluded when it was interrupted; the nodes that had not answered failed."""
        return self._found, {**dict.fromkeys(self.waited_for, _STOPPED), **self._failures}

    def run(self) -> tuple[dict[str, T], dict[str, str]]:
        """Return what was concluded by node, and why the others failed."""
        threads = ThreadPoolExecutor(allow_nodes(self._fan_out, _FILES_A_NODE), "fleet")
        try:
            reading = {threads.submit(self._read, target) for target in self._targets}
            while reading:
                done, reading = wait(reading, INTERRUPT_SECONDS, FIRST_EXCEPTION)
                for each in done:
                    each.result()  # raises what `on_progress` did, as when it cannot be written
        except BaseException:
            self._on_progress = lambda done, total: None
            self.stop()
            raise
        finally:
            threads.shutdown(cancel_futures=True)
        return self._found, self._failures

    def _read(self, target: Target) -> None:
        """Ask a node until it is judged."""
        deadline, host, failure, found = _Deadline(self._seconds), target.host, "", None
        try:
            with closing(self._connected(target, deadline)) as connection:
                connection.most_bytes = self._most_node_bytes
                found = self._asked(connection, deadline)
        except ConnectionFailed as error:
            failure = str(error)
            if failure == SILENT and time.monotonic() >= deadline.until:
                failure = f"it did not answer within {self._seconds:g} s"
        with self._changed:
            if found is None:
                self._failures[host] = _STOPPED if self._lists.is_stopped else failure
            else:
                self._found[host] = self._keep(found)
            self._lists.end(host)
            self._on_progress(len(self._found) + len(self._failures), len(self._targets))

    def _connected(self, target: Target, deadline: _Deadline) -> Connection:
        """Connect to a node; try again after a pause while it refuses, because others log in there."""
        pause = _RETRY_SECONDS
        while True:
            with deadline.put_off(), self._changed:
                self._changed.wait_for(lambda: self._lists.is_stopped or self._logins < self._most_logins)
                self._logins += 1
                most = self._most_logins
            try:
                return Connection(target, self._connections, deadline.until, float("inf"))
            except ConnectionFailed as error:
                is_over = pause > _LONGEST_RETRY_SECONDS or time.monotonic() + pause >= deadline.until
                if str(error) != REFUSED or is_over:
                    raise
            finally:
                with self._changed:
                    self._logins -= 1
                    self._changed.notify_all()
            with self._changed:
                if self._most_logins == most:  # else another node that was refused has halved it
                    self._most_logins = max(min(_LEAST_LOGINS, most), most // 2)
                self._changed.wait_for(lambda: self._lists.is_stopped, pause)
            pause *= 2

    def _asked(self, connection: Connection, deadline: _Deadline) -> T:
        """Return what was concluded of a node."""
        kind, host = kind_of(connection.greeting), connection.target.host
        answers = Answers(host, connection.greeting.get("is_root") is True)
        with deadline.put_off():
            line = self._lists.first(kind, host)
        count = 0
        for _ in range(transport.ROUNDS):
            count += len(questions_of(line))
            if count > transport.MOST_QUESTIONS:
                raise ConnectionFailed(transport.TOO_MANY_FILES)
            answers.asked.append(line)
            answers.lines.append(connection.exchange(line, deadline.until))
            try:
                with deadline.put_off():
                    found = self._executor.submit(self._judge, answers).result()
            except Exception as error:
                why = printable(str(error), 200)
                raise ConnectionFailed(f"its answers could not be judged: {why}") from None
            if not isinstance(found, Missing):
                self._lists.add(kind, chain.from_iterable(map(questions_of, answers.asked)))
                return found
            if found.failure:
                raise ConnectionFailed(found.failure)
            line = pack_questions(found.questions)
        raise ConnectionFailed("its answers change with every question")
