"""The device files of GPUs and RDMA: which exist, and whether this process may use them.

In a container /sys/class/infiniband shows every HCA, even if none of their device files was passed in. Of
verbs, a file is opened, so what a device control group refuses shows; of GPUs, only its mode is read.
"""

from __future__ import annotations

import re

from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown
from probes.host.protocol import Host

INFINIBAND = "/dev/infiniband"
_RDMA = re.compile(r"uverbs\d{1,4}|rdma_cm|umad\d{1,4}|issm\d{1,4}")
_GPU = re.compile(
    r"nvidia(?:\d{1,4}|ctl|-uvm|-uvm-tools|-modeset|-nvswitch\d{1,3}|-nvswitchctl|-fs\d{1,3})|gdrdrv"
)
_MAX_NODES = 512


@frozen
class DeviceNode:
    """One device file."""

    path: str  # "/dev/infiniband/uverbs0"
    usable: Maybe[bool]  # its mode lets this process read and write; NEEDS_PERMISSION: the kernel refuses

    @property
    def is_refused(self) -> bool:
        """Whether the kernel refuses to open it, although its mode may allow that (EPERM)."""
        return isinstance(self.usable, Unknown) and self.usable.reason is Reason.NEEDS_PERMISSION


@frozen
class DeviceNodeFacts:
    """The device files, in order of name."""

    rdma: Maybe[tuple[DeviceNode, ...]]  # NOT_THERE: no /dev/infiniband (no ib_uverbs, or not passed in)
    gpu: Maybe[tuple[DeviceNode, ...]]


def probe(host: Host) -> DeviceNodeFacts:
    """List /dev/infiniband and the NVIDIA files of /dev, and whether they may be used."""
    rdma, gpu = _nodes(host, INFINIBAND, _RDMA), _nodes(host, "/dev", _GPU)
    names = host.names("/dev")
    if not isinstance(names, Unknown) and "null" not in names:  # every system has /dev/null: this is a dump
        left_out = Unknown(Reason.NOT_RECORDED, "/dev", "the tree has no /dev/null")
        if isinstance(rdma, Unknown) and rdma.reason is Reason.NOT_THERE:
            rdma = left_out
        if gpu == ():
            gpu = left_out
    return DeviceNodeFacts(rdma=rdma, gpu=gpu)


def _nodes(host: Host, directory: str, pattern: re.Pattern[str]) -> Maybe[tuple[DeviceNode, ...]]:
    names = host.names(directory)
    if isinstance(names, Unknown):
        return names
    paths = [f"{directory}/{name}" for name in names if pattern.fullmatch(name)][:_MAX_NODES]
    return tuple(DeviceNode(printable(path), _usable(host, path)) for path in paths)


def _usable(host: Host, path: str) -> Maybe[bool]:
    usable = host.access(path, write=True)
    return False if isinstance(usable, Unknown) and usable.reason is Reason.NEEDS_ROOT else usable
