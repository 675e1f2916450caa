"""Facts of processes that do not change: program, environment and libraries, each read once."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable

from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.jobs.processes import Process, read_process
from probes.host.probe_thread import start_probe
from probes.host.protocol import Host
from probes.live.processes.tracked_process import Key

WORKERS = 4  # threads; a process whose files hang keeps one of them busy
PATIENCE_SECONDS = 0.3  # for all new processes of one sample


class ProcessCache:
    """Read programs, environments and libraries in threads, so that a hung process delays only itself."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._read: dict[Key, Maybe[Process]] = {}
        self._queue: deque[Key] = deque()
        self._asked: set[Key] = set()

    def update(self, host: Host, keys: Iterable[Key]) -> None:
        """Read the new ones of these processes, and forget all others."""
        wanted = set(keys)
        for key in set(self._asked) - wanted:
            self._asked.discard(key)
            self._read.pop(key, None)
        new = sorted(wanted - self._asked)
        self._queue.extend(new)
        self._asked.update(new)
        if not self._queue:
            return
        until = self._clock() + PATIENCE_SECONDS
        workers = [
            start_probe(host, f"live processes {number}", lambda: self._work(host))
            for number in range(min(WORKERS, len(self._queue)))
        ]
        for worker in workers:
            worker.wait(max(0.0, until - self._clock()))

    def get(self, key: Key) -> Maybe[Process]:
        """Return the process; TIMED_OUT: not read yet."""
        found = self._read.get(key)
        return Unknown(Reason.TIMED_OUT, f"/proc/{key[0]}", "not read yet") if found is None else found

    @property
    def unread(self) -> int:
        """How many processes have no answer yet."""
        return len(self._asked) - len(self._read)

    def _work(self, host: Host) -> Maybe[None]:
        while self._queue:
            try:
                key = self._queue.popleft()
            except IndexError:  # another worker was faster
                break
            if key not in self._asked:
                continue
            try:
                process = read_process(host, key[0])
            except Exception as error:  # untrusted files must not end the worker
                process = Unknown(Reason.MALFORMED, f"/proc/{key[0]}", type(error).__name__)
            if key in self._asked:
                self._read[key] = process
        return None
