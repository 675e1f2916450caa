"""What hosts have in common: the text of a file, and an honest answer to what a host cannot answer."""

from __future__ import annotations

from typing import Any, ClassVar

from probes.base.text import printable, text_of
from probes.base.unknown import Maybe, Reason, Unknown, map_known
from probes.host.collectives import METRICS_BYTES, METRICS_SUFFIX, TAIL_BYTES, CollectiveSpeed, parse
from probes.host.component_history import SOURCE
from probes.host.protocol import READ_LIMIT_BYTES, Host, of_user

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


class HostBase(Host):
    """A host whose every answer is unknown, for the same reason; a subclass overrides what it can answer.

    RecordingHost passes on every question, so it is no subclass, and mypy names what it misses.
    """

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

    def _read_collectives(self, path: str, user: Maybe[int]) -> Maybe[tuple[CollectiveSpeed, ...]]:
        """Return the collectives in the end of a file, by `read_range`."""
        limit = METRICS_BYTES if path.endswith(METRICS_SUFFIX) else TAIL_BYTES
        end = of_user(self.read_range(path, -limit, limit), user, path)
        return map_known(end, lambda found: parse(path, found.content))
