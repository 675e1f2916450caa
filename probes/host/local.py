"""The live host, and the only access to a node: files, read-only commands, netlink, NVML, verbs, libcuda.

All probes ask a `Host` and open nothing themselves, so that a dumped tree, a simulated node and a recording
can answer the same questions as this machine.
"""

from __future__ import annotations

import errno
import os
import stat
import string
import time
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from probes.base.origin import Origin, Source
from probes.base.text import printable, printable_lines
from probes.base.unknown import Maybe, Reason, Unknown
from probes.host.collectives import METRICS_BYTES, METRICS_SUFFIX, TAIL_BYTES, CollectiveSpeed, parse
from probes.host.command import CommandOutput, run_command
from probes.host.counter_files import CounterFiles
from probes.host.cuda import CudaGpu
from probes.host.cuda_driver import NEEDED, probe_cuda
from probes.host.file_range import FileRange
from probes.host.kernel_log_reader import KERNEL_LOG, KernelLogReader
from probes.host.kernel_messages import KernelMessage
from probes.host.nvml import NvmlFacts, NvmlLive
from probes.host.nvml_library import NvmlLibrary
from probes.host.progress import note
from probes.host.protocol import READ_LIMIT_BYTES, TREE_ONLY
from probes.host.range_reader import read_range
from probes.host.ras import ANSWER_SECONDS
from probes.host.rdma_resources import RdmaResources
from probes.host.rooted_tree import Found, RootedTree, split
from probes.host.sleeping_gpus import SleepingGpus
from probes.host.thread_names import thread_names_from_files
from probes.host.usage import InterfaceCounters, ProcessUsage, counters_from_files, usage_from_files
from probes.host.verbs_child import DATA_DIRECT, DMABUF
from probes.host.verbs_probe import PROBE_SECONDS, probe_data_direct, probe_dmabuf

if TYPE_CHECKING:  # imported on first use
    from probes.host.ethtool_socket import EthtoolReader
    from probes.host.ras_client import RasMonitor
    from probes.host.rdma_socket import ResourceReader

T = TypeVar("T")
READ_SECONDS = 1.0
MAX_NAMES = 65536
RDMA_CLASS = "/sys/class/infiniband"
DRIVER_LOADED = ("/sys/module/nvidia", "/proc/driver/nvidia/version")
PAGE_BYTES = 4096

_BLANKS = string.whitespace + "\0"
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_LIST = _READ | os.O_DIRECTORY
# Read record by record, unlike other attributes in /sys.
_MANY_READS = ("/sys/kernel/debug/", "/sys/kernel/tracing/", "/sys/fs/")


_REASONS: Mapping[int, Reason] = {
    errno.ENOENT: Reason.NOT_THERE,
    errno.ENOTDIR: Reason.NOT_THERE,
    errno.ENODEV: Reason.NOT_THERE,
    errno.ENXIO: Reason.NOT_THERE,
    errno.ESRCH: Reason.NOT_THERE,  # the process ended while its files were read
    errno.EACCES: Reason.NEEDS_ROOT,
    errno.EPERM: Reason.NEEDS_ROOT,
    errno.ELOOP: Reason.MALFORMED,
    errno.EISDIR: Reason.MALFORMED,
    errno.EFBIG: Reason.MALFORMED,
    errno.ENAMETOOLONG: Reason.MALFORMED,
    errno.ETIMEDOUT: Reason.TIMED_OUT,
}


def unknown_from(error: OSError | ValueError, path: str, root: bool) -> Unknown:
    """Return the reason for an error; a refusal even for root is not "needs root"."""
    if isinstance(error, ValueError):  # a NUL, or another character that no file name can have
        return Unknown(Reason.MALFORMED, printable(path), "invalid file name")
    error_text = error.strerror or "unknown error"
    reason = _REASONS.get(error.errno or 0, Reason.IO_ERROR)
    if reason is Reason.NEEDS_ROOT and root:
        return Unknown(Reason.IO_ERROR, printable(path), f"{error_text}, even for root")
    detail = "" if reason in (Reason.NOT_THERE, Reason.NEEDS_ROOT) else error_text
    return Unknown(reason, printable(path), detail)


