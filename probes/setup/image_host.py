"""An operating-system or container image as a host: files of the image, hardware of a simulated node.

Nothing of the image runs. Of the hardware only the identity is assumed: PCI functions, NUMA nodes, the
machine's name. Whatever exists only on a running node (loaded modules, RDMA devices, NVML, processes) is
unknown with the reason TREE_ONLY.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TypeVar

from probes.base.origin import Origin, Source
from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.kernel.installed_modules import installed_releases
from probes.host.collectives import CollectiveSpeed
from probes.host.command import CommandOutput
from probes.host.cuda import CudaGpu
from probes.host.file_range import FileRange
from probes.host.kernel_messages import KernelMessage
from probes.host.local import text_of
from probes.host.nvml import NvmlFacts, NvmlLive
from probes.host.protocol import READ_LIMIT_BYTES, TREE_ONLY, Host
from probes.host.ras import ANSWER_SECONDS
from probes.host.rdma_resources import RdmaResources
from probes.host.usage import InterfaceCounters, ProcessUsage

K = TypeVar("K", str, int)
_RELEASE = "/proc/sys/kernel/osrelease"
_HARDWARE = (
    "/sys/bus/pci/devices",
    "/sys/devices/pci",
    "/sys/devices/system/node",
    "/sys/class/dmi/id",
    "/proc/sys/kernel/arch",
    "/proc/cpuinfo",
)
_RUNTIME = ("/sys", "/proc", "/dev")
_EMPTY = ("/run", "/var/run")  # a tmpfs, empty when a node boots
# Below a device: what its driver, the firmware or the last boot made, which no image decides.
_OF_DRIVERS = frozenset(
    ("driver", "infiniband", "infiniband_verbs", "net", "config", "iommu_group", "physfn", "sriov_numvfs")
)


class ImageHost:
    """The files of `image`, and the devices of `hardware`."""

    def __init__(self, image: Host, hardware: Host) -> None:
        label = f"{image.origin.label} as {hardware.origin.label}"
        self.origin = Origin(Source.TREE, label)
        self.hardware_name = hardware.origin.label
        self._image, self._hardware = image, hardware
        kernels = installed_releases(image)
        self.kernels: tuple[str, ...] = () if isinstance(kernels, Unknown) else kernels

    def _host(self, path: str) -> Host | Unknown:
        """Return the host that has this path, or why none has."""
        if path.startswith(_HARDWARE):
            if _OF_DRIVERS.isdisjoint(path.split("/")[4:]) and "/aer_" not in path:
                return self._hardware
            return Unknown(Reason.NOT_RECORDED, path, TREE_ONLY)
        if any(path == top or path.startswith(f"{top}/") for top in _RUNTIME):
            return Unknown(Reason.NOT_RECORDED, path, TREE_ONLY)
        if any(path == top or path.startswith(f"{top}/") for top in _EMPTY):
            return Unknown(Reason.NOT_THERE, path)
        return self._image

    def read_bytes(self, path: str, limit: int = READ_LIMIT_BYTES) -> Maybe[bytes]:
        """Return a file's content; the kernel's release is that of the newest kernel in the image."""
        if path == _RELEASE and self.kernels:
            return self.kernels[0].encode()
        host = self._host(path)
        if isinstance(host, Unknown):
            return host
        content = host.read_bytes(path, limit)
        if isinstance(content, bytes) and host is self._hardware and path.endswith("/uevent"):
            lines = content.splitlines(keepends=True)
            return b"".join(line for line in lines if not line.startswith(b"DRIVER="))
        return content

    def read(self, path: str, limit: int = READ_LIMIT_BYTES) -> Maybe[str]:
        """Return a file's text."""
        content = self.read_bytes(path, limit)
        return content if isinstance(content, Unknown) else text_of(content)

    def read_range(self, path: str, offset: int, limit: int) -> Maybe[FileRange]:
        """Return a part of a file."""
        host = self._host(path)
        return host if isinstance(host, Unknown) else host.read_range(path, offset, limit)

    def names(self, path: str) -> Maybe[tuple[str, ...]]:
        """Return the names in a directory."""
        host = self._host(path)
        if isinstance(host, Unknown):
            return host
        names = host.names(path)
        if isinstance(names, Unknown) or host is not self._hardware:
            return names
        return tuple(name for name in names if name not in _OF_DRIVERS)

    def link(self, path: str) -> Maybe[str]:
        """Return the target of a symbolic link."""
        host = self._host(path)
        return host if isinstance(host, Unknown) else host.link(path)

    def resolve(self, path: str) -> Maybe[str]:
        """Return the path with every link resolved."""
        host = self._host(path)
        return host if isinstance(host, Unknown) else host.resolve(path)

    def size(self, path: str) -> Maybe[int]:
        """Return a file's size."""
        host = self._host(path)
        return host if isinstance(host, Unknown) else host.size(path)

    def access(self, path: str, write: bool = False) -> Maybe[bool]:
        """Return whether this process can read the file: of the image's own user nothing is known."""
        host = self._host(path)
        return host if isinstance(host, Unknown) else host.access(path, write)

    def run(self, argv: Sequence[str], seconds: float = 2.0) -> Maybe[CommandOutput]:
        """Return that an image runs no command."""
        return _nothing("".join(argv[:1]))

    def nvml(self) -> Maybe[NvmlFacts]:
        """Return that an image has no driver."""
        return _nothing("NVML")

    def nvml_live(self) -> Maybe[tuple[NvmlLive, ...]]:
        """Return that an image has no driver."""
        return _nothing("NVML")

    def dmabuf_errnos(self, devices: Sequence[str]) -> Mapping[str, Maybe[int]]:
        """Return that an image has no RDMA devices."""
        return _nothing_of(devices, "libibverbs")

    def data_direct_paths(self, devices: Sequence[str]) -> Mapping[str, Maybe[str]]:
        """Return that an image has no RDMA devices."""
        return _nothing_of(devices, "libmlx5")

    def cuda_gpus(self) -> Maybe[tuple[CudaGpu, ...]]:
        """Return that an image has no driver."""
        return _nothing("libcuda")

    def process_usage(self, pids: Sequence[int]) -> Mapping[int, Maybe[ProcessUsage]]:
        """Return that an image has no processes."""
        return _nothing_of(pids, "/proc")

    def interface_counters(self, names: Sequence[str]) -> Mapping[str, Maybe[InterfaceCounters]]:
        """Return that an image has no network interfaces."""
        return _nothing_of(names, "/sys/class/net")

    def rdma_resources(self) -> Maybe[RdmaResources]:
        """Return that an image has no RDMA devices."""
        return _nothing("RDMA netlink")

    def thread_names(self, pids: Sequence[int]) -> Mapping[int, Maybe[tuple[str, ...]]]:
        """Return that an image has no processes."""
        return _nothing_of(pids, "/proc")

    def ethtool_counters(self, names: Sequence[str]) -> Mapping[str, Maybe[dict[str, int]]]:
        """Return that an image has no network interfaces."""
        return _nothing_of(names, "ethtool")

    def kernel_messages(self) -> Maybe[tuple[KernelMessage, ...]]:
        """Return that no kernel runs."""
        return _nothing("/dev/kmsg")

    def ras_answer(self, address: str, command: str, seconds: float = ANSWER_SECONDS) -> Maybe[str]:
        """Return that no job runs."""
        return _nothing(f"RAS at {address}")

    def ras_events(self, address: str, last: bool = False) -> Maybe[tuple[str, ...]]:
        """Return that no job runs."""
        return _nothing(f"RAS at {address}")

    def collectives(self, path: str) -> Maybe[tuple[CollectiveSpeed, ...]]:
        """Return that no job runs."""
        return _nothing(path)

    def environment(self, name: str) -> Maybe[str]:
        """Return that there is no session."""
        return _nothing(name)

    def is_root(self) -> bool:
        """Return whether this process reads the image as root."""
        return self._image.is_root()

    def monotonic(self) -> float:
        """Return the seconds of a clock."""
        return time.monotonic()

    def wall_clock(self) -> float:
        """Return the seconds since 1970."""
        return time.time()


def _nothing(source: str) -> Unknown:
    return Unknown(Reason.NOT_RECORDED, source, TREE_ONLY)


def _nothing_of(keys: Sequence[K], source: str) -> Mapping[K, Unknown]:
    return {key: _nothing(source) for key in keys}
