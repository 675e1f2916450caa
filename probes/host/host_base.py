"""What hosts have in common: the text of a file, and an honest answer to what a host cannot answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from probes.base.origin import Origin
from probes.base.text import printable, text_of
from probes.base.unknown import Maybe, Reason, Unknown, map_known
from probes.host.collectives import METRICS_BYTES, METRICS_SUFFIX, TAIL_BYTES, CollectiveSpeed, parse
from probes.host.component_history import SOURCE, ComponentHistory
from probes.host.nvml import NvmlFacts, NvmlLive
from probes.host.protocol import (
    READ_LIMIT_BYTES,
    CommandOutput,
    CudaGpu,
    FileRange,
    KernelMessage,
    LogFinding,
    of_user,
)
from probes.host.ras import ANSWER_SECONDS
from probes.host.rdma_resources import PacketNumbers, RdmaResources
from probes.host.usage import InterfaceCounters, ProcessUsage

_SOURCES = {
    "nvml": "NVML",
    "nvml_live": "NVML",
    "dmabuf_errno": "libibverbs",
    "data_direct_path": "libmlx5",
    "cuda_gpus": "libcuda",
    "rdma_resources": "RDMA netlink",
    "packet_numbers": "RDMA netlink",
    "ethtool_counters": "ethtool -S",
    "kernel_messages": "/dev/kmsg",
    "ras_answer": "RAS",
    "ras_events": "RAS",
    "component_history": SOURCE,
    "log_findings": "recording",
}


class HostBase(ABC):
    """A host whose every answer is unknown, for the same reason; a subclass overrides what it can answer.

    A new question of `Host` gets its method here. A subclass that does not override it then answers that it
    is unknown. RecordingHost passes on every question, so it is no subclass, and mypy names what it misses.
    """

    origin: Origin
    UNANSWERED: ClassVar[tuple[Reason, str]]
    """Reason and detail of what the host cannot answer."""

    def _answer(self, kind: str, *keys: str) -> Maybe[Any]:
        """Return the answer to a question that is not overridden; kind and keys are those of a recording."""
        reason, detail = self.UNANSWERED
        return Unknown(reason, printable(_SOURCES.get(kind) or (keys[0] if keys else kind)), detail)

    def read_bytes(self, path: str, limit: int = READ_LIMIT_BYTES) -> Maybe[bytes]:
        content: Maybe[bytes] = self._answer("file", path)
        if not isinstance(content, Unknown) and len(content) > limit:
            return Unknown(Reason.MALFORMED, printable(path), f"more than {limit} bytes")
        return content

    def read(self, path: str, limit: int = READ_LIMIT_BYTES) -> Maybe[str]:
        content = self.read_bytes(path, limit)
        return content if isinstance(content, Unknown) else text_of(content)

    def read_range(self, path: str, offset: int, limit: int) -> Maybe[FileRange]:
        return self._answer("file_range", path)

    def names(self, path: str) -> Maybe[tuple[str, ...]]:
        return self._answer("names", path)

    def link(self, path: str) -> Maybe[str]:
        return self._answer("link", path)

    def resolve(self, path: str) -> Maybe[str]:
        return self._answer("resolve", path)

    def size(self, path: str) -> Maybe[int]:
        return self._answer("size", path)

    def access(self, path: str, write: bool = False) -> Maybe[bool]:
        return self._answer("writable" if write else "readable", path)

    def run(self, argv: Sequence[str], seconds: float = 2.0) -> Maybe[CommandOutput]:
        return self._answer("run", *argv)

    def nvml(self) -> Maybe[NvmlFacts]:
        return self._answer("nvml")

    def nvml_live(self) -> Maybe[tuple[NvmlLive, ...]]:
        return self._answer("nvml_live")

    def dmabuf_errnos(self, devices: Sequence[str]) -> Mapping[str, Maybe[int]]:
        return {device: self._answer("dmabuf_errno", device) for device in devices}

    def data_direct_paths(self, devices: Sequence[str]) -> Mapping[str, Maybe[str]]:
        return {device: self._answer("data_direct_path", device) for device in devices}

    def cuda_gpus(self) -> Maybe[tuple[CudaGpu, ...]]:
        return self._answer("cuda_gpus")

    def process_usage(self, pids: Sequence[int]) -> Mapping[int, Maybe[ProcessUsage]]:
        return {pid: self._answer("process_usage", str(pid)) for pid in pids}

    def interface_counters(self, names: Sequence[str]) -> Mapping[str, Maybe[InterfaceCounters]]:
        return {name: self._answer("interface_counters", name) for name in names}

    def rdma_resources(self) -> Maybe[RdmaResources]:
        return self._answer("rdma_resources")

    def packet_numbers(self) -> Maybe[tuple[PacketNumbers, ...]]:
        return self._answer("packet_numbers")

    def thread_names(self, pids: Sequence[int]) -> Mapping[int, Maybe[tuple[str, ...]]]:
        return {pid: self._answer("thread_names", str(pid)) for pid in pids}

    def ethtool_counters(self, names: Sequence[str]) -> Mapping[str, Maybe[dict[str, int]]]:
        return {name: self._answer("ethtool_counters", name) for name in names}

    def kernel_messages(self) -> Maybe[tuple[KernelMessage, ...]]:
        return self._answer("kernel_messages")

    def ras_answer(self, address: str, command: str, seconds: float = ANSWER_SECONDS) -> Maybe[str]:
        return self._answer("ras_answer", f"{address} {command}")

    def ras_events(self, address: str, last: bool = False) -> Maybe[tuple[str, ...]]:
        return self._answer("ras_events", address)

    def collectives(self, path: str, user: Maybe[int]) -> Maybe[tuple[CollectiveSpeed, ...]]:
        return self._answer("collectives", path)

    def _read_collectives(self, path: str, user: Maybe[int]) -> Maybe[tuple[CollectiveSpeed, ...]]:
        """Return the collectives in the end of a file, by `read_range`."""
        limit = METRICS_BYTES if path.endswith(METRICS_SUFFIX) else TAIL_BYTES
        end = of_user(self.read_range(path, -limit, limit), user, path)
        return map_known(end, lambda found: parse(path, found.content))

    def component_history(self) -> Maybe[ComponentHistory]:
        return self._answer("component_history")

    def log_findings(self) -> Maybe[tuple[LogFinding, ...]]:
        return self._answer("log_findings")

    def counter_readings(
        self, paths: Sequence[str], interval: float = 0.1
    ) -> Maybe[tuple[tuple[float, int], ...]]:
        return self._answer("counter_readings", *paths)

    def environment(self, name: str) -> Maybe[str]:
        return self._answer("environment", name)

    @abstractmethod
    def is_root(self) -> bool:
        """Return whether root asks."""

    @abstractmethod
    def monotonic(self) -> float:
        """Return the seconds of a clock that never goes back."""

    @abstractmethod
    def wall_clock(self) -> float:
        """Return the seconds since 1970."""
