"""Keep the last hours of a node in a ring on disk, and save what surrounds an event.

The ring is made of recordings of a minute each, which begin with every answer. So a process that is killed
loses at most the moment that it was writing, and each segment can be replayed on its own. Saved recordings
and ring together never exceed the size limit.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Generator, Iterable, Iterator
from enum import Enum
from typing import Any

from probes.base.evidence import Severity
from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Maybe, Unknown
from probes.host.protocol import Host
from probes.host.rdma_resources import RdmaResources
from probes.live.model.sample import LiveEvent, LiveSample
from probes.recording.archive import MAX_MOMENTS, ArchiveWriter, Recording, read_archive
from probes.recording.format import PackedAnswer, Question, RecordingError
from probes.recording.recording_host import Moment, RecordingHost
from probes.recording.redaction.identifiers import PATH_QUESTIONS, Identifiers
from tui.commands.watch.ring_directory import OwnFile, RingDirectory, RingError, SegmentFile
from tui.files.new_file import chunks_of, why
from tui.runtime.recorder import Recorded, Recorder, manifest_of

SEGMENT_SECONDS = 60.0
LONGEST_SAVED_SECONDS = 900.0  # further events start another recording
_SAVED_AT_ONCE = 10  # moments each second: all at once would delay the next samples
_RETRY_SECONDS = 10.0
_SLACK_BYTES = 1 << 20  # a moment and the file system's own blocks
_MOST_ANSWERS = 1 << 17  # more than any node has; then all are read again
_PROCESS_PATH = re.compile(r"/proc/([0-9]{1,10})(?:/.*)?", re.S)
_BY_PROCESS = ("process_usage", "thread_names")
_ORDER = tuple(Severity)  # the most severe first

_SAME_BOOT_SECONDS = 10.0


class NoticeKind(Enum):
    """What `gdrtop watch` itself reports; the value stands in JSON."""

    STARTED = "watch-started"
    SAVED = "saved"
    NOT_SAVED = "not-saved"
    PAUSED = "ring-paused"
    RESUMED = "ring-resumed"
    NO_HISTORY = "history-not-kept"
    HOOK_FAILED = "hook-failed"
    ENDED = "watch-ended"


@frozen
class Notice:
    """A report about the ring, not about the node."""

    at: float  # seconds since 1970
    kind: NoticeKind
    text: str  # a sentence without a period
    explanation: str = ""
    file: str = ""  # of SAVED


@frozen
class Limits:
    """How much is kept, and what is saved."""

    keep_seconds: float = 6 * 3600.0
    max_bytes: int = 200 << 20
    severity: Severity = Severity.WARNING  # events of this severity, or more severe ones, are saved
    before_seconds: float = 120.0
    after_seconds: float = 60.0
    redact: bool = False  # the saved recordings


class RingRecorder:
    """The ring and the recordings that are saved from it; read the node through `host`."""

    def __init__(
        self, host: Host, directory: RingDirectory, limits: Limits, tell: Callable[[Notice], object]
    ) -> None:
        self.host = RecordingHost(host, self._add)
        self.needs_probe = False  # the next reading must be of the whole node
        self._node = host
        self._directory = directory
        self._limits = limits
        self._tell = tell
        self._segment: SegmentFile | None = None
        self._writer: ArchiveWriter | None = None
        self._identifiers = Identifiers()
        self._last_at = 0.0  # seconds since 1970
        self._segment_began = 0.0  # by the monotonic clock
        self._retry_at: float | None = None  # by the monotonic clock; not None while the ring is paused
        self._paused_for = ""  # the reason that was reported
        self._event: LiveEvent | None = None  # the first one of the recording to be saved
        self._save_at = 0.0
        self._saving: Iterator[None] | None = None
        self._saving_bytes = 0  # what the recording that is being saved will have
        self._segment_bytes = limits.max_bytes // 8

    # Each second

    def is_save_due(self, sample: LiveSample) -> bool:
        """Return whether the time after an event has passed, so that a recording ends with this moment."""
        return self._saving is None and self._event is not None and sample.taken_at >= self._save_at

    def end_moment(self, sample: LiveSample) -> None:
        """Write the moment to the ring, and save a recording if an event's time has passed."""
        self.host.end_moment()
        # The most severe one of a second gives the recording its name.
        for event in sorted(sample.events, key=lambda event: _ORDER.index(event.severity)):
            if _ORDER.index(event.severity) > _ORDER.index(self._limits.severity):
                continue
            if self._event is None:
                self._event = event
            latest = self._event.at + LONGEST_SAVED_SECONDS - self._limits.before_seconds
            self._save_at = min(event.at + self._limits.after_seconds, latest)
        if self._event is not None and self.is_save_due(sample):
            self._saving = self._save(self._event, sample.taken_at)
            self._event = None
        self._save_some(_SAVED_AT_ONCE)

    def close(self) -> None:
        """Save what an event still waits for, and end the segment."""
        self._save_some()
        if self._event is not None:
            self._saving = self._save(self._event, self._node.wall_clock())
            self._event = None
            self._save_some()
        self._end_segment()

    # The ring

    def _add(self, moment: Moment) -> None:
        now = self._node.monotonic()
        if self._retry_at is not None and now < self._retry_at:
            return
        try:
            self._write(moment, now)
        except Exception as error:
            what = printable(f"{type(error).__name__}: {error}", 200)  # an answer of an unexpected kind
            if isinstance(error, (OSError, RingError)):
                what = why(error) if isinstance(error, OSError) else str(error)
            self._pause(moment.at, now, f"the ring cannot be written: {what}")

    def _write(self, moment: Moment, now: float) -> None:
        if not self._directory.is_in_place:
            removed = (
                f"{printable(self._directory.path)} was removed, along with the ring and the saved recordings"
            )
            try:
                self._directory.open_again()
            except RingError as error:
                self._pause(moment.at, now, f"{removed}; the ring cannot be written: {error}")
                return
            if self._retry_at is None:
                self._pause(moment.at, now, removed)
        segment = self._segment
        is_due = now - self._segment_began >= SEGMENT_SECONDS or now < self._segment_began
        if segment is not None and (is_due or segment.size_bytes >= self._segment_bytes):
            self._end_segment()
        if self._directory.free_bytes() < _SLACK_BYTES:
            self._pause(moment.at, now, "the disk is almost full, so the ring is not being written")
            return
        self._last_at = moment.at
        if self._writer is None or not self._writer.add(self._identifiers.apply(moment)):
            self._begin_segment(moment, now)
        if self._retry_at is not None:
            self._retry_at, self._paused_for = None, ""
            self._tell(Notice(moment.at, NoticeKind.RESUMED, "writing to the ring resumed"))

    def _begin_segment(self, moment: Moment, now: float) -> None:
        """Begin a segment with the newest answer to every question."""
        self._end_segment()
        self._make_room(moment.at)
        answers = self.host.answers(self._living())
        if len(answers) > _MOST_ANSWERS:
            self.host.answers(lambda _: False)
            self.needs_probe = True
        self._identifiers = Identifiers()
        first = self._identifiers.apply(Moment(0, moment.at, True, moment.clock, answers))
        segment = self._directory.begin_segment(moment.at)
        self._segment, self._segment_began = segment, now
        writer = ArchiveWriter(segment.write)
        writer.begin(manifest_of(first, self._node.origin, self._identifiers))
        if not writer.add(first):
            raise OSError(0, "one reading of this node is too large to record")
        self._writer = writer

    def _end_segment(self) -> None:
        """Close the segment; what has no end, because the disk is full, is read as a damaged one."""
        if self._segment is not None:
            if self._writer is not None:
                with contextlib.suppress(OSError):
                    self._writer.end(self._last_at, self._identifiers.counts)
            self._segment.close()
        self._segment = self._writer = None

    def _pause(self, at: float, now: float, reason: str) -> None:
        """Stop writing for a while; report each reason once."""
        segment = self._segment
        self._end_segment()
        if segment is not None and not segment.size_bytes:
            self._directory.remove(segment.name)
        if reason != self._paused_for:
            self._tell(Notice(at, NoticeKind.PAUSED, reason))
        self._paused_for = reason
        self._retry_at = now + _RETRY_SECONDS

    def _make_room(self, at: float) -> None:
        """Delete the oldest segments beyond the limits of time and size."""
        segments = self._directory.segments()
        most = self._limits.max_bytes - self._segment_bytes - self._saving_bytes - _SLACK_BYTES
        size = sum(file.size_bytes for file in (*segments, *self._directory.saved()))
        for segment, newer_seconds in _with_newer_seconds(segments, at):
            if newer_seconds <= self._limits.keep_seconds and size <= most:
                return
            self._directory.remove(segment.name)
            size -= segment.size_bytes

    def _living(self) -> Callable[[Question], bool]:
        """Return whether a question is about the node or a living process; ended ones would add up."""
        names = self._node.names("/proc")
        if isinstance(names, Unknown):
            return lambda _: True
        resources = self.host.answers(lambda _: True).get(Question("rdma_resources"))
        pids = {name for name in names if name.isdecimal()}
        if isinstance(resources, RdmaResources):  # it names threads, which are not listed in /proc
            for objects in (resources.queue_pairs, resources.regions, resources.domains, resources.contexts):
                pids.update(str(held.pid) for held in objects if held.pid is not None)

        def keeps(question: Question) -> bool:
            if question.kind in _BY_PROCESS:
                return question.subject[0] in pids
            matched = (
                _PROCESS_PATH.fullmatch(question.subject[0]) if question.kind in PATH_QUESTIONS else None
            )
            return matched is None or matched[1] in pids

        return keeps

    # Saved recordings

    def _save_some(self, most: int = MAX_MOMENTS) -> None:
        """Go on with a recording that is being saved."""
        for _ in range(most):
            if self._saving is None:
                return
            try:
                next(self._saving)
            except StopIteration:
                self._saving = None

    def _save(self, event: LiveEvent, end: float) -> Iterator[None]:
        """Save the moments around an event one by one, and report the file or why there is none."""
        self._end_segment()
        try:
            saved = yield from self._save_between(event, event.at - self._limits.before_seconds, end)
        except (RecordingError, OSError) as error:
            reason = why(error) if isinstance(error, OSError) else str(error)
            text = f'no recording was saved for "{event.text}": {printable(reason)}'
            kept = f"The ring in {printable(self._directory.path)} still has it for a while."
            self._tell(Notice(self._node.wall_clock(), NoticeKind.NOT_SAVED, text, kept))
            return
        text = f'saved {saved} around "{event.text}"'
        privacy = saved.privacy("watch")
        self._tell(Notice(self._node.wall_clock(), NoticeKind.SAVED, text, privacy, saved.path))

    def _save_between(self, event: LiveEvent, begin: float, end: float) -> Generator[None, None, Recorded]:
        segments = [
            segment
            for segment, ended_at in _with_ends(self._directory.segments(), end)
            if segment.began_at <= end and ended_at + 1 >= begin
        ]
        half = self._limits.max_bytes // 2
        expected = sum(segment.size_bytes for segment in segments)
        if self._directory.free_bytes() < expected + _SLACK_BYTES:
            raise OSError(0, "the disk is almost full")
        self._forget_saved(max(0, half - expected))
        self._saving_bytes = expected
        self._make_room(end)
        path = self._directory.path_of(self._directory.new_name(event.at, event.kind.value))
        recorder = Recorder(self._node, path, self._limits.redact, event.at)
        boot = self._node.wall_clock() - self._node.monotonic()
        try:
            for moment in _moments_between(self._read(segments), begin, end, boot):
                if recorder.size_bytes < half - _SLACK_BYTES:
                    recorder.add(moment)
                yield
            saved = recorder.finish()
        finally:
            recorder.drop()
            self._saving_bytes = 0
        assert saved is not None
        return saved

    def _read(self, segments: list[OwnFile]) -> Iterator[Recording]:
        for segment in segments:
            try:
                yield read_archive(chunks_of(self._directory.path_of(segment.name)))
            except RecordingError:  # a killed process had written nothing whole
                continue

    def _forget_saved(self, most_bytes: int) -> None:
        """Delete the oldest saved recordings until the rest has this size."""
        saved = self._directory.saved()
        size = sum(file.size_bytes for file in saved)
        for file in saved:
            if size <= most_bytes:
                return
            self._directory.remove(file.name)
            size -= file.size_bytes


