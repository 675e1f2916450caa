"""A host that answers from a recording, at one of its moments."""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from probes.base.origin import Origin, Source
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown
from probes.host.protocol import FileRange, HostBase, KernelMessage
from probes.host.usage import ProcessUsage
from probes.recording.archive import Manifest, Recording
from probes.recording.format import PackedAnswer, Question

_UNPACKED_BYTES = 4 << 20  # of packed answers, whose objects take ten times as much memory


def origin_of(manifest: Manifest) -> Origin:
    """Return the origin RECORDED with node and time; a node that was not live stays marked."""
    live = manifest.source in (Source.LIVE.value, Source.REMOTE.value)
    name = (manifest.host or "?") if live else f"{manifest.source.upper()} {manifest.label}"
    began = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(manifest.began_at))
    redacted = ", redacted" if manifest.redacted else ""
    return Origin(Source.RECORDED, f"{name}, {began}{redacted}")


class ReplayHost(HostBase):
    """A recorded node; answers that are not in the recording are "not recorded"."""

    def __init__(self, recording: Recording) -> None:
        self.origin = origin_of(recording.manifest)
        self.recording = recording
        self._moment = recording.opening
        self._clock_at = 0
        self._lock = threading.Lock()
        self._unpacked: OrderedDict[PackedAnswer, Maybe[Any]] = OrderedDict()
        self._unpacked_bytes = 0

    @property
    def moment(self) -> int:
        """Return the current moment, counted from 0."""
        return self._moment

    def seek(self, moment: int) -> None:
        """Go to a moment, limited to the first and last one."""
        with self._lock:
            self._moment = max(0, min(moment, len(self.recording.moments) - 1))
            self._clock_at = 0

    def _answer(self, kind: str, *keys: str) -> Maybe[Any]:
        return self._dated_answer(kind, *keys)[1]

    def _dated_answer(self, kind: str, *keys: str) -> tuple[int, Maybe[Any]]:
        """Return the newest answer up to the moment, with the moment in which it was recorded."""
        question = Question(kind, keys)
        answers = self.recording.answers.get(question)
        if answers:
            count = bisect_right(answers, self._moment, key=lambda answer: answer[0])
            if count:
                number, answer = answers[count - 1]
                return number, self._unpack(answer) if isinstance(answer, PackedAnswer) else answer
        detail = "or redacted" if self.recording.manifest.redacted else ""
        return -1, Unknown(Reason.NOT_RECORDED, printable(" ".join(keys) or kind), detail)

    def _unpack(self, packed: PackedAnswer) -> Maybe[Any]:
        with self._lock:
            if packed in self._unpacked:
                self._unpacked.move_to_end(packed)
                return self._unpacked[packed]
        answer = packed.answer()
        with self._lock:
            if packed not in self._unpacked:
                self._unpacked[packed] = answer
                self._unpacked_bytes += len(packed.content)
            while self._unpacked_bytes > _UNPACKED_BYTES and len(self._unpacked) > 1:
                self._unpacked_bytes -= len(self._unpacked.popitem(last=False)[0].content)
        return answer

    def read_range(self, path: str, offset: int, limit: int) -> Maybe[FileRange]:
        """Return that recordings do not contain job logs."""
        return Unknown(Reason.NOT_RECORDED, printable(path), "recordings do not contain job logs")

    def process_usage(self, pids: Sequence[int]) -> Mapping[int, Maybe[ProcessUsage]]:
        """Return user, CPU, memory and affinity of each process."""
        return {pid: self._answer("process_usage", str(pid)) for pid in pids}

    def kernel_messages(self) -> Maybe[tuple[KernelMessage, ...]]:
        """Return the messages that came in this moment; an earlier moment's messages are not new again."""
        return self._news("kernel_messages")

    def _news(self, kind: str, *keys: str) -> Maybe[Any]:
        moment, newest = self._dated_answer(kind, *keys)
        return newest if moment == self._moment or isinstance(newest, Unknown) else ()

    def ras_events(self, address: str, last: bool = False) -> Maybe[tuple[str, ...]]:
        """Return the RAS events that came in this moment."""
        return self._news("ras_events", address)

    def is_root(self) -> bool:
        """Return whether gdrtop was recording as root."""
        return self._answer("is_root") is True

    def monotonic(self) -> float:
        """Return the recorded clock: its values of this moment in the order asked, then the last one."""
        with self._lock:
            head = self.recording.moments[self._moment]
            if not head.clock:
                return head.at
            shown = head.clock[min(self._clock_at, len(head.clock) - 1)]
            self._clock_at += 1
            return shown

    def wall_clock(self) -> float:
        """Return the time of the moment, in seconds since 1970."""
        return self.recording.moments[self._moment].at
