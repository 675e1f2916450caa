"""The questions that every host answers: this machine, a tree of files, a recording, a simulated node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from probes.base.origin import Origin
from probes.base.unknown import Maybe
from probes.host.command import CommandOutput
from probes.host.cuda import CudaGpu
from probes.host.nvml import NvmlFacts, NvmlLive
from probes.host.usage import InterfaceCounters, ProcessUsage

READ_LIMIT_BYTES = 64 * 1024


class Host(Protocol):
    """A node that can be asked; nothing here changes it."""

    origin: Origin

    def read_bytes(self, path: str, limit: int = READ_LIMIT_BYTES) -> Maybe[bytes]:
        """A file's bytes; a file longer than `limit` is malformed, not cut."""

    def read(self, path: str, limit: int = READ_LIMIT_BYTES) -> Maybe[str]:
        """A file's text, surrounding white space removed, control characters replaced."""

    def names(self, path: str) -> Maybe[tuple[str, ...]]:
        """The sorted names in a directory, as they are: clean them before they are shown."""

    def link(self, path: str) -> Maybe[str]:
        """The target a symbolic link names, unresolved."""

    def resolve(self, path: str) -> Maybe[str]:
        """The path with every link resolved, inside the host's root."""

    def size(self, path: str) -> Maybe[int]:
        """A file's size in bytes; for PCI `resourceN` files, the size of the BAR."""

    def access(self, path: str, write: bool = False) -> Maybe[bool]:
        """Whether this process may read (and write) the file."""

    def run(self, argv: Sequence[str], seconds: float = 2.0) -> Maybe[CommandOutput]:
        """The output of a read-only command found on the trusted path."""

    def nvml(self) -> Maybe[NvmlFacts]:
        """What NVML says of driver and GPUs; the reason tells a missing driver from a broken one."""

    def nvml_live(self) -> Maybe[tuple[NvmlLive, ...]]:
        """NVML's moving figures, one reading."""

    def dmabuf_errnos(self, devices: Sequence[str]) -> Mapping[str, Maybe[int]]:
        """The errno of the `ibv_reg_dmabuf_mr` probe on each RDMA device (EBADF: supported)."""

    def cuda_gpus(self) -> Maybe[tuple[CudaGpu, ...]]:
        """What libcuda says of each GPU's support for GPUDirect RDMA; may take seconds."""

    def process_usage(self, pids: Sequence[int]) -> Mapping[int, Maybe[ProcessUsage]]:
        """User, CPU, memory and CPU affinity of each process; ask only about the few that matter."""

    def interface_counters(self, names: Sequence[str]) -> Mapping[str, Maybe[InterfaceCounters]]:
        """Bytes through each network interface, without RDMA."""

    def environment(self, name: str) -> Maybe[str]:
        """An environment variable of the node's session."""

    def is_root(self) -> bool:
        """Whether this process may read what only root may."""

    def monotonic(self) -> float:
        """Seconds of a clock that never goes back; rates are taken over it."""

    def wall_clock(self) -> float:
        """Seconds since 1970."""
