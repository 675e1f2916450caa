"""The questions that every host answers (this machine, a tree, a recording), and the small answers."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

from probes.base.evidence import Severity
from probes.base.frozen import frozen
from probes.base.origin import Origin, Source
from probes.base.text import printable, text_of
from probes.base.unknown import Maybe, Reason, Unknown, map_known
from probes.host.collectives import METRICS_BYTES, METRICS_SUFFIX, TAIL_BYTES, CollectiveSpeed, parse
from probes.host.component_history import SOURCE, ComponentHistory
from probes.host.fec import SOURCE as FEC_SOURCE
from probes.host.fec import FecState
from probes.host.nvml import NvmlFacts, NvmlLive
from probes.host.ras import ANSWER_SECONDS
from probes.host.rdma_resources import PacketNumbers, RdmaResources
from probes.host.tcp_sockets import SOURCE as TCP_SOURCE
from probes.host.tcp_sockets import TcpSocket
from probes.host.usage import InterfaceCounters, ProcessUsage

# What the NCCL logs of jobs showed while a node was recorded, without a line of the logs.


@frozen
class LogFinding:
    """A finding that a recording cannot show again, because it has no logs of jobs."""

    id: str  # of the check
    severity: Severity
    devices: tuple[str, ...] = ()  # BDFs and RDMA device names
    takes: tuple[str, ...] = ()  # GPUs (BDF) and NICs
    ranks: tuple[str, ...] = ()  # "rank 5", "pid 4716"
    part_of: str = ""  # the id of the finding with the same cause
    data_path: bool = False


@runtime_checkable
class LogFindingsRecorder(Protocol):
    """A host that records findings; a class of its own, so that nothing of recordings is imported."""

    def note_log_findings(self, findings: tuple[LogFinding, ...]) -> None:
        """Record what only the logs of jobs show, from now on."""


# The small answers of a host: part of a file, output of a command, kernel messages, CUDA attributes.

MAX_MESSAGES = 512  # of one answer; the rest comes with the next one
MESSAGE_CHARACTERS = 512
RDMA_SUPPORTED = 116  # CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED
DMABUF_SUPPORTED = 124  # CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED
# Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst
ETHTOOL_COUNTERS = re.compile(
    r"tx_prio[0-7]_bytes"
    r"|[rt]x_prio[0-7]_(?:pause|pause_duration|discards)"  # pauses by priority (PFC); the duration is in µs
    r"|[rt]x_global_pause(?:_duration)?"  # pauses of the whole link, in µs
    r"|[rt]x_pause_ctrl_phy"
    r"|[rt]x_discards_phy"
    r"|link_down_events_phy"
    r"|rx_(?:crc_errors|symbol_err)_phy"
    r"|rx_(?:corrected_bits|pcs_symbol_err|bits)_phy"  # repaired by FEC, not repaired, all that were received
    r"|rx_err_lane_[0-7]_phy"
    r"|module_(?:high_temp|bus_stuck|bad_shorted|unplug)"
    r"|outbound_pci_stalled_(?:rd|wr)"  # percent of the last second, not a counter
    r"|outbound_pci_stalled_(?:rd|wr)_events"  # seconds with more than 30 % stall
    r"|outbound_pci_buffer_overflow"
    r"|[rt]x_pci_signal_integrity"
)
"""The counters of `ethtool -S` that are read: a busy mlx5 has thousands, most of them per queue."""


@frozen
class FileRange:
    """Bytes of a regular file from an offset on, and the state of the file when they were read."""

    content: bytes
    size_bytes: int
    file: str  # identity: the same for all paths to the file, another one after a rotation
    owner: Maybe[int] = Unknown(Reason.NOT_RECORDED, "owner")  # uid; unknown where no user can have forged it


def of_user(found: Maybe[FileRange], user: Maybe[int] | None, path: str) -> Maybe[FileRange]:
    """Return what was read if it is evidence about a process of this user: its own file, or root's.

    Anyone can put a file where all users may write, under the name that a job uses. `user`: the process's
    uid; None: the admin has named the file. OTHER_OWNER: it belongs to someone else.
    """
    if isinstance(found, Unknown) or user is None or isinstance(found.owner, Unknown) or found.owner == 0:
        return found
    if isinstance(user, Unknown):
        return Unknown(user.reason, printable(path, 200), f"owner of the process: {user}")
    if found.owner == user:
        return found
    detail = f"belongs to user {found.owner}, not to the job's user {user}"
    return Unknown(Reason.OTHER_OWNER, printable(path, 200), detail)


@frozen
class CommandOutput:
    """Output of a command, with control characters replaced, and its exit status."""

    argv: tuple[str, ...]
    exit_status: int
    stdout: str
    stderr: str
    left_out_bytes: int = 0  # of a log's output: its oldest lines, before `stdout`


@frozen
class KernelMessage:
    """A message of the kernel log (Documentation/ABI/testing/dev-kmsg)."""

    sequence: int
    at: float  # seconds since the kernel started
    priority: int  # 0 (emergency) to 7 (debug)
    text: str


@frozen
class CudaGpu:
    """The answers of cuDeviceGetAttribute for a GPU."""

    bdf: str  # "0000:1b:00.0", as in sysfs
    rdma_supported: Maybe[bool]  # attribute 116: nvidia-peermem can pin its memory
    dmabuf_supported: Maybe[bool]  # attribute 124: its memory can be exported as a DMA-BUF


READ_LIMIT_BYTES = 64 * 1024
REFUSED = "refused by the device control group or the RDMA namespace (EPERM)"
TREE_ONLY = "a directory tree has no commands, drivers or devices"


def refused(path: str) -> Unknown:
    """Return that the kernel refuses to open a device file which exists (EPERM), whatever its mode."""
    return Unknown(Reason.NEEDS_PERMISSION, printable(path), REFUSED)


def _answer(host: Any, kind: str, *keys: str) -> Maybe[Any]:
    answer: Maybe[Any] = host._answer(kind, *keys)
    return answer


class Host(Protocol):
    """A node that can be queried; no method changes it.

    What a subclass of HostBase does not override, HostBase answers by the kind and keys of a recording.
    """

    origin: Origin

    def read_bytes(self, path: str, limit: int = READ_LIMIT_BYTES) -> Maybe[bytes]:
        """Return a file's content; a file longer than `limit` is malformed, not truncated."""

    def read(self, path: str, limit: int = READ_LIMIT_BYTES) -> Maybe[str]:
        """Return a file's text, stripped, with control characters replaced."""

    def read_range(self, path: str, offset: int, limit: int) -> Maybe[FileRange]:
        """Return up to `limit` bytes of a regular file from an offset on; with 0 only its state.

        A negative offset counts from the end.
        MALFORMED: it is no regular file, with its kind; such a file is not opened. Never recorded.
        """
        return _answer(self, "file_range", path)

    def names(self, path: str) -> Maybe[tuple[str, ...]]:
        """Return the sorted names in a directory, unchanged: clean them before showing them."""
        return _answer(self, "names", path)

    def link(self, path: str) -> Maybe[str]:
        """Return the target of a symbolic link, unresolved."""
        return _answer(self, "link", path)

    def resolve(self, path: str) -> Maybe[str]:
        """Return the path with every link resolved, inside the host's root."""
        return _answer(self, "resolve", path)

    def size(self, path: str) -> Maybe[int]:
        """Return a file's size in bytes; a PCI `resourceN` file is as long as its BAR."""
        return _answer(self, "size", path)

    def access(self, path: str, write: bool = False) -> Maybe[bool]:
        """Return whether this process can read (and write) the file; the files of verbs are opened for that.

        NEEDS_PERMISSION: the mode of the file allows it, and the kernel refuses it.
        """
        return _answer(self, "writable" if write else "readable", path)

    def run(self, argv: Sequence[str], seconds: float = 2.0) -> Maybe[CommandOutput]:
        """Return the output of a read-only command, which is searched on the trusted path."""
        return _answer(self, "run", *argv)

    def trusted_bytes(self, path: str) -> Maybe[bytes]:
        """Return a file as `read_bytes`; NEEDS_PERMISSION: as root, one that another user can write."""
        return _answer(self, "file", path)

    def run_trusted(self, argv: Sequence[str], seconds: float, user: str) -> Maybe[CommandOutput]:
        """Return the output of a program that the site names by its path; root becomes `user` for it.

        It ends with 126 if it cannot start, also if root runs gdrtop and another user can write it.
        """
        return _answer(self, "run", *argv)

    def nvml(self) -> Maybe[NvmlFacts]:
        """Return what NVML reports about driver and GPUs; the reason shows whether the driver is missing."""
        return _answer(self, "nvml")

    def nvml_live(self) -> Maybe[tuple[NvmlLive, ...]]:
        """Return one reading of NVML's live figures."""
        return _answer(self, "nvml_live")

    def dmabuf_errnos(self, devices: Sequence[str]) -> Mapping[str, Maybe[int]]:
        """Return the errno of the `ibv_reg_dmabuf_mr` probe for each RDMA device (EBADF: supported)."""
        return {device: _answer(self, "dmabuf_errno", device) for device in devices}

    def data_direct_paths(self, devices: Sequence[str]) -> Mapping[str, Maybe[str]]:
        """Return the path of each RDMA device's Data Direct function below /sys; "": it has none."""
        return {device: _answer(self, "data_direct_path", device) for device in devices}

    def cuda_gpus(self) -> Maybe[tuple[CudaGpu, ...]]:
        """Return what libcuda reports about each GPU's support for GPUDirect RDMA; may take seconds."""
        return _answer(self, "cuda_gpus")

    def process_usage(self, pids: Sequence[int]) -> Mapping[int, Maybe[ProcessUsage]]:
        """Return user, CPU, memory and CPU affinity of each process; ask only about the few that matter."""
        return {pid: _answer(self, "process_usage", str(pid)) for pid in pids}

    def interface_counters(self, names: Sequence[str]) -> Mapping[str, Maybe[InterfaceCounters]]:
        """Return the bytes through each network interface, without RDMA."""
        return {name: _answer(self, "interface_counters", name) for name in names}

    def rdma_resources(self) -> Maybe[RdmaResources]:
        """Return the queue pairs, memory regions and contexts of all processes, by RDMA netlink.

        Drivers ask their firmware for the state of each queue pair: ask at most every two seconds.
        """
        return _answer(self, "rdma_resources")

    def packet_numbers(self) -> Maybe[tuple[PacketNumbers, ...]]:
        """Return the packet numbers of all connected queue pairs; as expensive as `rdma_resources`."""
        return _answer(self, "packet_numbers")

    def tcp_sockets(self) -> Maybe[tuple[TcpSocket, ...]]:
        """Return the TCP connections of this network namespace that have carried at least LEAST_BYTES.

        NOT_THERE: the kernel would have to load a module to answer.
        """
        return _answer(self, "tcp_sockets")

    def namespace_sockets(self, pid: int) -> Maybe[tuple[TcpSocket, ...]]:
        """Return those of a process's network namespace; a process of its own lists them, in 30 ms."""
        return _answer(self, "namespace_sockets", str(pid))

    def socket_inodes(self, pids: Sequence[int]) -> Mapping[int, Maybe[tuple[int, ...]]]:
        """Return the inodes of each process's sockets, sorted; NEEDS_ROOT: another user's process."""
        return {pid: _answer(self, "socket_inodes", str(pid)) for pid in pids}

    def rdma_statistics(self, names: Sequence[str]) -> Mapping[str, Maybe[dict[str, int]]]:
        """Return the counters of ports such as "mlx5_0/1", by RDMA netlink, as in their hw_counters.

        Netlink answers in network namespaces that do not have these files.
        """
        return {name: _answer(self, "rdma_statistics", name) for name in names}

    def thread_names(self, pids: Sequence[int]) -> Mapping[int, Maybe[tuple[str, ...]]]:
        """Return the distinct names of each process's threads, sorted."""
        return {pid: _answer(self, "thread_names", str(pid)) for pid in pids}

    def ethtool_counters(self, names: Sequence[str]) -> Mapping[str, Maybe[dict[str, int]]]:
        """Return some of the counters of `ethtool -S` by network interface; ask at most once a second."""
        return {name: _answer(self, "ethtool_counters", name) for name in names}

    def fec_states(self, names: Sequence[str]) -> Mapping[str, Maybe[FecState]]:
        """Return the error correction of network interfaces, with its counts; InfiniBand's have none."""
        return {name: _answer(self, "fec_states", name) for name in names}

    def kernel_messages(self) -> Maybe[tuple[KernelMessage, ...]]:
        """Return the kernel's messages since the last call; the first call only sets the start."""
        return _answer(self, "kernel_messages")

    def ras_answer(self, address: str, command: str, seconds: float = ANSWER_SECONDS) -> Maybe[str]:
        """Return the answer of NCCL's RAS service to one of probes.host.ras.QUESTIONS, as text.

        `address`: "127.0.0.1:28028", "[::1]:28028"; only this host's. It makes the job gather data from all
        its ranks and can harm it: ask only under the policy of probes/live/ras/targets.py.
        """
        return _answer(self, "ras_answer", f"{address} {command}")

    def ras_events(self, address: str, last: bool = False) -> Maybe[tuple[str, ...]]:
        """Return the RAS events of a job since the last call; the first call subscribes to them.

        They are read from the job as they come. `last` ends the subscription.
        """
        return _answer(self, "ras_events", address)

    def collectives(self, path: str, user: Maybe[int]) -> Maybe[tuple[CollectiveSpeed, ...]]:
        """Return the newest collectives in a file of NCCL's inspector; MALFORMED: it is being rewritten.

        `user`: the uid of the process; OTHER_OWNER: the file is neither its nor root's.
        Nothing else of the file is returned or recorded. Only the end of a long log is read.
        """
        return _answer(self, "collectives", path)

    def component_history(self) -> Maybe[ComponentHistory]:
        """Return what `gdrtop watch` has kept of this node's NICs and GPUs; NOT_THERE: nothing."""
        return _answer(self, "component_history")

    def log_findings(self) -> Maybe[tuple[LogFinding, ...]]:
        """Return what the NCCL logs of jobs showed while the node was recorded; only recordings have them."""
        return _answer(self, "log_findings")

    def environment(self, name: str) -> Maybe[str]:
        """Return an environment variable of the node's session."""
        return _answer(self, "environment", name)

    def is_root(self) -> bool:
        """Return whether this process runs as root."""

    def monotonic(self) -> float:
        """Return the seconds of a clock that never goes back; rates are based on it."""

    def wall_clock(self) -> float:
        """Return the seconds since 1970."""


