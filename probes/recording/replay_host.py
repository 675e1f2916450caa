"""A host that answers from a recording, at a moment of it."""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from probes.base.origin import Origin, Source
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown
from probes.host.command import CommandOutput
from probes.host.cuda import CudaGpu
from probes.host.local import text_of
from probes.host.nvml import NvmlFacts, NvmlLive
from probes.host.protocol import READ_LIMIT_BYTES
from probes.host.usage import InterfaceCounters, ProcessUsage, usage_from_files
from probes.recording.archive import Manifest, Recording
from probes.recording.format import Question


def origin_of(manifest: Manifest) -> Origin:
    """RECORDED, with what was recorded and when; a node that was itself no live one stays marked so."""
    live = manifest.source == Source.LIVE.value
    name = (manifest.host or "?") if live else f"{manifest.source.upper()} {manifest.label}"
    began = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(manifest.began_at))
    redacted = ", redacted" if manifest.redacted else ""
    return Origin(Source.RECORDED, f"{name}, {began}{redacted}")


class ReplayHost:
    """A recorded node; what a probe asks and the recording lacks is "not recorded"."""

    def __init__(self, recording: Recording) -> None:
        self.origin = origin_of(recording.manifest)
        self.recording = recording
        self._moment = 0
        self._clock_at = 0
        self._lock = threading.Lock()

    @property
    def moment(self) -> int:
        """The moment that it answers for, from 0."""
        return self._moment

    def seek(self, moment: int) -> None:
        """Goes to a moment; beyond the first or last one, to that."""
        with self._lock:
            self._moment = max(0, min(moment, len(self.recording.moments) - 1))
            self._clock_at = 0

    def _answer(self, kind: str, *of: str) -> Maybe[Any]:
        """The newest answer up to the moment."""
        question = Question(kind, of)
        answers = self.recording.answers.get(question)
        if answers:
            place = bisect_right(answers, self._moment, key=lambda answer: answer[0])
            if place:
                return answers[place - 1][1]
        detail = "or redacted" if self.recording.manifest.redacted else ""
        return Unknown(Reason.NOT_RECORDED, printable(" ".join(of) or kind), detail)

    def read_bytes(self, path: str, limit: int = READ_LIMIT_BYTES) -> Maybe[bytes]:
        """A file's bytes; a file longer than `limit` is malformed, not cut."""
        content: Maybe[bytes] = self._answer("file", path)
        if not isinstance(content, Unknown) and len(content) > limit:
            return Unknown(Reason.MALFORMED, printable(path), f"more than {limit} bytes")
        return content

    def read(self, path: str, limit: int = READ_LIMIT_BYTES) -> Maybe[str]:
        """A file's text."""
        content = self.read_bytes(path, limit)
        return content if isinstance(content, Unknown) else text_of(content)

    def names(self, path: str) -> Maybe[tuple[str, ...]]:
        """The sorted names in a directory."""
        return self._answer("names", path)

    def link(self, path: str) -> Maybe[str]:
        """The target a symbolic link names."""
        return self._answer("link", path)

    def resolve(self, path: str) -> Maybe[str]:
        """The path with every link resolved."""
        return self._answer("resolve", path)

    def size(self, path: str) -> Maybe[int]:
        """A file's size in bytes."""
        return self._answer("size", path)

    def access(self, path: str, write: bool = False) -> Maybe[bool]:
        """Whether the process that recorded could read (and write) the file."""
        return self._answer("writable" if write else "readable", path)

    def run(self, argv: Sequence[str], seconds: float = 2.0) -> Maybe[CommandOutput]:
        """The output of a command."""
        return self._answer("run", *argv)

    def nvml(self) -> Maybe[NvmlFacts]:
        """What NVML said of driver and GPUs."""
        return self._answer("nvml")

    def nvml_live(self) -> Maybe[tuple[NvmlLive, ...]]:
        """NVML's moving figures."""
        return self._answer("nvml_live")

    def dmabuf_errnos(self, devices: Sequence[str]) -> Mapping[str, Maybe[int]]:
        """The errnos of the DMA-BUF probe."""
        return {device: self._answer("dmabuf_errno", device) for device in devices}

    def cuda_gpus(self) -> Maybe[tuple[CudaGpu, ...]]:
        """What libcuda said of each GPU."""
        return self._answer("cuda_gpus")

    def process_usage(self, pids: Sequence[int]) -> Mapping[int, Maybe[ProcessUsage]]:
        """User, CPU, memory and CPU affinity of each process; recordings before 0.2 have files only."""
        recorded: dict[int, Maybe[ProcessUsage]] = {
            pid: self._answer("process_usage", str(pid))
            for pid in pids
            if Question("process_usage", (str(pid),)) in self.recording.answers
        }
        return {**usage_from_files(self, [pid for pid in pids if pid not in recorded]), **recorded}

    def interface_counters(self, names: Sequence[str]) -> Mapping[str, Maybe[InterfaceCounters]]:
        """Bytes through each network interface, without RDMA."""
        return {name: self._answer("interface_counters", name) for name in names}

    def environment(self, name: str) -> Maybe[str]:
        """An environment variable."""
        return self._answer("environment", name)

    def is_root(self) -> bool:
        """Whether root recorded."""
        return self._answer("is_root") is True

    def monotonic(self) -> float:
        """The recorded clock: what it showed in this moment, in the order asked, then its last."""
        with self._lock:
            head = self.recording.moments[self._moment]
            if not head.clock:
                return head.at
            shown = head.clock[min(self._clock_at, len(head.clock) - 1)]
            self._clock_at += 1
            return shown

    def wall_clock(self) -> float:
        """Seconds since 1970 at which the moment was recorded."""
        return self.recording.moments[self._moment].at