def _with_ends(segments: list[OwnFile], now: float) -> Iterator[tuple[OwnFile, float]]:
    """Yield each segment with the time at which the next one begins."""
    ends = [segment.began_at for segment in segments[1:]]
    yield from zip(segments, [*ends, now], strict=False)


def _with_newer_seconds(segments: list[OwnFile], now: float) -> list[tuple[OwnFile, float]]:
    """Return each segment with the length of the newer ones together.

    By their lengths, not by the time of day: a clock that is set forward must not make all of them old.
    """
    found: list[tuple[OwnFile, float]] = []
    newer = 0.0
    for segment, ended_at in reversed(list(_with_ends(segments, now))):
        found.append((segment, newer))
        newer += min(max(0.0, ended_at - segment.began_at), SEGMENT_SECONDS)
    return found[::-1]


def _moments_between(
    recordings: Iterable[Recording], begin: float, end: float, boot: float
) -> Iterator[Moment]:
    """Yield the moments from `begin` to `end`, in seconds since 1970; the first has every answer so far.

    `boot`: when the monotonic clock was 0, in seconds since 1970. Moments before the node was booted, or
    before its time was set, are left out, because rates across them would be wrong.
    """
    answers: dict[Question, Maybe[Any]] = {}
    count = 0
    for recording in recordings:
        changed: list[dict[Question, Maybe[Any]]] = [{} for _ in recording.moments]
        for question, given in recording.answers.items():
            for number, answer in given:
                if number < len(changed):  # not of a moment that is damaged
                    changed[number][question] = answer
        for head, new in zip(recording.moments, changed, strict=True):
            different = {
                question: answer
                for question, answer in new.items()
                if question not in answers or answers[question] != answer
            }
            answers.update(different)
            is_of_boot = not head.clock or abs(head.at - head.clock[-1] - boot) < _SAME_BOOT_SECONDS
            if begin <= head.at <= end and is_of_boot:
                shown = {
                    question: answer.answer() if isinstance(answer, PackedAnswer) else answer
                    for question, answer in (different if count else answers).items()
                }
                yield Moment(count, head.at, head.probed or not count, head.clock, shown)
                count += 1
