"""Follow the growing files of one log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from probes.base.frozen import frozen
from probes.base.unknown import Unknown
from probes.host.protocol import Host
from probes.live.processes.job_logs import LogPath
from probes.nccl.log.collect import Collector
from probes.nccl.log.facts import LogFacts, LogFile, LogVerdict
from probes.nccl.log.reader import LogReader
from probes.nccl.log.verdict import verdict_of
from tui.files.log_files import short_names

STEP_BYTES = 8 << 20  # read at once: between two steps, the screen shows how far it is
_PIECE_BYTES = 1 << 20
_TAIL_BYTES = 64
_COMPRESSED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd")


@frozen
class Followed:
    """What was read so far."""

    facts: LogFacts
    verdict: LogVerdict
    size_bytes: int  # of all files
    read_bytes: int
    restarts: int = 0  # a file became shorter or was replaced, and was read again from its start

    @property
    def is_behind(self) -> bool:
        """Whether there is more to read at once."""
        return self.read_bytes < self.size_bytes


class _File:
    """One file and how far it was read."""

    def __init__(self, path: LogPath, name: str, collector: Collector) -> None:
        self.path, self.name = path, name
        self.size = path.size_bytes
        self.offset = 0
        self.error = ""
        self.identity = ""
        self.tail = b""  # the last bytes before the offset
        self.reader = LogReader(collector)
        self.reader.begin(name)

    @property
    def is_of_process(self) -> bool:
        """Whether it was found before and has no name outside the process."""
        return bool(self.identity) and self.path.path.startswith("/proc/")

    def feed(self, content: bytes) -> None:
        """Read the next bytes."""
        self.reader.feed(content)
        self.offset += len(content)
        self.tail = (self.tail + content)[-_TAIL_BYTES:]

    @property
    def summary(self) -> LogFile:
        """The file as far as it was read."""
        return replace(self.reader.so_far(), error=self.error)


class LogFollower:
    """Reads what is new in the files of one log; use it in one thread at a time."""

    def __init__(self, host: Host, paths: Sequence[LogPath]) -> None:
        self._host, self._paths = host, tuple(paths)
        self._restarts = 0
        self._begin()

    def _begin(self) -> None:
        self._collector = Collector()
        names = short_names([path.shown for path in self._paths])
        self._files = [_File(path, names[path.shown], self._collector) for path in self._paths]

    def advance(self) -> Followed:
        """Read at most STEP_BYTES of what is new, and return all that was read so far.

        If a file became shorter or was replaced, all files are read again: what it said before may be of an
        earlier run.
        """
        if not self._read_new():
            self._restarts += 1
            self._begin()
            self._read_new()
        return self._followed()

    def _read_new(self) -> bool:
        """Read at most STEP_BYTES; return False if a file is not the one that was read before."""
        left = STEP_BYTES
        for file in self._files:
            while left > 0:
                found = self._next(file, min(left, _PIECE_BYTES))
                if found is None:
                    return False
                if not found:
                    break
                file.feed(found)
                left -= len(found)
        return True

    def _next(self, file: _File, limit: int) -> bytes | None:
        """Return new bytes; None if the file is not the one that was read before."""
        before = len(file.tail)
        found = file.path.part(self._host, file.offset - before, limit + before)
        if isinstance(found, Unknown) or (file.identity != found.file and file.is_of_process):
            # The pid may be that of another process now.
            file.error = str(found) if isinstance(found, Unknown) else "the process has exited"
            file.size = file.offset
            return b""
        file.error = ""
        file.size = found.size_bytes
        is_same = not file.identity or found.file == file.identity
        if not is_same or found.content[:before] != file.tail:
            return None
        file.identity = found.file
        content = found.content[before:]
        if not file.offset and content.startswith(_COMPRESSED):
            file.error = "it is compressed; read it with gdrtop nccl-log"
            file.size = 0
            return b""
        if not content:  # a file that shrinks while it is read
            file.size = file.offset
        return content

    def _followed(self) -> Followed:
        files = tuple(file.summary for file in self._files)
        facts = self._collector.facts(files)
        return Followed(
            facts,
            verdict_of(facts),
            sum(file.size for file in self._files),
            sum(file.offset for file in self._files),
            self._restarts,
        )
