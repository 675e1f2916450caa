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
from probes.host.collectives import CollectiveSpeed
from probes.host.command import CommandOutput
from probes.host.cuda import CudaGpu
from probes.host.file_range import FileRange
from probes.host.kernel_messages import KernelMessage
from probes.host.local import text_of
from probes.host.nvml import NvmlFacts, NvmlLive
from probes.host.protocol import READ_LIMIT_BYTES
from probes.host.ras import ANSWER_SECONDS
from probes.host.rdma_resources import RdmaResources
from probes.host.usage import InterfaceCounters, ProcessUsage, usage_from_files
from probes.recording.archive import Manifest, Recording
from probes.recording.format import PackedAnswer, Question

_UNPACKED_BYTES = 4 << 20  # of packed answers, whose objects take ten times as much memory


def origin_of(manifest: Manifest) -> Origin:
    """Return the origin RECORDED with node and time; a node that was not live stays marked."""
    live = manifest.source == Source.LIVE.value
    name = (manifest.host or "?") if live else f"{manifest.source.upper()} {manifest.label}"
    began = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(manifest.began_at))
    redacted = ", redacted" if manifest.redacted else ""
    return Origin(Source.RECORDED, f"{name}, {began}{redacted}")


class ReplayHost:
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

    def _answer(self, kind: str, *of: str) -> Maybe[Any]:
        """Return the newest answer up to the moment."""
        return self._dated_answer(kind, *of)[1]

    def _dated_answer(self, kind: str, *of: str) -> tuple[int, Maybe[Any]]:
        """Return the newest answer up to the moment, with the moment in which it was recorded."""
        question = Question(kind, of)
        answers = self.recording.answers.get(question)
        if answers:
            count = bisect_right(answers, self._moment, key=lambda answer: answer[0])
            if count:
                number, answer = answers[count - 1]
                return number, self._unpack(answer) if isinstance(answer, PackedAnswer) else answer
        detail = "or redacted" if self.recording.manifest.redacted else ""
        return -1, Unknown(Reason.NOT_RECORDED, printable(" ".join(of) or kind), detail)

    def _unpack(self, packed: PackedAnswer) -> Maybe[Any]:
        """Return an answer, one of the latest without decoding it again."""
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

    def read_bytes(self, path: str, limit: int = READ_LIMIT_BYTES) -> Maybe[bytes]:
        """Return a file's content; a file longer than `limit` is malformed, not truncated."""
        content: Maybe[bytes] = self._answer("file", path)
        if not isinstance(content, Unknown) and len(content) > limit:
            return Unknown(Reason.MALFORMED, printable(path), f"more than {limit} bytes")
        return content

    def read(self, path: str, limit: int = READ_LIMIT_BYTES) -> Maybe[str]:
        """Return a file's text."""
        content = self.read_bytes(path, limit)
        return content if isinstance(content, Unknown) else text_of(content)

    def read_range(self, path: str, offset: int, limit: int) -> Maybe[FileRange]:
        """Return that recordings do not contain logs of jobs."""
        return Unknown(Reason.NOT_RECORDED, printable(path), "recordings do not contain logs of jobs")

    def names(self, path: str) -> Maybe[tuple[str, ...]]:
        """Return the sorted names in a directory."""
        return self._answer("names", path)

    def link(self, path: str) -> Maybe[str]:
        """Return the target of a symbolic link."""
        return self._answer("link", path)

    def resolve(self, path: str) -> Maybe[str]:
        """Return the path with every link resolved."""
        return self._answer("resolve", path)

    def size(self, path: str) -> Maybe[int]:
        """Return a file's size in bytes."""
        return self._answer("size", path)

    def access(self, path: str, write: bool = False) -> Maybe[bool]:
        """Return whether the recording process could read (and write) the file."""
        return self._answer("writable" if write else "readable", path)

    def run(self, argv: Sequence[str], seconds: float = 2.0) -> Maybe[CommandOutput]:
        """Return the output of a command."""
        return self._answer("run", *argv)

    def nvml(self) -> Maybe[NvmlFacts]:
        """Return what NVML reported about driver and GPUs."""
        return self._answer("nvml")

    def nvml_live(self) -> Maybe[tuple[NvmlLive, ...]]:
        """Return NVML's live figures."""
        return self._answer("nvml_live")

    def dmabuf_errnos(self, devices: Sequence[str]) -> Mapping[str, Maybe[int]]:
        """Return the errnos of the DMA-BUF probe."""
        return {device: self._answer("dmabuf_errno", device) for device in devices}

    def data_direct_paths(self, devices: Sequence[str]) -> Mapping[str, Maybe[str]]:
        """Return the paths of Data Direct functions."""
        return {device: self._answer("data_direct_path", device) for device in devices}

    def cuda_gpus(self) -> Maybe[tuple[CudaGpu, ...]]:
        """Return what libcuda reported about each GPU."""
        return self._answer("cuda_gpus")

    def process_usage(self, pids: Sequence[int]) -> Mapping[int, Maybe[ProcessUsage]]:
        """Return user, CPU, memory and affinity of each process; recordings before 0.2 have only files."""
        recorded: dict[int, Maybe[ProcessUsage]] = {
            pid: self._answer("process_usage", str(pid))
            for pid in pids
            if Question("process_usage", (str(pid),)) in self.recording.answers
        }
        return {**usage_from_files(self, [pid for pid in pids if pid not in recorded]), **recorded}

    def interface_counters(self, names: Sequence[str]) -> Mapping[str, Maybe[InterfaceCounters]]:
        """Return the bytes through each network interface, without RDMA."""
        return {name: self._answer("interface_counters", name) for name in names}

    def rdma_resources(self) -> Maybe[RdmaResources]:
        """Return the RDMA resources of all processes."""
        return self._answer("rdma_resources")

    def thread_names(self, pids: Sequence[int]) -> Mapping[int, Maybe[tuple[str, ...]]]:
        """Return the names of each process's threads."""
        return {pid: self._answer("thread_names", str(pid)) for pid in pids}

    def ethtool_counters(self, names: Sequence[str]) -> Mapping[str, Maybe[dict[str, int]]]:
        """Return counters of network interfaces."""
        return {name: self._answer("ethtool_counters", name) for name in names}

    def kernel_messages(self) -> Maybe[tuple[KernelMessage, ...]]:
        """Return the messages that came in this moment; an earlier moment's messages are not new again."""
        return self._news("kernel_messages")

    def _news(self, kind: str, *of: str) -> Maybe[Any]:
        moment, newest = self._dated_answer(kind, *of)
        return newest if moment == self._moment or isinstance(newest, Unknown) else ()

    def ras_answer(self, address: str, command: str, seconds: float = ANSWER_SECONDS) -> Maybe[str]:
        """Return the newest recorded answer of NCCL's RAS service."""
        return self._answer("ras_answer", f"{address} {command}")

    def ras_events(self, address: str, last: bool = False) -> Maybe[tuple[str, ...]]:
        """Return the RAS events that came in this moment."""
        return self._news("ras_events", address)

    def collectives(self, path: str) -> Maybe[tuple[CollectiveSpeed, ...]]:
        """Return the newest collectives in a file of NCCL's inspector."""
        return self._answer("collectives", path)

    def environment(self, name: str) -> Maybe[str]:
        """Return an environment variable."""
        return self._answer("environment", name)

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