# What hosts have in common: the text of a file, and an honest answer to what a host cannot answer.

_SOURCES = {
    "nvml": "NVML",
    "nvml_live": "NVML",
    "dmabuf_errno": "libibverbs",
    "data_direct_path": "libmlx5",
    "cuda_gpus": "libcuda",
    "rdma_resources": "RDMA netlink",
    "packet_numbers": "RDMA netlink",
    "tcp_sockets": TCP_SOURCE,
    "rdma_statistics": "RDMA netlink",
    "ethtool_counters": "ethtool -S",
    "fec_states": FEC_SOURCE,
    "kernel_messages": "/dev/kmsg",
    "ras_answer": "RAS",
    "ras_events": "RAS",
    "component_history": SOURCE,
    "log_findings": "recording",
}


class HostBase(Host):
    """A host whose every answer is unknown, for the same reason; a subclass overrides what it can answer.

    RecordingHost passes on every question, so it is no subclass.
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

    def trusted_bytes(self, path: str) -> Maybe[bytes]:
        return self.read_bytes(path)

    def monotonic(self) -> float:
        return time.monotonic()

    def wall_clock(self) -> float:
        return time.time()


def read_collectives(host: Host, path: str, user: Maybe[int]) -> Maybe[tuple[CollectiveSpeed, ...]]:
    """Return the collectives in the end of a file, by `read_range`."""
    limit = METRICS_BYTES if path.endswith(METRICS_SUFFIX) else TAIL_BYTES
    end = of_user(host.read_range(path, -limit, limit), user, path)
    return map_known(end, lambda found: parse(path, found.content))


class NoHost(HostBase):
    """The host of what is judged without a node, of which nothing is known."""

    UNANSWERED = (Reason.NOT_RECORDED, "no node was read")
    origin = Origin(Source.TREE, "no node")

    def is_root(self) -> bool:
        return False