def text_of(content: bytes) -> str:
    """Decode a file's content like `Host.read`; some sysfs attributes end with a NUL (cpulist)."""
    return printable_lines(content.decode("utf-8", errors="replace").strip(_BLANKS))


def _names_in(directory: str | int) -> list[str]:
    """Return the sorted names in a directory, one more than the most at the most."""
    with os.scandir(directory) as entries:
        return sorted(entry.name for entry in islice(entries, MAX_NAMES + 1))


class LocalHost:
    """This machine, or a directory tree of a node below `root` (a dump, a container's /host mount)."""

    def __init__(self, root: str = "/") -> None:
        root = os.path.realpath(root)
        self.origin = Origin(Source.LIVE) if root == "/" else Origin(Source.TREE, printable(root))
        self._root = "" if root == "/" else root
        self._is_root = os.geteuid() == 0
        self._tree: RootedTree | None = None
        self._library = NvmlLibrary()
        self._counter_files = CounterFiles()
        self._sleeping_gpus = SleepingGpus(self)
        self._resources: ResourceReader | None = None
        self._ethtool: EthtoolReader | None = None
        self._kernel_log = KernelLogReader()
        self._ras_monitors: dict[str, RasMonitor] = {}

    # Files

    def read_bytes(self, path: str, limit: int = READ_LIMIT_BYTES) -> Maybe[bytes]:
        """Return a file's content; a file longer than `limit` is malformed, not truncated."""
        note(path)
        try:
            return self._read(path, limit)
        except (OSError, ValueError) as error:
            return unknown_from(error, path, self._is_root)

    def read(self, path: str, limit: int = READ_LIMIT_BYTES) -> Maybe[str]:
        """Return a file's text, stripped, with control characters replaced."""
        content = self.read_bytes(path, limit)
        return content if isinstance(content, Unknown) else text_of(content)

    def read_range(self, path: str, offset: int, limit: int) -> Maybe[FileRange]:
        """Return up to `limit` bytes of a regular file from an offset on; with 0 only its state."""
        note(path)
        try:
            if not self._root:
                return read_range(path, offset, limit)
            found = self._find(path)
            return read_range(found.name, offset, limit, found.directory.descriptor)
        except (OSError, ValueError) as error:
            return unknown_from(error, path, self._is_root)

    def names(self, path: str) -> Maybe[tuple[str, ...]]:
        """Return the sorted names in a directory."""
        note(path)
        try:
            if not self._root:
                names = _names_in(path)
            else:
                found = self._find(path)
                directory = os.open(found.name, _LIST | os.O_NOFOLLOW, dir_fd=found.directory.descriptor)
                try:
                    names = _names_in(directory)
                finally:
                    os.close(directory)
        except (OSError, ValueError) as error:
            return unknown_from(error, path, self._is_root)
        if len(names) > MAX_NAMES:
            return Unknown(Reason.MALFORMED, printable(path), f"more than {MAX_NAMES} entries")
        return tuple(names)

    def link(self, path: str) -> Maybe[str]:
        """Return the target of a symbolic link, unresolved."""
        note(path)
        try:
            if not self._root:
                return os.readlink(path)
            parent, name = split(path)
            tree = self._current_tree()
            return os.readlink(name or ".", dir_fd=tree.directory(parent).descriptor)
        except OSError as error:
            if error.errno == errno.EINVAL:
                return Unknown(Reason.MALFORMED, printable(path), "not a link")
            return unknown_from(error, path, self._is_root)
        except ValueError as error:
            return unknown_from(error, path, self._is_root)

    def resolve(self, path: str) -> Maybe[str]:
        """Return the path with every link resolved, inside the host's root."""
        note(path)
        try:
            if not self._root:
                return os.path.realpath(path, strict=True)
            found = self._find(path)
        except (OSError, ValueError) as error:
            return unknown_from(error, path, self._is_root)
        real = found.directory.real
        return (real or "/") if found.name == "." else f"{real}/{found.name}"

    def size(self, path: str) -> Maybe[int]:
        """Return a file's size in bytes."""
        note(path)
        try:
            return self._find(path).status.st_size if self._root else os.stat(path).st_size
        except (OSError, ValueError) as error:
            return unknown_from(error, path, self._is_root)

    def access(self, path: str, write: bool = False) -> Maybe[bool]:
        """Return whether this process can read (and write) the file."""
        wanted = os.R_OK | (os.W_OK if write else 0)
        try:
            if self._root:
                found = self._find(path)
                return os.access(found.name, wanted, dir_fd=found.directory.descriptor)
            os.stat(path)
            return os.access(path, wanted)
        except (OSError, ValueError) as error:
            return unknown_from(error, path, self._is_root)

    def _read(self, path: str, limit: int) -> bytes:
        counter = None if self._root else self._counter_files.read(path, PAGE_BYTES)
        if counter is not None and len(counter) <= limit:
            return counter
        if self._root:
            # A dump can have anything under any name: check before opening.
            found = self._find(path)
            if not stat.S_ISREG(found.status.st_mode):
                raise OSError(errno.EISDIR, "not a regular file")
            descriptor = os.open(found.name, _READ | os.O_NOFOLLOW, dir_fd=found.directory.descriptor)
        else:
            descriptor = os.open(path, _READ)
        try:
            first = os.read(descriptor, limit + 1)
            total = len(first)
            # One read of less than a page returns a whole sysfs attribute
            # (Documentation/filesystems/sysfs.rst); other files are read to their end.
            whole = total < PAGE_BYTES and path.startswith("/sys/") and not path.startswith(_MANY_READS)
            if whole and total <= limit:
                return first
            chunks = [first]
            deadline = time.monotonic() + READ_SECONDS
            while chunks[-1] and total <= limit:
                if time.monotonic() > deadline:
                    raise OSError(errno.ETIMEDOUT, "reading takes too long")
                chunks.append(os.read(descriptor, limit + 1 - total))
                total += len(chunks[-1])
            if total > limit:
                raise OSError(errno.EFBIG, f"more than {limit} bytes")
            return b"".join(chunks)
        finally:
            os.close(descriptor)

    def _read_end(self, path: str, limit: int) -> bytes:
        """Return the last bytes of a regular file; users choose these files, so nothing else is opened."""
        if self._root:
            found = self._find(path)
            status, path, directory = found.status, found.name, found.directory.descriptor
        else:
            status, directory = os.stat(path), None
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EISDIR, "not a regular file")
        descriptor = os.open(path, _READ | (os.O_NOFOLLOW if self._root else 0), dir_fd=directory)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EISDIR, "not a regular file")
            return os.pread(descriptor, limit, max(0, status.st_size - limit))
        finally:
            os.close(descriptor)

    def _find(self, path: str) -> Found:
        return self._current_tree().find(path)

    def _current_tree(self) -> RootedTree:
        tree = self._tree
        if tree is None or tree.is_expired():
            tree = self._tree = RootedTree(self._root)
        return tree

    # Commands and libraries: only on this machine, never for a directory tree

    def _tree_has_none(self, what: str) -> Unknown:
        return Unknown(Reason.NOT_THERE, printable(what), TREE_ONLY)

    def _even_for_root(self, answer: Maybe[T]) -> Maybe[T]:
        if isinstance(answer, Unknown) and answer.reason is Reason.NEEDS_ROOT and self._is_root:
            return Unknown(Reason.IO_ERROR, answer.source, "refused, even for root")
        return answer

    def run(self, argv: Sequence[str], seconds: float = 2.0) -> Maybe[CommandOutput]:
        """Return the output of a read-only command, which is searched on the trusted path."""
        note(" ".join(argv), seconds)
        return self._tree_has_none("".join(argv[:1])) if self._root else run_command(argv, seconds)

    def nvml(self) -> Maybe[NvmlFacts]:
        """Return what NVML reports about driver and GPUs."""
        note("NVML")
        reason = self._no_nvml()
        return self._library.facts() if reason is None else reason

    def nvml_live(self) -> Maybe[tuple[NvmlLive, ...]]:
        """Return one reading of NVML's live figures."""
        note("NVML")
        reason = self._no_nvml()
        return self._library.live() if reason is None else reason

    def release(self) -> None:
        """End the NVML session, which keeps the driver module in use; the next question opens a new one."""
        self._library.release()

    def _no_nvml(self) -> Unknown | None:
        if self._root:
            return self._tree_has_none("NVML")
        # NVML would load a missing driver (nvidia-modprobe(1)); checking these paths has no side effects.
        if not any(map(os.path.exists, DRIVER_LOADED)):
            return Unknown(Reason.NOT_THERE, "NVML", "the NVIDIA driver is not loaded")
        return self._sleeping_gpus.why_not_asked("NVML")

    def dmabuf_errnos(self, devices: Sequence[str]) -> Mapping[str, Maybe[int]]:
        """Return the errno of the `ibv_reg_dmabuf_mr` probe for each RDMA device."""
        if self._root:
            return dict.fromkeys(devices, self._tree_has_none("libibverbs"))
        note(DMABUF, PROBE_SECONDS)
        return probe_dmabuf(devices)

    def data_direct_paths(self, devices: Sequence[str]) -> Mapping[str, Maybe[str]]:
        """Return the path of each RDMA device's Data Direct function; "": it has none."""
        if self._root:
            return dict.fromkeys(devices, self._tree_has_none("libmlx5"))
        note(DATA_DIRECT, PROBE_SECONDS)
        return probe_data_direct(devices)

    def cuda_gpus(self) -> Maybe[tuple[CudaGpu, ...]]:
        """Return what libcuda reports on each GPU, unless that would load modules or create device files."""
        if self._root:
            return self._tree_has_none("libcuda")
        missing = next((path for path in NEEDED if not os.path.exists(path)), None)
        if missing is not None:
            return Unknown(Reason.NOT_THERE, "libcuda", f"not queried, because {missing} is missing")
        why = self._sleeping_gpus.why_not_asked("libcuda")
        return probe_cuda() if why is None else why

    def process_usage(self, pids: Sequence[int]) -> Mapping[int, Maybe[ProcessUsage]]:
        """Return user, CPU, memory and CPU affinity of each process."""
        if self._root:
            return usage_from_files(self, pids)
        from probes.host.live_usage import process_usage  # psutil takes 20 ms to import

        note("process usage")
        return process_usage(pids)

    def interface_counters(self, names: Sequence[str]) -> Mapping[str, Maybe[InterfaceCounters]]:
        """Return the bytes through each network interface, without RDMA."""
        if self._root:
            return counters_from_files(self, names)
        from probes.host.live_usage import interface_counters

        note("/proc/net/dev")
        return interface_counters(names)

    def rdma_resources(self) -> Maybe[RdmaResources]:
        """Return the RDMA resources of all processes; TIMED_OUT while a NIC's firmware does not answer."""
        if self._root:
            return self._tree_has_none("RDMA netlink")
        # Opening the socket would load ib_core; checking this path has no side effects.
        if not os.path.exists(RDMA_CLASS):
            return Unknown(Reason.NOT_THERE, RDMA_CLASS, "ib_core is not loaded")
        from probes.host import rdma_socket
        from probes.host.probe_thread import start_probe

        note(rdma_socket.SOURCE, rdma_socket.SECONDS)
        if self._resources is None:
            self._resources = rdma_socket.ResourceReader()
        reading = start_probe(self, rdma_socket.SOURCE, self._resources.read)
        answer = reading.answer(rdma_socket.SECONDS)
        if not isinstance(answer, Unknown) or answer.reason in (Reason.TIMED_OUT, Reason.NOT_THERE):
            return answer
        from probes.host.rdma_command import resources_from_command

        by_command = resources_from_command(self.run)
        return self._even_for_root(answer) if isinstance(by_command, Unknown) else by_command

    def thread_names(self, pids: Sequence[int]) -> Mapping[int, Maybe[tuple[str, ...]]]:
        """Return the distinct names of each process's threads, sorted."""
        return thread_names_from_files(self, pids)

    def ethtool_counters(self, names: Sequence[str]) -> Mapping[str, Maybe[dict[str, int]]]:
        """Return some of the counters of `ethtool -S`; TIMED_OUT while a driver is being reconfigured."""
        if self._root:
            return dict.fromkeys(names, self._tree_has_none("ethtool -S"))
        from probes.host import ethtool_socket
        from probes.host.probe_thread import start_probe

        if self._ethtool is None:
            self._ethtool = ethtool_socket.EthtoolReader()
        note("ethtool -S", ethtool_socket.SECONDS)
        reading = start_probe(self, "ethtool -S", partial(self._ethtool.read, tuple(names)))
        answers = reading.answer(ethtool_socket.SECONDS)
        if isinstance(answers, Unknown):
            return dict.fromkeys(names, answers)
        late = Unknown(Reason.TIMED_OUT, "ethtool -S", "no answer yet")  # to an earlier, slow question
        return {name: self._even_for_root(answers.get(name, late)) for name in names}

    def kernel_messages(self) -> Maybe[tuple[KernelMessage, ...]]:
        """Return the kernel's messages since the last call; the first call only sets the start."""
        if self._root:
            return Unknown(Reason.NOT_RECORDED, KERNEL_LOG, TREE_ONLY)
        note(KERNEL_LOG)
        try:
            return self._kernel_log.read()
        except OSError as error:
            return unknown_from(error, KERNEL_LOG, self._is_root)

    def ras_answer(self, address: str, command: str, seconds: float = ANSWER_SECONDS) -> Maybe[str]:
        """Return the answer of NCCL's RAS service to a command; it may take 20 seconds."""
        if self._root:
            return self._tree_has_none("RAS")
        from probes.host import ras_client

        note(f"RAS at {address}", seconds)
        return ras_client.ask(address, command, seconds)

    def ras_events(self, address: str, last: bool = False) -> Maybe[tuple[str, ...]]:
        """Return the RAS events of a job since the last call; `last` closes the connection."""
        if self._root:
            return self._tree_has_none("RAS")
        from probes.host.ras_client import RasMonitor

        if address not in self._ras_monitors:
            self._ras_monitors[address] = RasMonitor(address)
        events = self._ras_monitors[address].read()
        if last:
            self._ras_monitors.pop(address).close()
        return events

    def collectives(self, path: str) -> Maybe[tuple[CollectiveSpeed, ...]]:
        """Return the newest collectives in a file of NCCL's inspector."""
        note(path)
        try:
            content = self._read_end(path, METRICS_BYTES if path.endswith(METRICS_SUFFIX) else TAIL_BYTES)
        except (OSError, ValueError) as error:
            return unknown_from(error, path, self._is_root)
        return parse(path, content)

    def environment(self, name: str) -> Maybe[str]:
        """Return an environment variable of this process; a directory tree has none."""
        if self._root:
            return self._tree_has_none(name)
        text = os.environ.get(name)
        return Unknown(Reason.NOT_THERE, name) if text is None else printable(text)

    # User and time

    def is_root(self) -> bool:
        """Return whether this process runs as root."""
        return self._is_root

    def monotonic(self) -> float:
        """Return the seconds of a clock that never goes back."""
        return time.monotonic()

    def wall_clock(self) -> float:
        """Return the seconds since 1970."""
        return time.time()
