"""Record a node to a file."""

from __future__ import annotations

import os
import re
import threading
import time

from probes.base.frozen import frozen
from probes.base.origin import Origin, Source
from probes.base.text import plural, printable
from probes.base.unknown import known
from probes.facts.system.platform import PlatformFacts
from probes.host.protocol import Host
from probes.recording.archive import ArchiveWriter, Manifest
from probes.recording.format import FORMAT_VERSION, Question, RecordingError
from probes.recording.recording_host import Moment, RecordingHost
from probes.recording.redaction.identifiers import Identifiers
from probes.recording.redaction.tokens import OTHER
from tui.files.new_file import NewFile, shown_path
from tui.files.version import version

_HOST_QUESTIONS = (Question("file", ("/proc/sys/kernel/hostname",)), Question("file", ("/etc/hostname",)))


@frozen
class Recorded:
    """A finished recording."""

    path: str
    moments: int
    size_bytes: int
    redacted: bool
    identifiers: dict[str, int]  # distinct ones, by kind

    def __str__(self) -> str:
        count = f"{self.moments} moment{'s' if self.moments > 1 else ''}"
        return f"{shown_path(self.path)}: {count}, {self.size_bytes / 1000:.0f} kB"

    def privacy(self, command: str = "record") -> str:
        """Return a sentence on the identifiers in the file, which gdrtop `command` has written."""
        kinds = ", ".join(_counted(count, kind) for kind, count in self.identifiers.items())
        if not kinds:
            return "The recording contains no identifiers."
        if self.redacted:
            return f"Identifiers replaced with tokens: {kinds}."
        return f"The recording contains {kinds}. Use gdrtop {command} --redact to replace them."


def _counted(count: int, kind: str) -> str:
    """Return "1 GUID", "2 IP addresses" or "8 unknown words"."""
    noun = "unknown word" if kind == OTHER else kind
    return plural(count, noun, f"{noun}es" if noun.endswith("s") else "")


class Recorder:
    """Record what a host answers; `finish` may be called from any thread, even while a read hangs."""

    def __init__(self, host: Host, path: str, redact: bool = False, open_at: float | None = None) -> None:
        self.host = RecordingHost(host, self.add)
        self._origin = host.origin
        self._open_at = open_at
        self._identifiers = Identifiers(redact)
        self._lock = threading.Lock()
        self._file = NewFile(path, RecordingError)
        self._writer = ArchiveWriter(self._file.write)
        self._last_at = 0.0
        self._closed = False
        self.is_full = False

    @property
    def moments(self) -> int:
        """Return the number of moments written so far."""
        return self._writer.moments

    @property
    def size_bytes(self) -> int:
        """Return the size of the file so far, in bytes."""
        return self._file.bytes_written

    def add(self, moment: Moment) -> None:
        """Write a moment, unless the recording has ended or is full."""
        with self._lock:
            if self._closed or self.is_full:
                return
            try:
                moment = self._identifiers.apply(moment)
                if not self._writer.moments:
                    self._writer.begin(manifest_of(moment, self._origin, self._identifiers, self._open_at))
                self.is_full = not self._writer.add(moment)
                self._last_at = moment.at
            except RecordingError:
                raise
            except Exception as error:  # an answer of an unexpected kind
                what = printable(f"{type(error).__name__}: {error}", 200)
                raise RecordingError(f"{shown_path(self._file.path)}: recording failed: {what}") from error

    def finish(self) -> Recorded | None:
        """Move the file to its final name; None if that was done before. RecordingError if it fails."""
        with self._lock:
            if self._closed:
                return None
            self._closed = True
            try:
                if not self._writer.moments:
                    raise RecordingError("nothing was recorded: the recording ended before the first reading")
                self._file.trim()
                counts = self._identifiers.counts
                self._writer.end(self._last_at, counts)
                self._file.keep()
            finally:
                self._file.drop()
        return Recorded(
            self._file.path, self._writer.moments, self._file.bytes_written, self._identifiers.redact, counts
        )

    def drop(self) -> None:
        """Discard the recording and delete its file."""
        with self._lock:
            self._closed = True
            self._file.drop()


def manifest_of(
    moment: Moment, origin: Origin, identifiers: Identifiers, open_at: float | None = None
) -> Manifest:
    """Return the manifest of a recording that begins with this moment."""
    answers = (moment.answers.get(question) for question in _HOST_QUESTIONS)
    name = next((answer for answer in answers if isinstance(answer, bytes)), b"")
    host = name.decode("utf-8", "replace").strip().partition("\n")[0][:253]
    source, label = origin.source.value, identifiers.label(origin.label)
    return Manifest(FORMAT_VERSION, version(), host, moment.at, source, label, identifiers.redact, open_at)


def default_path(platform: object, at: float) -> str:
    """Return a path of host and time (UTC) in the current directory; RecordingError if that is gone."""
    try:
        directory = os.getcwd()
    except OSError:
        raise RecordingError(
            "the current directory no longer exists; start gdrtop in another directory"
        ) from None
    host = known(platform.hostname, "") if isinstance(platform, PlatformFacts) else ""
    host = re.sub(r"[^A-Za-z0-9.-]", "_", host).strip(".")[:64] or "node"
    name = f"gdrtop-{host}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime(at))}.tar.gz"
    return os.path.join(directory, name)


def refuse_recorded(host: Host) -> None:
    """Raise RecordingError if the host is itself a recording."""
    if host.origin.source is Source.RECORDED:
        raise RecordingError("this is already a recording; copy its file instead")
